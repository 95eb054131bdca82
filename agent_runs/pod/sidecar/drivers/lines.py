"""The lines that drivers write, in the form of `opencode run --format json --thinking`, and careful reading of JSON.

What is read comes from the agent's container: each field may be of any shape, missing, or huge.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

MAX_INPUT, MAX_TITLE, MAX_NAME = 2000, 200, 128
LEFT_OUT = object()
"""The data of an event that is too large."""
LEFT_OUT_TYPE = "event_left_out"
AGENT_VERSION = "agent_version"
USER_MESSAGE = "user_message"
MAX_VERSION = 40
MAX_TOOLS = 1024
"""Tool calls that are known to run at the same time."""
MIN_WORD = 8
"""Characters of the shortest secret that the worker looks for."""


class Line(NamedTuple):
    """One line without its time."""

    type: str
    content: dict[str, Any]


def unknown_session(reason: str = "") -> dict[str, Any]:
    """Return OpenCode's error for a session that is to be resumed and is not there."""
    return {"name": "NotFoundError", "data": {"message": "Session not found" + (f": {reason}" if reason else "")}}


def user_message(message: str, by: str, words: str) -> Line:
    """Return the line of a message that has reached the agent."""
    return Line(USER_MESSAGE, {"message": {"id": message, "by": by, "text": words}})


def encoded(line: Line, timestamp: int, session: str) -> bytes:
    """Return the line as bytes, as `JSON.stringify` would; of one that nests too deeply or has a number that is none of
    JSON's, that it is left out."""
    head = {"timestamp": timestamp, "sessionID": session}
    try:
        document = _dump({"type": line.type, **head, **line.content})
    except (RecursionError, ValueError):
        part = dictionary(line.content.get("part")).get("id")
        document = _dump(
            {"type": LEFT_OUT_TYPE, **head, **({"part": {"id": part}} if part else {}), "leftOut": line.type}
        )
    return document.encode("utf-8", "backslashreplace") + b"\n"


def decoded(document: bytes | str) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: it is not JSON, or cannot be written again.
    """
    try:
        return json.loads(document, parse_constant=refuse)
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


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def refuse(constant: str) -> None:
    """Take none of the constants that JSON does not have: `NaN` and the infinities."""
    raise ValueError(constant)
