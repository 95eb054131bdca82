"""From the events of a session to the lines that `opencode run --format json --thinking` writes of them.

A pure function of the journal, in the order of `seq`: the same events make the same lines again, so a driver that was
killed knows from their number how many it had written. The events come from the agent's container: each field may be
of any shape, missing, or huge. Source: OpenCode 1.18.33, read in its program and compared with its output.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

MAX_INPUT, MAX_TITLE, MAX_NAME = 2000, 200, 128
LEFT_OUT = object()
"""The data of an event that is too large."""
MIN_WORD = 8
"""Characters of the shortest secret that the worker looks for."""
MAX_TOOLS = 1024
"""Tool calls that are known to run at the same time."""
JOURNALED = frozenset({"step_start", "step_finish", "text", "reasoning", "tool_use", "tool_running", "event_left_out"})
"""Lines that are made of the journal's events only."""


class Line(NamedTuple):
    """One line without its time."""

    type: str
    content: dict[str, Any]


class Answer(NamedTuple):
    """The newest message of the model in this turn."""

    message: str
    completed: bool
    finish: str
    error: dict[str, Any] | None


class Mapping:
    """Takes the events of one session; those before the prompt make no lines.

    Attributes:
        start: the `seq` before the prompt's first event; None until that was there.
        seq: of the newest event.
    """

    def __init__(self, session: str, prompt: str, start: int | None = None, read_to: int = -1) -> None:
        self.start = start
        self.seq = read_to if start is None else start
        self.answer: Answer | None = None
        self.has_prompt = False
        self._session = session
        self._prompt = prompt
        self._running: dict[str, None] = {}

    def add(self, seq: int, kind: str, data: object) -> list[Line]:
        """Take the next event and return the lines it makes. Never raises."""
        self.seq = seq
        if data is LEFT_OUT:
            return [Line("event_left_out", {})] if self.has_prompt else []
        fields = dictionary(data)
        if kind == "message.updated.1":
            self._message(seq, dictionary(fields.get("info")))
        elif kind == "message.part.updated.1" and self.has_prompt:
            return self._part(dictionary(fields.get("part")))
        return []

    def _message(self, seq: int, info: dict[str, Any]) -> None:
        if info.get("id") == self._prompt:
            if self.start is None:
                self.start = seq - 1
            self.has_prompt = True
        elif self.has_prompt and info.get("role") == "assistant":
            self.answer = Answer(
                message=text(info.get("id"), MAX_NAME),
                completed=bool(integer(dictionary(info.get("time")).get("completed"))),
                finish=text(info.get("finish"), MAX_NAME),
                error=dictionary(info.get("error")) or None,
            )

    def _part(self, part: dict[str, Any]) -> list[Line]:
        kind = part.get("type")
        if part.get("sessionID") != self._session:
            return []
        if kind == "step-start":
            return [Line("step_start", {"part": part})]
        if kind == "step-finish":
            return [Line("step_finish", {"part": part})]
        if kind in ("text", "reasoning") and dictionary(part.get("time")).get("end"):
            return [Line(str(kind), {"part": part})]
        return self._tool(part) if kind == "tool" else []

    def _tool(self, part: dict[str, Any]) -> list[Line]:
        state, call = dictionary(part.get("state")), text(part.get("callID"), MAX_NAME)
        status = state.get("status")
        if status in ("completed", "error"):
            self._running.pop(call, None)
            return [Line("tool_use", {"part": part})]
        if status != "running" or call in self._running or len(self._running) >= MAX_TOOLS:
            return []
        self._running[call] = None
        return [Line("tool_running", {"part": _begun(part, state, call)})]


def encoded(line: Line, timestamp: int, session: str) -> bytes:
    """Return the line as bytes, as `JSON.stringify` would; of one that nests too deeply or has a number that is none of
    JSON's, that it is left out."""
    head = {"timestamp": timestamp, "sessionID": session}
    try:
        document = _dump({"type": line.type, **head, **line.content})
    except (RecursionError, ValueError):
        document = _dump({"type": "event_left_out", **head})
    return document.encode("utf-8", "backslashreplace") + b"\n"


def decoded(document: bytes | str) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: it is none, or none that can be written again.
    """
    try:
        return json.loads(document, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("too deep") from None


def dictionary(value: object) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: object, limit: int) -> str:
    """Return the beginning of the value if it is a text."""
    return value[:limit] if isinstance(value, str) else ""


def prose(value: object, limit: int) -> str:
    """Return the beginning of the value if it is a text; one that is cut ends before the word that did not fit."""
    whole = text(value, limit)
    return whole_words(whole) if isinstance(value, str) and len(value) > limit else whole


def whole_words(cut: str) -> str:
    """Return a text that is cut with an ellipsis for its last word, unless that is short.

    The word may be the beginning of a secret, and the worker recognises only whole ones.
    """
    at = last_word(cut)
    return cut[:at] + "\N{HORIZONTAL ELLIPSIS}" if len(cut) - at >= MIN_WORD else cut


def last_word(cut: str) -> int:
    """Return where the last word begins. Each character of Chinese, Japanese and Korean, without blanks, is a word."""
    at = len(cut)
    while at and not (cut[at - 1].isspace() or cut[at - 1] >= "\u2e80"):
        at -= 1
    return at


def integer(value: object) -> int:
    """Return the value if it is a number that can be one of JavaScript, else 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**53:
        return 0
    return int(value)


def _begun(part: dict[str, Any], state: dict[str, Any], call: str) -> dict[str, Any]:
    """The beginning of a tool call, bounded: its whole input is in the line of its end."""
    began = {name: text(part.get(name), MAX_NAME) for name in ("id", "messageID", "sessionID")}
    shown = prose(json.dumps(state.get("input"), ensure_ascii=False, default=str), MAX_INPUT)
    title = prose(state.get("title"), MAX_TITLE)
    return {
        **began,
        "type": "tool",
        "tool": text(part.get("tool"), MAX_NAME),
        "callID": call,
        "input": shown,
        "title": title,
    }


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _refuse(constant: str) -> None:
    raise ValueError(constant)
