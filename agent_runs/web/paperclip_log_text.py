"""A line of an agent as a person reads it in a run's log in Paperclip, where no parser shows JSON lines.

Agent output is hostile: what is shown of it is bounded, has no ANSI codes, control or direction characters, and no line
of it begins like one of ours or of Paperclip's. OpenCode's own INFO lines are left out. The transcript has everything.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from itertools import dropwhile, filterfalse, islice
from typing import Any, Final, Literal, NamedTuple

from agent_runs.agents.opencode.entries import SUBJECTS, entry
from agent_runs.contracts.outcome import GAP_STREAM
from agent_runs.transcripts.store import Line

Stream = Literal["stdout", "stderr"]

EVENT_LIMIT: Final = 512 * 1024
"""Characters of a line up to which it is parsed; OpenCode's own events stay below."""

OWN_TYPE: Final = "agent_run"
"""`type` of the status lines that the plugin writes."""

MARKS: Final = ("[agent-runs]", "[paperclip]")
"""Beginnings of lines that an agent must not write: the plugin's and Paperclip's."""

_BLANKS: Final = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""What JavaScript's `trim` removes, which Paperclip's parsers call before they parse a line."""

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BREAKS: Final = re.compile("\r\n|[\r\v\f\u0085\u2028\u2029]")
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
"""Control characters except tab and LF, invisible characters, and those that turn the direction of text."""
_HALF_CHARACTERS: Final = re.compile("[\ud800-\udfff]")
_LONGEST_MARK: Final = max(map(len, MARKS))
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that look like a blank."""
_ORDINARY_LOG: Final = re.compile(
    r"(?:timestamp=\S+ +level=(?:DEBUG|INFO)\b|(?:DEBUG|INFO) +[0-9]{4}-[0-9]{2}-[0-9]{2}T)"
)
"""OpenCode's log lines that report nothing wrong; both of its formats."""
_ORDINARY_ENDS: Final = frozenset({"stop", "tool-calls", "step_finish", "end_turn", "unknown"})
"""Reasons for which a step ends as it should."""
_DIFF_LINES: Final = 200


class _Limit(NamedTuple):
    characters: int
    lines: int


_TEXT: Final = _Limit(12_000, 400)
_THINKING: Final = _Limit(4_000, 100)
_RESULT: Final = _Limit(2_000, 15)
_RAW: Final = _Limit(1_000, 15)
_SUBJECT_LIMIT: Final = 300


class Shown(NamedTuple):
    """Text for one or more calls of the log, at most some 13,000 characters; several lines are possible."""

    stream: Stream
    text: str


def readable(line: Line) -> Iterator[Shown]:
    """One line of an agent as a person reads it; nothing for a line that means nothing to a person. Never raises."""
    for stream, text in _shown(line):
        protected = "\n".join(map(_without_mark, text.split("\n")))
        if protected.strip():
            yield Shown(stream, protected)


def decoded(data: bytes) -> str | None:
    """The line as text, bytes that are not UTF-8 replaced; None for one that is too long to be parsed."""
    if len(data) > 4 * EVENT_LIMIT:
        return None
    text = data.decode("utf-8", errors="replace")
    return text if len(text) <= EVENT_LIMIT else None


def parsed(text: str) -> dict[str, Any] | None:
    """The JSON object on a line, as JavaScript's `JSON.parse` reads it; None for everything else.

    Raises:
        RecursionError: it is nested too deeply for this parser; another one may read it.
    """
    stripped = text.strip(_BLANKS)
    if not stripped.startswith("{"):
        return None
    try:
        document = json.loads(stripped, parse_int=_number, parse_constant=_refuse)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def event_type(event: dict[str, Any] | None) -> str | None:
    """The type of an agent's event; None for anything else, also for what has the form of our own status lines."""
    kind = (event or {}).get("type")
    return kind if isinstance(kind, str) and kind != OWN_TYPE else None


def _number(digits: str) -> int | float:
    """As JavaScript: any number of digits, beyond 64 bits not exact."""
    return int(digits) if len(digits) < 18 else float(digits)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _shown(line: Line) -> Iterator[Shown]:
    if line.stream == GAP_STREAM:
        gap = entry(line.data, GAP_STREAM)
        return iter([Shown("stderr", gap.title)] if gap else [])
    if line.stream == "stderr":
        return _log_line(line.data)
    text = decoded(line.data)
    if text is None:
        return iter([Shown("stdout", f"(a line of {len(line.data)} bytes; the transcript has it)")])
    try:
        event = parsed(text)
    except RecursionError:
        event = None
    kind = event_type(event)
    if event is None or kind is None:
        return iter([Shown("stdout", _bounded(text, _RAW))])
    return _event(kind, event)


def _log_line(data: bytes) -> Iterator[Shown]:
    text = _one_line(data[: 16 * _RAW.characters].decode("utf-8", errors="replace"), _RAW.characters)
    if not _ORDINARY_LOG.match(text):
        yield Shown("stderr", text)


