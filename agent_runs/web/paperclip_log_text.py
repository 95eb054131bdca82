"""A line of an agent as a person reads it in a run's log in Paperclip, where no parser shows JSON lines: its entries
(`agent_runs.web.paperclip_entries`) as text.

Agent output is hostile: what is shown of it is bounded, has no ANSI codes, control or direction characters, and no line
of it begins like one of ours or of Paperclip's. OpenCode's own INFO lines are left out. The transcript has everything.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import dropwhile, filterfalse, groupby, islice
from operator import itemgetter
from typing import Final, NamedTuple

from agent_runs.contracts.outcome import GAP_STREAM
from agent_runs.paperclip.javascript import well_formed
from agent_runs.transcript.entries import SUBJECTS
from agent_runs.transcript.store import Line
from agent_runs.web.paperclip_entries import BLANKS, OWN_TYPE, Stream, TranscriptEntry, compact, entries

MARKS: Final = ("[agent-runs]", "[paperclip]")
"""Beginnings of lines that an agent must not write: the plugin's and Paperclip's."""

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BREAKS: Final = re.compile("\r\n|[\r\v\f\u0085\u2028\u2029]")
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
"""Control characters except tab and LF, invisible characters, and those that turn the direction of text."""
_LONGEST_MARK: Final = max(map(len, MARKS))
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that look like a blank."""
_ORDINARY_LOG: Final = re.compile(
    r"(?:timestamp=\S+ +level=(?:DEBUG|INFO)\b|(?:DEBUG|INFO) +[0-9]{4}-[0-9]{2}-[0-9]{2}T)"
)
"""OpenCode's log lines that report nothing wrong; both of its formats."""
_ORDINARY_ENDS: Final = frozenset({"stop", "tool-calls", "step_finish", "end_turn", "unknown"})
"""Reasons for which a step ends as it should."""


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


def _shown(line: Line) -> Iterator[Shown]:
    if line.stream == "stderr":
        yield from _log_line(line.data)
    elif line.stream == GAP_STREAM:
        yield from (Shown("stderr", gap["text"]) for gap in entries(line))
    else:
        for kind, found in groupby(entries(line), key=itemgetter("kind")):
            if kind == "diff":
                yield _result("\n".join(change["text"] for change in found))
            else:
                yield from map(_entry, found)


def _log_line(data: bytes) -> Iterator[Shown]:
    text = _one_line(data[: 16 * _RAW.characters].decode("utf-8", errors="replace"), _RAW.characters)
    if not _ORDINARY_LOG.match(text):
        yield Shown("stderr", text)


def _entry(entry: TranscriptEntry) -> Shown:
    match entry["kind"]:
        case "assistant":
            return Shown("stdout", _bounded(entry["text"], _TEXT))
        case "thinking":
            return Shown("stdout", f"(thinking) {_bounded(entry['text'], _THINKING)}")
        case "stderr":
            return Shown("stderr", f"error: {_bounded(entry['text'], _RESULT)}")
        case "tool_call":
            call = f"{entry['name']}: {_subject(entry['input'])}"
            return Shown("stdout", f"> {_one_line(call, _SUBJECT_LIMIT)}")
        case "tool_result":
            return _result(entry["content"], failed=entry["isError"])
        case "result" if entry["subtype"] not in _ORDINARY_ENDS:
            return Shown("stdout", f"(step ended: {_one_line(entry['subtype'], _SUBJECT_LIMIT)})")
        case "stdout":
            return Shown("stdout", _bounded(entry["text"], _RAW))
    return Shown("stdout", "")  # the begin and the ordinary end of a step


def _result(content: str, *, failed: bool = False) -> Shown:
    text = _bounded(f"{'failed: ' if failed else ''}{content}", _RESULT)
    return Shown("stdout", "\n".join(f"  {line}" for line in text.split("\n")))


def _subject(arguments: object) -> str:
    """What a tool call is about."""
    if isinstance(arguments, str):
        return arguments
    if not isinstance(arguments, dict | list):
        return ""
    named = map(arguments.get, SUBJECTS) if isinstance(arguments, dict) else ()
    return next((subject for subject in named if isinstance(subject, str)), None) or compact(arguments)


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
    return well_formed(visible).lstrip("\n").rstrip()


def _without_mark(line: str) -> str:
    """The line, with a bar before it when it begins like one of ours or of Paperclip's."""
    visible = dropwhile(_is_blank, filterfalse(_is_unseen, line))
    begin = unicodedata.normalize("NFKC", "".join(islice(visible, _LONGEST_MARK))).lower()
    return f"| {line}" if begin.startswith(MARKS) or _may_be_parsed(line) else line


def _may_be_parsed(line: str) -> bool:
    """Whether the plugin's parser, where a browser loads it, could take the line, or a piece of it, for one of ours."""
    return line.lstrip(BLANKS).startswith("{") and (OWN_TYPE in line or "\\u" in line)


def _is_blank(character: str) -> bool:
    return character.isspace() or character in _BLANK_LETTERS


def _is_unseen(character: str) -> bool:
    """Whether it may stand between the characters of a mark without being seen."""
    return not character.isascii() and unicodedata.category(character) in {"Cf", "Mn"}
