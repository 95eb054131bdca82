"""The calls of Paperclip's log for one stored line: what the plugin passes on, without a rule of its own.

A call is one text below 8000 bytes of UTF-8 with the newline that the plugin adds: Paperclip cuts longer ones and shows
the last 8 KiB of one.

`json`, for the plugin's own parser: a call is one line. A line of the agent that is too long is written as pieces, to
be joined in order:

    {"type":"agent_run","event":"chunk","id":"<attempt>.<sequence>","stream":"stdout","of":"event|text","part":1,"parts":3,"text":"…"}

`of: "event"` follows the same event with its long strings shortened and `"truncated": true`, which parsers and cost
accounting read instead; `of: "text"` stands for the line itself. Nothing that an agent prints can be mistaken for a
status line of the plugin: a stdout line that a reader could parse as one (a JSON object whose `type` is `agent_run`,
also after a carriage return or another line separator) is written as a chunk of one part, and its text is a JSON
string inside ours. Where the store says that output is missing, the call is a status line, `"event":"gap"`: no agent
writes to that stream.

`text`, for people: `agent_runs.web.paperclip_log_text`.

`events`, for Paperclip's parser of its own OpenCode adapter, which shows every other line as it is: OpenCode's events,
and the rest as text.

Everything here is bounded: a line of 16 MiB is cut piece by piece, and parsed only up to 512 Ki characters.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from agent_runs.agents.opencode.entries import entry
from agent_runs.contracts.outcome import GAP_STREAM
from agent_runs.transcripts.store import Line
from agent_runs.web.paperclip_log_text import OWN_TYPE, Stream, decoded, event_type, parsed, readable

LogFormat = Literal["json", "text", "events"]
FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)

CALL_BYTES: Final = 8000
"""Bytes of one call, newline included, are below this."""
_PIECE_BYTES: Final = CALL_BYTES - 200
"""Bytes of a piece as a JSON string; the rest is for what surrounds it."""
_SESSION_LIMIT: Final = 128
_GAP_LIMIT: Final = 200
_SEPARATORS: Final = re.compile("[\n\r\v\f\u0085\u2028\u2029]")
_HALF_CHARACTERS: Final = re.compile("[\ud800-\udfff]")
_CONTINUATION: Final = range(0x80, 0xC0)
"""Bytes of a character of UTF-8 after its first."""


class Call(NamedTuple):
    """One call of Paperclip's log: `text` is without the newline at its end; in `text` it may have several lines."""

    stream: Stream
    text: str


def calls(line: Line, attempt: int, log_format: LogFormat) -> Iterator[Call]:
    """The calls for one line, in order, one by one; none for a line that is not shown. Never raises."""
    if log_format == "json":
        return _json_calls(line, attempt)
    event = _event(line) if log_format == "events" else None
    return iter([Call("stdout", event)]) if event is not None else _text_calls(line)


def session_id(line: Line) -> str | None:
    """The agent's session that an event names, at most 128 characters."""
    if line.stream == "stderr" or b'"sessionID"' not in line.data or (text := decoded(line.data)) is None:
        return None
    found = (_parsed(text) or {}).get("sessionID")
    return _storable(found[:_SESSION_LIMIT]) if isinstance(found, str) and found else None


def _text_calls(line: Line) -> Iterator[Call]:
    for stream, text in readable(line):
        yield from (Call(stream, part) for part in _packed(text))


def _packed(text: str) -> Iterator[str]:
    """A text in calls: whole lines, and the pieces of one that is too long for a call, each after the first marked."""
    call: str | None = None
    for line in text.split("\n"):
        for index, piece in enumerate(_pieces(line.encode("utf-8", errors="replace"))):
            part = f"… {piece}" if index else piece
            if call is None:
                call = part
            elif _fits(joined := f"{call}\n{part}"):
                call = joined
            else:
                yield call
                call = part
    if call is not None:
        yield call


