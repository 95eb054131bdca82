"""The calls of Paperclip's log for one stored line: what the plugin passes on, without a rule of its own.

A call is one text below 8000 bytes of UTF-8 with the newline that the plugin adds: Paperclip cuts longer ones and shows
the last 8 KiB of one. Both formats show the line's entry (`agent_runs.transcript.entries`), cleaned and bounded, with
the number of characters that are missing; the transcript has everything.

`json`, for the plugin's own parser: entries of Paperclip's transcript view in calls of one line

    {"type":"agent_run","entries":[{"kind":"assistant","text":"…"}, …]}

each without the time `ts`, which the parser adds. Whatever an agent prints is inside a string of such a line, so
nothing of it can be mistaken for a line of ours.

`text`, for people. No line of it begins like one of ours or of Paperclip's.

What an agent writes to stderr is text in both; OpenCode's own DEBUG and INFO lines are left out.
Source: `TranscriptEntry` of `@paperclipai/adapter-utils` 2026.916.1.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import dropwhile, filterfalse, islice
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from agent_runs.transcript.entries import TERMINAL_LIMITS, Entry, Limits, Step, entry
from agent_runs.transcript.events import decode, printable
from agent_runs.transcript.store import Line

LogFormat = Literal["json", "text"]
FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)
Stream = Literal["stdout", "stderr"]

CALL_BYTES: Final = 8000
"""Bytes of one call, newline included, are below this."""
PIECE_BYTES: Final = CALL_BYTES - 200
"""The rest is for what surrounds a piece."""
MARKS: Final = ("[agent-runs]", "[paperclip]")
"""Beginnings of lines that an agent must not write: the plugin's and Paperclip's."""
OWN_TYPE: Final = "agent_run"
"""`type` of the lines that are ours: of the plugin, and of what is made here for its parser."""

_LIMITS: Final = tuple(
    Limits(text=size, thinking=size, result=size, result_lines=200, arguments=size) for size in (6000, 2000, 700, 80)
)
"""Of entries as JSON, one after the other until each entry fits into a call."""
_SESSION_LIMIT: Final = 128
_ORDINARY_LOG: Final = re.compile(
    r"(?:timestamp=\S+ +level=(?:DEBUG|INFO)\b|(?:DEBUG|INFO) +[0-9]{4}-[0-9]{2}-[0-9]{2}T)"
)
"""OpenCode's log lines that report nothing wrong; both of its formats."""
_ORDINARY_ENDS: Final = frozenset({"stop", "tool-calls", "step_finish", "end_turn", "unknown", "no finish reason"})
"""Reasons for which a step ends as it should."""
_LONGEST_MARK: Final = max(map(len, MARKS))
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that look like a blank."""
_CONTINUATION: Final = range(0x80, 0xC0)
"""Bytes of a character of UTF-8 after its first."""


class Call(NamedTuple):
    """One call of Paperclip's log: `text` is without the newline at its end; in `text` it may have several lines."""

    stream: Stream
    text: str


def calls(line: Line, log_format: LogFormat) -> Iterator[Call]:
    """The calls for one line, in order, one by one; none for a line that is not shown. Never raises."""
    if log_format == "json" and line.stream != "stderr":
        return _entry_calls(line)
    shown = entry(line.data, line.stream, TERMINAL_LIMITS)
    return _text_calls(shown, line.stream) if shown is not None else iter(())


def session_id(line: Line) -> str | None:
    """The agent's session that an event names, at most 128 characters."""
    event = decode(line.data) if line.stream == "stdout" else None
    return printable(event.session_id, _SESSION_LIMIT) or None if event is not None and event.session_id else None


# as entries of Paperclip's transcript view


def _entry_calls(line: Line) -> Iterator[Call]:
    """The entries of a line, as many to a call as fit into it."""
    encoded: Sequence[bytes] = ()
    for limits in _LIMITS:
        shown = entry(line.data, line.stream, limits)
        encoded = [msgspec.json.encode(each) for each in _transcript_entries(shown)] if shown is not None else ()
        if all(len(each) <= PIECE_BYTES for each in encoded):
            break
    call: list[bytes] = []
    for each in encoded:
        if call and sum(map(len, call)) + len(call) + len(each) > PIECE_BYTES:
            yield _call_of(call)
            call = []
        call.append(each)
    if call:
        yield _call_of(call)


def _call_of(encoded: Sequence[bytes]) -> Call:
    return Call("stdout", f'{{"type":"{OWN_TYPE}","entries":[{b",".join(encoded).decode()}]}}')


