"""OpenCode's output as events: a decoder that never raises.

`opencode run --format json` writes one JSON object per line, UTF-8, split at LF only (U+2028 and U+0085 stand raw
inside strings). The usual line takes msgspec's typed path, which does not build what the fold ignores, such as tool
output of megabytes. A line of another shape (a string where a number belongs, a lone surrogate, invalid UTF-8, an ANSI
code in front) takes a slower path with the same result for what can be read. What remains is no event.
"""

import math
import re
from typing import Any, Final

import msgspec

from agent_runs.contracts.large_json import LARGE, load_json
from agent_runs.transcript.lines import LINE_LIMIT

ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_UNSEEN: Final = dict.fromkeys(
    [0x061C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF, *range(0xE0000, 0xE0080)]
)
"""Characters that turn the direction of text, or that nobody sees: people would see something else than is there."""
_BREAKS: Final = dict.fromkeys([0x85, 0x2028, 0x2029], "\n")
_TRANSLATED: Final = {**_UNSEEN, **_BREAKS}
_BLANK: Final = b" \t\r\n\x0b\x0c"
_SESSION: Final = re.compile(rb'"sessionID"\s*:\s*"([\w-]{1,128})"')
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
SUBAGENT_STEP: Final = "subagent_step"
AGENT_VERSION: Final = "agent_version"
USER_MESSAGE: Final = "user_message"
QUESTION_ASKED: Final = "question_asked"
QUESTION_ANSWERED: Final = "question_answered"
SERVER_EVENTS: Final = frozenset(
    {
        *("tool_running", "text_growth", "session_status", "permission_rejected", SUBAGENT_STEP, "acp_update"),
        *(AGENT_VERSION, USER_MESSAGE, QUESTION_ASKED, QUESTION_ANSWERED),
    }
)
"""Lines that the sidecar's drivers (`agent_runs.pod.sidecar.drivers`) add to those of `opencode run`: what
begins, grows and waits, what sub-agents use, and the messages of an agent that make no other line. Of the verdict only
the permission that it names depends on them."""
_PREFIX: Final = 512
GENERIC_LIMIT: Final = 1024 * 1024
"""Bytes of a line that may be built as a whole; an odd line above that is known by its beginning only."""


class Cache(msgspec.Struct, gc=False):
    read: float = 0
    write: float = 0


class Tokens(msgspec.Struct, gc=False):
    """Tokens of one step. Shares do not overlap; `input` is uncached."""

    input: float = 0
    output: float = 0
    reasoning: float = 0
    cache: Cache | None = None


ABSENT: Final = msgspec.Raw(b"null")


class ToolState(msgspec.Struct, gc=False):
    """How a tool call ended: `completed`, or `error` with its text. `input` stays JSON; its output is not decoded."""

    status: str | None = None
    title: str | None = None
    error: str | None = None
    input: msgspec.Raw = ABSENT


class Part(msgspec.Struct, gc=False):
    """The fields of a message part that the fold reads. Absent and null mean the same.

    `context` are the tokens of the model's context that are used, where `tokens` are of several steps (`acp`). `input`
    and `title` are those of a tool that begins.
    """

    id: str | None = None
    message_id: str | None = msgspec.field(default=None, name="messageID")
    text: str | None = None
    synthetic: bool | None = None
    message: str | None = None
    reason: str | None = None
    cost: float | None = None
    tokens: Tokens | None = None
    context: float | None = None
    tool: str | None = None
    call_id: str | None = msgspec.field(default=None, name="callID")
    state: ToolState | None = None
    input: str | None = None
    title: str | None = None


class Event(msgspec.Struct):
    """One line of OpenCode's output.

    `error` and `message` are set by `error` events only, in any shape; `permission` and `patterns` by
    `permission_rejected`, `version` by `agent_version`. `by` has rejected the permission; None: nobody was asked.
    """

    type: str
    session_id: str | None = msgspec.field(default=None, name="sessionID")
    part: Part | None = None
    error: Any = None
    message: Any = None
    permission: Any = None
    patterns: Any = None
    by: Any = None
    version: Any = None


class _LargeEvent(msgspec.Struct):
    """An `Event` whose fields of any shape are not built at once: they may be millions of values."""

    type: str
    session_id: str | None = msgspec.field(default=None, name="sessionID")
    part: Part | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    message: msgspec.Raw = msgspec.Raw(b"null")


NO_PART: Final = Part()
_decode_small: Final = msgspec.json.Decoder(Event).decode
_decode_large: Final = msgspec.json.Decoder(_LargeEvent).decode


