"""The calls of Paperclip's log for one stored line: what the plugin passes on, without a rule of its own.

A call is one text below 8000 bytes of UTF-8 with the newline that the plugin adds: Paperclip cuts longer ones and shows
the last 8 KiB of one.

`json`, for the plugin's own parser: what happened as entries of Paperclip's transcript view
(`agent_runs.web.paperclip_entries`), in calls of one line

    {"type":"agent_run","entries":[{"kind":"assistant","text":"…"}, …]}

Whatever an agent prints is inside a string of such a line, so nothing of it can be mistaken for a line of ours. Long
texts are shortened, with the number of characters that are missing. A line on stderr, which no parser reads, is
written there as it is.

`text`, for people: `agent_runs.web.paperclip_log_text`.

`events`, for Paperclip's parser of its own OpenCode adapter, which shows every other line as it is: OpenCode's events,
and the rest as text.

Everything here is bounded: a line is parsed only up to 512 Ki characters, and of a longer one only the size is shown.
"""

import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from agent_runs.paperclip.javascript import well_formed
from agent_runs.transcript.events import SERVER_EVENTS
from agent_runs.transcript.store import Line
from agent_runs.web.paperclip_entries import (
    OWN_TYPE,
    Stream,
    TranscriptEntry,
    decoded,
    entries,
    event_type,
    parsed,
)
from agent_runs.web.paperclip_log_text import readable

LogFormat = Literal["json", "text", "events"]
FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)

CALL_BYTES: Final = 8000
"""Bytes of one call, newline included, are below this."""
_PIECE_BYTES: Final = CALL_BYTES - 200
"""Bytes of a piece as a JSON string; the rest is for what surrounds it."""
_SHORTER: Final = (2000, 700, 250, 80)
"""Characters of each text of an event, one after the other until the event fits into a call."""
_SESSION_LIMIT: Final = 128
_SEPARATORS: Final = re.compile("[\n\r\v\f\u0085\u2028\u2029]")
_CONTINUATION: Final = range(0x80, 0xC0)
"""Bytes of a character of UTF-8 after its first."""


class Call(NamedTuple):
    """One call of Paperclip's log: `text` is without the newline at its end; in `text` it may have several lines."""

    stream: Stream
    text: str


def calls(line: Line, log_format: LogFormat) -> Iterator[Call]:
    """The calls for one line, in order, one by one; none for a line that is not shown. Never raises."""
    if log_format == "json":
        return _stderr_call(line.data) if line.stream == "stderr" else _entry_calls(line)
    event = _event(line) if log_format == "events" else None
    if event is None:
        return _text_calls(line)
    match event_type(parsed(event)):
        case "acp_update":  # a plan, say, of which that parser knows nothing
            return _text_calls(line)
        case kind if kind in SERVER_EVENTS:
            return iter(())
        case _:
            return iter([Call("stdout", event)])


def session_id(line: Line) -> str | None:
    """The agent's session that an event names, at most 128 characters."""
    if line.stream == "stderr" or b'"sessionID"' not in line.data or (text := decoded(line.data)) is None:
        return None
    found = (parsed(text) or {}).get("sessionID")
    return well_formed(found[:_SESSION_LIMIT]) if isinstance(found, str) and found else None


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


def _stderr_call(data: bytes) -> Iterator[Call]:
    first, *more = islice(_pieces(data), 2)
    yield Call("stderr", f"{first}… (a line of {len(data)} bytes; the transcript has it)" if more else first)


def _entry_calls(line: Line) -> Iterator[Call]:
    """The entries of a line, as many to a call as fit into it."""
    call: list[bytes] = []
    for entry in map(_encoded, entries(line)):
        if call and sum(map(len, call)) + len(call) + len(entry) > _PIECE_BYTES:
            yield _call_of(call)
            call = []
        call.append(entry)
    if call:
        yield _call_of(call)


def _call_of(encoded: list[bytes]) -> Call:
    return Call("stdout", f'{{"type":"{OWN_TYPE}","entries":[{b",".join(encoded).decode()}]}}')


def _encoded(entry: TranscriptEntry) -> bytes:
    """The entry as JSON that fits into a call, its texts shortened as far as necessary."""
    shorter = (_shortened_entry(entry, limit) for limit in (6000, *_SHORTER))
    for candidate in chain([entry], shorter):
        try:
            encoded = msgspec.json.encode(candidate)
        except (UnicodeEncodeError, RecursionError):
            continue  # half a character, or nested too deeply: a shortened entry has neither
        if len(encoded) <= _PIECE_BYTES:
            return encoded
    return msgspec.json.encode(_shortened_entry(entry | {"input": "(too long; the transcript has it)"}, _SHORTER[-1]))


def _shortened_entry(entry: TranscriptEntry, limit: int) -> TranscriptEntry:
    short: TranscriptEntry = _shortened(entry, limit, 0)
    for name in {"text", "content"} & entry.keys():
        if more := len(entry[name][limit:]):
            short[name] += f" {more} more characters; the transcript has them"
    return short


def _pieces(data: bytes) -> Iterator[str]:
    """The text in pieces, one at least, whose JSON strings fit into a call; none ends inside a character."""
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


def _event(line: Line) -> str | None:
    """An event of OpenCode's that fits into a call, shortened if necessary; None for every other line."""
    if line.stream == "stderr" or (text := decoded(line.data)) is None or event_type(parsed(text)) is None:
        return None
    return text if _fits(text) and not _SEPARATORS.search(text) else _shortened_event(text)


def _shortened_event(text: str) -> str | None:
    """The event with its long strings shortened; None when it is no event, or still too long."""
    event = parsed(text)
    if event is None or event_type(event) is None:
        return None
    for limit in _SHORTER:
        short = msgspec.json.encode(_shortened(event, limit, 0) | {"truncated": True}).decode()
        if _fits(short):
            return short
    return None


def _shortened(value: Any, limit: int, depth: int) -> Any:
    if isinstance(value, str):
        return well_formed(f"{value[:limit]}…" if len(value) > limit else value)
    if not isinstance(value, dict | list):
        return value
    if depth > 8:
        return "…"
    if isinstance(value, list):
        return [_shortened(item, limit, depth + 1) for item in value[:20]]
    items = list(value.items())[:40]
    return {well_formed(key[:80]): _shortened(item, limit, depth + 1) for key, item in items}