def _transcript_entries(shown: Entry) -> Iterator[dict[str, Any]]:
    match shown.kind:
        case "text":
            yield {"kind": "assistant", "text": _body(shown)}
        case "thinking":
            yield {"kind": "thinking", "text": _body(shown)}
        case "tool" if (called := shown.call) is not None:
            name = {"name": called.name, "toolUseId": called.id or called.name}
            yield {"kind": "tool_call", **name, "input": called.arguments}
            if not shown.running:
                result = {"toolUseId": called.id or called.name, "toolName": called.name, "isError": shown.failed}
                yield {"kind": "tool_result", **result, "content": _body(shown) or "Done"}
        case "error":
            yield {"kind": "stderr", "text": _error(shown)}
        case "gap":
            yield {"kind": "stderr", "text": shown.title}
        case "step":
            if shown.step is not None:
                yield _step_end(shown.step)
        case _:
            yield {"kind": "stdout", "text": _whole(shown)}


def _step_end(step: Step) -> dict[str, Any]:
    return {
        "kind": "result",
        "text": f"Step finished: {step.reason}",
        "inputTokens": step.input,
        "outputTokens": step.output + step.reasoning,
        "cachedTokens": step.cached,
        "costUsd": step.cost,
        "subtype": step.reason,
        "isError": False,
        "errors": [],
    }


def _body(shown: Entry) -> str:
    more = f"… {shown.left_out} more characters; the transcript has them" if shown.left_out else ""
    return "\n".join(filter(None, (shown.body, more)))


def _whole(shown: Entry) -> str:
    return "\n".join(filter(None, (shown.title, _body(shown))))


def _error(shown: Entry) -> str:
    return ": ".join(filter(None, ("" if shown.title == "error" else shown.title, _body(shown))))


# as text


def _text_calls(shown: Entry, stream: str) -> Iterator[Call]:
    target, text = _text_of(shown, stream)
    protected = "\n".join(map(_without_mark, text.split("\n")))
    if protected.strip():
        yield from (Call(target, part) for part in _packed(protected))


def _text_of(shown: Entry, stream: str) -> Call:
    match shown.kind:
        case "text":
            return Call("stdout", _body(shown))
        case "thinking":
            return Call("stdout", f"(thinking) {_body(shown)}")
        case "tool" if (called := shown.call) is not None:
            head = f"> {called.name}: {called.subject}" if called.subject else f"> {called.name}"
            result = f"{'failed: ' if shown.failed else ''}{_body(shown)}"
            return Call("stdout", "\n".join([head, *(f"  {line}" for line in result.split("\n") if result)]))
        case "error":
            return Call("stderr", f"error: {_error(shown)}")
        case "gap":
            return Call("stderr", shown.title)
        case "step":
            unusual = shown.step is not None and shown.step.reason not in _ORDINARY_ENDS
            return Call("stdout", f"(step ended: {shown.step.reason})" if shown.step and unusual else "")
        case "log" if stream == "stderr":
            return Call("stderr", "" if _ORDINARY_LOG.match(shown.title) else _whole(shown))
        case _:
            return Call("stdout", _whole(shown))


def _packed(text: str) -> Iterator[str]:
    """A text in calls: whole lines, and the pieces of one that is too long for a call, each after the first marked."""
    call: list[bytes] = []
    for line in text.split("\n"):
        for piece in _pieces(line.encode()):
            if call and sum(map(len, call)) + len(call) + len(piece) > PIECE_BYTES:
                yield b"\n".join(call).decode()
                call = []
            call.append(piece)
    yield b"\n".join(call).decode()


def _pieces(line: bytes) -> Iterator[bytes]:
    """The line in pieces that fit into a call; none ends inside a character."""
    start, mark = 0, b""
    while start < len(line) or start == 0:
        end = min(start + PIECE_BYTES - len(mark), len(line))
        while end < len(line) and line[end] in _CONTINUATION:
            end -= 1
        yield mark + line[start:end]
        start, mark = end or 1, "… ".encode()


def _without_mark(line: str) -> str:
    """The line, with a bar before it when it begins like one of ours or of Paperclip's."""
    visible = dropwhile(_is_blank, filterfalse(_is_unseen, line))
    begin = unicodedata.normalize("NFKC", "".join(islice(visible, _LONGEST_MARK))).lower()
    return f"| {line}" if begin.startswith(MARKS) or _may_be_parsed(line) else line


def _may_be_parsed(line: str) -> bool:
    """Whether the plugin's parser, where a browser loads it, could take the line, or a piece of it, for one of ours."""
    return line.lstrip().startswith("{") and (OWN_TYPE in line or "\\u" in line)


def _is_blank(character: str) -> bool:
    return character.isspace() or character in _BLANK_LETTERS


def _is_unseen(character: str) -> bool:
    """Whether it may stand between the characters of a mark without being seen."""
    return not character.isascii() and unicodedata.category(character) in {"Cf", "Mn"}