def decode(line: bytes) -> Event | None:
    """The event that all of `line` makes, or None when it makes none. Never raises.

    A line is an event when it is a JSON object with a string `type`; its other fields count only in the shape they
    should have.
    """
    try:
        return _decode_small(line) if len(line) <= LARGE else _decode_typed(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        if b'"type"' not in line or len(line) >= LINE_LIMIT:
            return None
    text = _repaired(line)
    try:
        return _decode_typed(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _decode_generic(text) if len(line) <= GENERIC_LIMIT else None


def decode_beginning(line: bytes) -> Event | None:
    """The type and session of a line that is too long to be read in any other way; None for a shorter line."""
    if len(line) <= GENERIC_LIMIT:
        return None
    head = line[:_PREFIX]
    match = re.match(rb'\s*\{\s*"type"\s*:\s*"([a-z_]{1,40})"', head)
    if match is None:
        return None
    session = _SESSION.search(head)
    return Event(type=match[1].decode(), session_id=session[1].decode() if session else None, part=NO_PART)


def is_blank(line: bytes) -> bool:
    return not line.strip(_BLANK)


def plain_text(line: bytes, limit: int = 4096) -> str:
    """A raw line as text for people: decoded and visible, at most `limit` characters."""
    return printable(line[: 4 * limit].decode("utf-8", errors="replace"), limit)


def printable(text: str, limit: int) -> str:
    """`text` as visible text, at most `limit` characters."""
    return shortened(visible(text[: 4 * limit]).strip(), limit)


def visible(text: str) -> str:
    """`text` without anything that a terminal or a browser would act on by itself.

    ANSI codes, control characters (tab and LF stay), direction and invisible characters are left out; other line breaks
    are LF.
    """
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub("", ANSI.sub("", storable(text.translate(_TRANSLATED))))


def storable(text: str) -> str:
    """`text` with NUL and lone surrogates replaced: PostgreSQL and `str.encode` refuse them."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def shortened(text: str, limit: int) -> str:
    """`text`, or its beginning and an ellipsis when it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _decode_typed(line: bytes | str) -> Event:
    if len(line) <= LARGE:
        return _decode_small(line)
    large = _decode_large(line)
    return Event(large.type, large.session_id, large.part, _any(large.error), _any(large.message))


def _any(raw: msgspec.Raw) -> Any:
    """The value of any shape; None for one that is too large to be built."""
    try:
        return load_json(bytes(raw).decode())
    except (ValueError, RecursionError):
        return None


def _repaired(line: bytes) -> str:
    """The line as text without byte order mark, ANSI codes, invalid UTF-8 and escapes of lone surrogates.

    Of a long line only its beginning is freed of ANSI codes: a search for them keeps Python's lock.
    """
    text = line.decode("utf-8", errors="replace").lstrip("\ufeff")
    short = len(text) <= GENERIC_LIMIT
    text = ANSI.sub("", text) if short else ANSI.sub("", text[:_PREFIX]) + text[_PREFIX:]
    return _ESCAPE.sub(_whole_escape, text) if "\\ud" in text or "\\uD" in text else text


def _whole_escape(match: re.Match[str]) -> str:
    return r"\ufffd" if match["lone"] else match[0]


def _decode_generic(text: str) -> Event | None:
    try:
        document = load_json(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        return None
    return Event(
        type=document["type"],
        session_id=_text(document.get("sessionID")),
        part=_part(as_object(document.get("part"))),
        error=document.get("error"),
        message=document.get("message"),
        permission=document.get("permission"),
        patterns=document.get("patterns"),
        by=document.get("by"),
        version=document.get("version"),
    )


def _part(fields: dict[str, Any]) -> Part:
    state = as_object(fields.get("state"))
    return Part(
        id=_text(fields.get("id")),
        message_id=_text(fields.get("messageID")),
        text=_text(fields.get("text")),
        synthetic=fields.get("synthetic") is True,
        message=_text(fields.get("message")),
        reason=_text(fields.get("reason")),
        cost=number(fields.get("cost")),
        tokens=_tokens(fields.get("tokens")),
        context=number(fields.get("context")),
        tool=_text(fields.get("tool")),
        call_id=_text(fields.get("callID")),
        state=ToolState(
            status=_text(state.get("status")),
            title=_text(state.get("title")),
            error=_text(state.get("error")),
            input=msgspec.Raw(msgspec.json.encode(state.get("input"))),
        ),
        input=_text(fields.get("input")),
        title=_text(fields.get("title")),
    )


def _tokens(value: object) -> Tokens | None:
    if not isinstance(value, dict):
        return None
    cache = as_object(value.get("cache"))
    return Tokens(
        input=number(value.get("input")) or 0,
        output=number(value.get("output")) or 0,
        reasoning=number(value.get("reasoning")) or 0,
        cache=Cache(read=number(cache.get("read")) or 0, write=number(cache.get("write")) or 0),
    )


def number(value: object) -> float | None:
    """A finite JavaScript number; booleans, strings, NaN and what exceeds a double are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def as_object(value: object) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}