def _json_calls(line: Line, attempt: int) -> Iterator[Call]:
    if line.stream == GAP_STREAM and (gap := entry(line.data, GAP_STREAM)):
        status = {"type": OWN_TYPE, "event": GAP_STREAM, "message": gap.title[:_GAP_LIMIT]}
        yield Call("stdout", msgspec.json.encode(status).decode())
        return
    stream: Stream = "stderr" if line.stream == "stderr" else "stdout"
    whole = line.data.decode("utf-8", errors="replace") if len(line.data) < CALL_BYTES else None
    if whole is not None and _fits(whole):
        if stream == "stdout" and _looks_like_status(whole):
            yield from _chunks(line, attempt, stream, "text")
        else:
            yield Call(stream, whole)
        return
    text = decoded(line.data) if stream == "stdout" else None
    short = None if text is None else _shortened_event(text)
    if short is not None:
        yield Call("stdout", short)
    yield from _chunks(line, attempt, stream, "text" if short is None else "event")


def _chunks(line: Line, attempt: int, stream: Stream, of: Literal["event", "text"]) -> Iterator[Call]:
    parts = sum(1 for _ in _pieces(line.data))
    for part, text in enumerate(_pieces(line.data), 1):
        chunk = {"type": OWN_TYPE, "event": "chunk", "id": f"{attempt}.{line.sequence}", "stream": stream, "of": of}
        yield Call("stdout", msgspec.json.encode(chunk | {"part": part, "parts": parts, "text": text}).decode())


def _pieces(data: bytes) -> Iterator[str]:
    """The text in pieces, one at least, whose JSON strings fit into a call; none ends inside a character.

    They are the same pieces every time, so that they can be counted before they are written.
    """
    start, length = 0, _PIECE_BYTES
    while start < len(data) or start == 0:
        length = min(2 * length, _PIECE_BYTES)  # what follows is probably as dense as the piece before
        while True:
            end = _character_end(data, start + length)
            piece = data[start:end].decode("utf-8", errors="replace")
            size = len(msgspec.json.encode(piece)) - 2
            if size <= _PIECE_BYTES:
                break
            length = (end - start) * _PIECE_BYTES // size
        yield piece
        start = end or 1


def _character_end(data: bytes, end: int) -> int:
    """`end`, or up to three bytes less so that no character is cut."""
    if end >= len(data):
        return len(data)
    return next((place for place in range(end, end - 4, -1) if data[place] not in _CONTINUATION), end)


def _fits(text: str) -> bool:
    return len(text) < CALL_BYTES - 1 and len(text.encode("utf-8", errors="replace")) < CALL_BYTES - 1


def _looks_like_status(text: str) -> bool:
    """Whether a reader could parse this, or a part of it, as a status line of ours."""
    if "{" not in text or (OWN_TYPE not in text and "\\u" not in text):
        return False
    return _is_status(text) or any(map(_is_status, _SEPARATORS.split(text)))


def _is_status(text: str) -> bool:
    try:
        return (parsed(text) or {}).get("type") == OWN_TYPE
    except RecursionError:
        return True  # a reader without this limit may parse it


def _event(line: Line) -> str | None:
    """An event of OpenCode's that fits into a call, shortened if necessary; None for every other line."""
    if line.stream == "stderr" or (text := decoded(line.data)) is None or event_type(_parsed(text)) is None:
        return None
    return text if _fits(text) and not _SEPARATORS.search(text) else _shortened_event(text)


def _shortened_event(text: str) -> str | None:
    """The event with its long strings shortened; None when it is no event, or still too long."""
    event = _parsed(text)
    if event is None or event_type(event) is None:
        return None
    for limit in (2000, 700, 250, 80):
        short = msgspec.json.encode(_shortened(event, limit, 0) | {"truncated": True}).decode()
        if _fits(short):
            return short
    return None


def _shortened(value: Any, limit: int, depth: int) -> Any:
    if isinstance(value, str):
        return _storable(f"{value[:limit]}…" if len(value) > limit else value)
    if not isinstance(value, dict | list):
        return value
    if depth > 8:
        return "…"
    if isinstance(value, list):
        return [_shortened(item, limit, depth + 1) for item in value[:20]]
    items = list(value.items())[:40]
    return {_storable(key[:80]): _shortened(item, limit, depth + 1) for key, item in items}


def _storable(text: str) -> str:
    """The text with half characters replaced, which JSON can name and UTF-8 cannot hold."""
    return _HALF_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)


def _parsed(text: str) -> dict[str, Any] | None:
    """The JSON object on a line; None for everything else, also for one that is nested too deeply."""
    try:
        return parsed(text)
    except RecursionError:
        return None
