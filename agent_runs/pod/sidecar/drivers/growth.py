"""How long the texts are that the model has not finished, now and then.

What a text says is written once, whole: the worker finds a secret in one line, and in no two halves of it. So a line of
growth has the length, and the text only if the turn ends before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agent_runs.pod.sidecar.drivers.lines import MAX_NAME, Line, dictionary, text, whole_words

MIN_SECONDS = 1.0
MAX_TEXT = 64 * 1024
"""Characters that are kept of one part."""
MAX_PARTS = 32


class Growth:
    """The parts that grow. Only live events show it, so a part stops growing here when some of them are lost."""

    def __init__(self) -> None:
        self._parts: dict[str, _Part] = {}

    def add(self, kind: str, properties: dict[str, Any], now: float) -> None:
        """Take a live event of the session."""
        if kind == "message.part.delta":
            part = self._parts.get(text(properties.get("partID"), MAX_NAME))
            if part is not None and properties.get("field") == "text":
                part.add(text(properties.get("delta"), MAX_TEXT))
        elif kind == "message.part.updated":
            self._update(dictionary(properties.get("part")), now)

    def due(self, now: float) -> Iterator[Line]:
        """Return what has grown for long enough."""
        for part in self._parts.values():
            if part.has_grown and now - part.written_at >= MIN_SECONDS:
                yield part.line(now)

    def stop(self) -> None:
        """Keep the parts as they are: events may be lost."""
        for part in self._parts.values():
            part.stopped = True

    def end(self, name: str) -> None:
        """Forget a part that is written whole."""
        self._parts.pop(name, None)

    def unfinished(self) -> Iterator[Line]:
        """Return the texts that will not be written whole, once the turn has ended."""
        for part in self._parts.values():
            if part.text:
                yield part.line(0.0, text=whole_words(part.text))

    def _update(self, part: dict[str, Any], now: float) -> None:
        name = text(part.get("id"), MAX_NAME)
        if dictionary(part.get("time")).get("end"):
            self.end(name)
        elif part.get("type") in ("text", "reasoning") and part.get("text") == "" and len(self._parts) < MAX_PARTS:
            content = {"partID": name, "messageID": text(part.get("messageID"), MAX_NAME), "kind": str(part["type"])}
            self._parts[name] = _Part(content, now)


class _Part:
    def __init__(self, content: dict[str, Any], now: float) -> None:
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
