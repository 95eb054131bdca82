"""Text as it grows: what the model has written of a part that is not finished, now and then, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agent_runs.pod.sidecar.driver.lines import MAX_NAME, Line, dictionary, text

MIN_SECONDS = 1.0
MAX_TEXT = 64 * 1024
"""Characters of one part."""
MAX_PARTS = 32


class Growth:
    """The parts that grow. Only live events show it, so a part is given up when some of them are lost."""

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
        for name, part in self._parts.items():
            if part.unwritten and now - part.written_at >= MIN_SECONDS:
                yield part.line(name, now)

    def clear(self) -> None:
        """Give up all parts."""
        self._parts.clear()

    def _update(self, part: dict[str, Any], now: float) -> None:
        name = text(part.get("id"), MAX_NAME)
        if dictionary(part.get("time")).get("end"):
            self._parts.pop(name, None)
        elif part.get("type") in ("text", "reasoning") and part.get("text") == "" and len(self._parts) < MAX_PARTS:
            self._parts[name] = _Part(str(part["type"]), text(part.get("messageID"), MAX_NAME), now)


class _Part:
    def __init__(self, kind: str, message: str, now: float) -> None:
        self._kind, self._message = kind, message
        self.unwritten = ""
        self.written_at = now
        self._offset = 0

    def add(self, delta: str) -> None:
        self.unwritten += delta[: MAX_TEXT - self._offset - len(self.unwritten)]

    def line(self, name: str, now: float) -> Line:
        content = {"partID": name, "messageID": self._message, "kind": self._kind, "offset": self._offset}
        grown = Line("text_growth", {**content, "text": self.unwritten})
        self._offset += len(self.unwritten)
        self.unwritten, self.written_at = "", now
        return grown