def _event(kind: str, event: dict[str, Any]) -> Iterator[Shown]:
    part = _object(event.get("part"))
    match kind:
        case "text":
            yield from _prose(_text(part.get("text")))
        case "reasoning":
            yield from _thinking(_text(part.get("text")))
        case "thinking":
            thought = part.get("thinking")
            yield from _thinking(thought if isinstance(thought, str) else _text(part.get("text")))
        case "assistant" | "user":
            for block in _blocks(part):
                yield from _block(kind, block)
        case "tool_use":
            yield from _tool(part)
        case "step_finish":
            yield from _step_end(_text(part.get("reason")) or "step_finish")
        case "error":
            yield from _error(event)


def _prose(text: str) -> Iterator[Shown]:
    if text.strip():
        yield Shown("stdout", _bounded(text, _TEXT))


def _thinking(text: str) -> Iterator[Shown]:
    if text.strip():
        yield Shown("stdout", f"(thinking) {_bounded(text.strip(), _THINKING)}")


def _step_end(reason: str) -> Iterator[Shown]:
    if reason not in _ORDINARY_ENDS:
        yield Shown("stdout", f"(step ended: {_one_line(reason, _SUBJECT_LIMIT)})")


def _blocks(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Blocks of an `assistant` or `user` event: older spellings of OpenCode's events."""
    content = (_object(part["message"]) if "message" in part else part).get("content")
    return map(_object, content if isinstance(content, list) else [content])


def _block(kind: str, block: dict[str, Any]) -> Iterator[Shown]:
    match kind, block.get("type"):
        case "assistant", "text":
            yield from _prose(_text(block.get("text")).strip())
        case "assistant", "thinking":
            yield from _thinking(_text(block.get("thinking")) or _text(block.get("text")))
        case "user", "tool_result":
            content = block.get("content")
            parts = content if isinstance(content, list) else []
            result = content if isinstance(content, str) else "".join(_text(_object(one).get("text")) for one in parts)
            yield _result(result, failed=block.get("is_error") is True)


def _tool(part: dict[str, Any]) -> Iterator[Shown]:
    state = _object(part.get("state"))
    name = _text(part.get("tool")) or _text(part.get("type")) or "tool"
    arguments = state.get("description") if state.get("input") is None else state["input"]
    yield Shown("stdout", f"> {_one_line(f'{name}: {_subject(arguments)}', _SUBJECT_LIMIT)}")
    metadata = _object(state.get("metadata"))
    match state.get("status"):
        case "error":
            yield _result(_text(state.get("error")).strip() or "Tool error", failed=True)
        case "completed" | "done":
            output = _text(state.get("output")).strip()
            content = output or _text(state.get("description")) or _text(state.get("title")) or "Done"
            yield _result(content, failed=_is_number(metadata.get("exit")) and metadata["exit"] != 0)
            if changes := _diff(metadata.get("diff")):
                yield _result(changes)


def _result(content: str, *, failed: bool = False) -> Shown:
    text = _bounded(f"{'failed: ' if failed else ''}{content}", _RESULT)
    return Shown("stdout", "\n".join(f"  {line}" for line in text.split("\n")))


def _subject(arguments: object) -> str:
    """What a tool call is about."""
    if isinstance(arguments, str):
        return arguments
    if not isinstance(arguments, dict | list):
        return ""
    named = map(_object(arguments).get, SUBJECTS)
    return next((subject for subject in named if isinstance(subject, str)), None) or _compact(arguments)


def _diff(patch: object) -> str:
    if not isinstance(patch, str) or not patch.strip():
        return ""
    lines = patch.removesuffix("\n").split("\n")
    more = [f"{len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
    return "\n".join(lines[:_DIFF_LINES] + more)


def _error(event: dict[str, Any]) -> Iterator[Shown]:
    error = next((value for value in (event.get("error"), event.get("message")) if value is not None), event)
    fields = _object(error)
    texts = (
        error,
        fields.get("message"),
        _object(fields.get("data")).get("message"),
        fields.get("name"),
        fields.get("code"),
    )
    message = next((text.strip() for text in map(_text, texts) if text.strip()), "")
    if message or fields:
        yield Shown("stderr", f"error: {_bounded(message or _compact(fields), _RESULT)}")


def _bounded(text: str, limit: _Limit) -> str:
    """The beginning of a text, cleaned, with the size of what is left out."""
    lines = _cleaned(text[: limit.characters]).split("\n")
    shown = "\n".join(lines[: limit.lines])
    more = max(len(text) - limit.characters, 0) + len("\n".join(lines[limit.lines :]))
    return f"{shown}\n… {more} more characters; the transcript has them" if more else shown


def _one_line(text: str, limit: int) -> str:
    line = re.sub(r"\s+", " ", _cleaned(text[: 4 * limit]))
    return f"{line[: limit - 1]}…" if len(line) > limit else line


def _cleaned(text: str) -> str:
    """Without ANSI codes, control, invisible and direction characters; every kind of line break is LF."""
    visible = _HIDDEN.sub("", _BREAKS.sub("\n", _ANSI.sub("", text)))
    return _HALF_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", visible).lstrip("\n").rstrip()


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


def _compact(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "(nested too deeply)"


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
