"""How long the texts are that the model has not finished, now and then.

What a text says is written once, whole: the worker finds a secret in one line, and in no two halves of it. So a line of
growth has the length, and the text only if the turn ends before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_runs.pod.sidecar.drivers.lines import Line, whole_words

MIN_SECONDS = 1.0
MAX_TEXT = 64 * 1024
"""Characters that are kept of one part."""
MAX_PARTS = 32


class Growth:
    """The parts that grow. A part stops growing here when some of what it grew by is lost."""

    def __init__(self) -> None:
        self._parts: dict[str, _Part] = {}

    def begin(self, part: str, message: str, kind: str, now: float) -> None:
        """Take note of a part that has no text yet: `text` or `reasoning`."""
        if len(self._parts) < MAX_PARTS:
            self._parts[part] = _Part({"partID": part, "messageID": message, "kind": kind}, now)

    def add(self, part: str, delta: str) -> None:
        """Take what a part has grown by."""
        if part in self._parts:
            self._parts[part].add(delta)

    def due(self, now: float) -> Iterator[Line]:
        """Return what has grown for long enough."""
        for part in self._parts.values():
            if part.has_grown and now - part.written_at >= MIN_SECONDS:
                yield part.line(now)

    def stop(self) -> None:
        """Keep the parts as they are: some of what they grow by may be lost."""
        for part in self._parts.values():
            part.stopped = True

    def end(self, part: str) -> None:
        """Forget a part that is written whole."""
        self._parts.pop(part, None)

    def unfinished(self) -> Iterator[Line]:
        """Return the texts that will not be written whole, once the turn has ended."""
        for part in self._parts.values():
            if part.text:
                yield part.line(0.0, text=whole_words(part.text))


class _Part:
    def __init__(self, content: dict[str, str], now: float) -> None:
        self._content = content
        self.text = ""
        self._length = 0
        self.has_grown = self.stopped = False
        self.written_at = now

    def add(self, delta: str) -> None:
        if delta and not self.stopped:
            self.text += delta[: MAX_TEXT - len(self.text)]
            self._length += len(delta)
            self.has_grown = True

    def line(self, now: float, **more: str) -> Line:
        self.has_grown, self.written_at = False, now
        return Line("text_growth", {**self._content, "length": self._length, **more})
