"""The calls of Paperclip's log for one stored line: what the plugin passes on, without a rule of its own.

A call is one text below 8000 bytes of UTF-8 with the newline that the plugin adds: Paperclip cuts longer ones and shows
the last 8 KiB of one. Both formats show the line's entry (`agent_runs.transcript.entries`), cleaned and bounded, with
the number of characters that are missing; the transcript has everything.

`events`, for a parser, the plugin's or that of Paperclip's own OpenCode adapter: events of the form that `opencode run
--format json` writes (`text`, `reasoning`, `tool_use`, `step_finish`, `error`), and the rest as text.

`text`, for people.

No line of text begins like one of ours or of Paperclip's. Of what an agent writes to stderr OpenCode's own DEBUG and
INFO lines are left out.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import dropwhile, filterfalse, islice
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from agent_runs.transcript.entries import TERMINAL_LIMITS, Entry, Limits, ToolCall, entry, json_object, visible_line
from agent_runs.transcript.events import as_object, decode, printable
from agent_runs.transcript.store import Line

LogFormat = Literal["events", "text"]
FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)
Stream = Literal["stdout", "stderr"]

CALL_BYTES: Final = 8000
"""Bytes of one call, newline included, are below this."""
PIECE_BYTES: Final = CALL_BYTES - 200
"""The rest is for what surrounds a piece."""
MARKS: Final = ("[agent-runs]", "[paperclip]")
"""Beginnings of lines that an agent must not write: the plugin's and Paperclip's."""

_LIMITS: Final = tuple(
    Limits(text=size, thinking=size, result=size, result_lines=200, arguments=size)
    for size in (6000, 3000, 1500, 700, 80)
)
"""Of events, one after the other until the event fits into a call."""
_SESSION_LIMIT: Final = 128
_TOOL_LIMIT: Final = 80
_TOOL_HEAD: Final = 40
_TOOL_LINE: Final = re.compile(rb'\{"type":"tool_(running|use)"')
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
    event = _event_call(line) if log_format == "events" and line.stream == "stdout" else None
    if event is not None:
        yield event
    elif (shown := entry(line.data, line.stream, TERMINAL_LIMITS)) is not None:
        yield from _text_calls(shown, line.stream)


def session_id(line: Line) -> str | None:
    """The agent's session that an event names, at most 128 characters."""
    event = decode(line.data) if line.stream == "stdout" else None
    return printable(event.session_id, _SESSION_LIMIT) or None if event is not None and event.session_id else None


def tool(line: Line) -> str | None:
    """The tool that begins with this line, for people; empty: one ends with it. None: neither."""
    kind = _TOOL_LINE.match(line.data[:_TOOL_HEAD]) if line.stream == "stdout" else None
    if kind is None:
        return None
    part = as_object((json_object(line.data) or {}).get("part")) if kind[1] == b"running" else {}
    named = [visible_line(part.get(name), _TOOL_LIMIT) for name in ("tool", "title")]
    return ": ".join(filter(None, named))


# as events


def _event_call(line: Line) -> Call | None:
    """The one call of an entry that has the form of an event; None for any other."""
    for limits in _LIMITS:
        shown = entry(line.data, line.stream, limits)
        event = _event(shown) if shown is not None else None
        if event is None:
            return None
        encoded = msgspec.json.encode(event)
        if len(encoded) <= PIECE_BYTES:
            return Call("stdout", encoded.decode())
    return None


def _event(shown: Entry) -> dict[str, Any] | None:
    match shown.kind:
        case "text":
            return {"type": "text", "part": {"type": "text", "text": _body(shown)}}
        case "thinking":
            return {"type": "reasoning", "part": {"type": "reasoning", "text": _body(shown)}}
        case "tool" if (called := shown.call) is not None:
            part = {"type": "tool", "tool": called.name, "callID": called.id or called.name}
            return {"type": "tool_use", "part": {**part, "state": _state(shown, called)}}
        case "step" if (step := shown.step) is not None:
            cache = {"read": step.cached, "write": 0}
            tokens = {"input": step.input, "output": step.output, "reasoning": step.reasoning, "cache": cache}
            return {"type": "step_finish", "part": {"reason": step.reason, "cost": step.cost, "tokens": tokens}}
        case "error":
            return {"type": "error", "error": {"name": shown.title, "data": {"message": _error(shown)}}}
    return None


def _state(shown: Entry, called: ToolCall) -> dict[str, Any]:
    """Of a call; a shell command that failed is an error here, because the parsers do not look at exit codes."""
    if shown.running:
        return {"status": "running", "input": called.arguments}
    if shown.failed:
        return {"status": "error", "input": called.arguments, "error": _body(shown) or "failed"}
    return {"status": "completed", "input": called.arguments, "output": _body(shown)}


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
            reason = shown.step.reason if shown.step is not None else "stop"  # the step is a sub-agent's
            return Call("stdout", "" if reason in _ORDINARY_ENDS else f"(step ended: {reason})")
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
    return f"| {line}" if begin.startswith(MARKS) else line


def _is_blank(character: str) -> bool:
    return character.isspace() or character in _BLANK_LETTERS


def _is_unseen(character: str) -> bool:
    """Whether it may stand between the characters of a mark without being seen."""
    return not character.isascii() and unicodedata.category(character) in {"Cf", "Mn"}
