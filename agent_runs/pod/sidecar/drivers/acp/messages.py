"""The messages of the agent: JSON-RPC, one on a line, and what the run's lines keep of them."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.drivers.acp.agent import RawLine
from agent_runs.pod.sidecar.drivers.acp.turn import Pattern
from agent_runs.pod.sidecar.drivers.lines import decoded, dictionary, integer, prose, text

MAX_KEPT = 256 * 1024
"""Bytes of a message that is kept whole."""
MAX_BEGINNING = 2000
MAX_VALUES = 100_000
"""Values of a message, roughly: a line of millions takes a multiple of its memory."""
MAX_ERROR, MAX_ID = 4000, 128
_HTTP = range(400, 600)
_SEPARATORS = b",[{"


class Message(NamedTuple):
    """One line of the agent.

    Attributes:
        content: the message; empty if the line has none.
        kept: what a line of the run has of it, under `acp`.
    """

    content: dict[str, Any]
    kept: dict[str, Any]

    @property
    def update(self) -> dict[str, Any]:
        """The update that it notifies of."""
        if self.content.get("method") != "session/update":
            return {}
        return dictionary(dictionary(self.content.get("params")).get("update"))

    @property
    def session(self) -> str:
        return text(dictionary(self.content.get("params")).get("sessionId"), 200)

    @property
    def answers(self) -> int | None:
        """The number of the request that it answers."""
        number = self.content.get("id")
        return number if "method" not in self.content and isinstance(number, int) else None

    @property
    def is_request(self) -> bool:
        """Whether the agent asks and waits."""
        return isinstance(self.content.get("method"), str) and isinstance(self.content.get("id"), (int, str))


def message(line: RawLine) -> Message:
    """Never raises."""
    if line.data is None:
        return Message({}, {"leftOut": "the line is too long", "bytes": line.size})
    beginning = prose(line.data[: 4 * MAX_BEGINNING].decode("utf-8", "replace"), MAX_BEGINNING)
    left_out = {"bytes": line.size, "beginning": beginning}
    if line.size > MAX_KEPT and sum(line.data.count(each) for each in _SEPARATORS) > MAX_VALUES:
        return Message({}, {"leftOut": "the line has too many values", **left_out})
    try:
        content = dictionary(decoded(line.data.decode("utf-8", "replace")))
    except ValueError:
        content = {}
    if not content:
        return Message({}, {"leftOut": "the line is no message", **left_out})
    if line.size > MAX_KEPT:
        return Message(content, {"leftOut": "the message is too long", **left_out})
    return Message(content, {name: value for name, value in content.items() if name != "jsonrpc"})


class Refusal(NamedTuple):
    """An error that the agent has answered.

    Attributes:
        searched: its message and its data, for patterns.
        shown: the same for people.
    """

    code: int
    searched: str
    shown: str

    @classmethod
    def of(cls, error: object) -> Refusal:
        """Return it, whatever its shape."""
        fields = dictionary(error)
        said, data = prose(fields.get("message"), MAX_ERROR), fields.get("data")
        detail = _detail(data)
        shown = said if not detail or detail in said else f"{said}: {detail}" if said else detail
        searched = f"{said} {_json(data)}" if data is not None else said
        return cls(
            integer(fields.get("code")), searched[:MAX_ERROR], prose(shown, MAX_ERROR) or "error without a message"
        )

    def is_one_of(self, patterns: list[Pattern]) -> bool:
        """Whether it matches one of them."""
        return any(map(self._found, patterns))

    def known(self, patterns: list[Pattern]) -> dict[str, Any] | None:
        """Return it as OpenCode's error; None if no pattern knows it, and its code is no status of HTTP either."""
        for each in patterns:
            found = self._found(each)
            if found is not None:
                status = found.groupdict().get("status")
                return self._error(each.name, int(status) if status and status.isdigit() else each.status)
        return self._error("APIError", self.code) if self.code in _HTTP else None

    def unknown(self) -> dict[str, Any]:
        """Return it as an error that nobody knows."""
        return self._error("UnknownError", None)

    def _found(self, pattern: Pattern) -> re.Match[str] | None:
        return pattern.matches.search(self.searched) if pattern.code in (None, self.code) else None

    def _error(self, name: str, status: int | None) -> dict[str, Any]:
        known = {} if status is None else {"statusCode": status}
        return {"name": name, "data": {"message": self.shown, **known}}


def _detail(data: object) -> str:
    fields = dictionary(data)
    candidates = (data, fields.get("details"), fields.get("message"), fields.get("error"))
    return next((prose(each, MAX_ERROR) for each in candidates if isinstance(each, str) and each), "")


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return ""


def request(number: int, method: str, params: dict[str, Any]) -> bytes:
    return _line({"id": number, "method": method, "params": params})


def notification(method: str, params: dict[str, Any]) -> bytes:
    return _line({"method": method, "params": params})


def answer(number: int | str, **content: Any) -> bytes:
    return _line({"id": number, **content})


def request_id(raw: object) -> str:
    """Return the identifier of a request as one word."""
    return re.sub(r"[^\w.:-]", "_", json.dumps(raw), flags=re.ASCII)[:MAX_ID]


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **content}).encode() + b"\n"


def tool_word(value: object) -> str:
    """Return the value as the name of a tool: one word; empty if there is none."""
    return re.sub(r"[^\w.-]+", "_", text(value, 80), flags=re.ASCII).strip("_")
