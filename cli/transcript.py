"""OpenCode's output as a person reads it: pure functions from one stored line to something rich can print.

Agent output is hostile: ANSI codes, control and direction characters never reach the terminal, rich's own markup is
not interpreted, links are shown as text, and each entry is bounded. The whole line is always in the transcript.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeGuard

import msgspec
from markdown_it import MarkdownIt
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from opencode.events import LINE_LIMIT, printable

Kind = Literal["text", "thinking", "tool", "error", "step", "log"]

WORDS: Final = 12_000
"""Characters of one assistant text."""
THOUGHT: Final = 4_000
RESULT: Final = 2_000
"""Characters of a tool's result, of at most `RESULT_LINES` lines."""
RESULT_LINES: Final = 15
TITLE: Final = 160
LOG: Final = 1_000

_DIRECTIONS: Final = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF])
"""Characters that turn the direction of text: they make a terminal show something else than what is there."""
_BREAKS: Final = dict.fromkeys([0x85, 0x2028, 0x2029], "\n")
_VISIBLE: Final = {**_DIRECTIONS, **_BREAKS}
_SUBJECTS: Final = ("command", "filePath", "path", "pattern", "url", "description", "query", "name")
"""What a tool call is about, by the names of its arguments, the most telling first."""


@dataclass(frozen=True)
class Entry:
    """One thing that happened, as text that is safe to show.

    Attributes:
        title: one line; empty for plain text.
        body: Markdown for `text`, plain for everything else.
        left_out: characters of the body that are not shown.
        failed: a tool call that ended in an error or with an exit code other than 0.
    """

    kind: Kind
    title: str = ""
    body: str = ""
    left_out: int = 0
    failed: bool = False
    took: timedelta | None = None


def entry(raw: bytes, stream: str = "stdout") -> Entry | None:
    """The entry for one line of output, or None for a line that tells a person nothing. Never raises."""
    if stream != "stdout":
        return _log(raw)
    event = found_object(raw)
    if event is None or not isinstance(event.get("type"), str):
        return _log(raw)
    part = _object(event.get("part"))
    match event["type"]:
        case "step_start":
            return None
        case "text":
            return _words("text", part.get("text"), WORDS)
        case "reasoning":
            return _words("thinking", part.get("text"), THOUGHT)
        case "tool_use":
            return _tool(part)
        case "step_finish":
            return Entry("step", _usage(part))
        case "error":
            return _error(event)
        case other:
            return Entry("log", _line(f"{other} event", TITLE))


def found_object(raw: bytes) -> dict[str, Any] | None:
    """The JSON object on a line, or None. Lone surrogates and invalid UTF-8 are tolerated."""
    if len(raw) > LINE_LIMIT:
        return None
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:
            found = json.loads(raw.decode("utf-8", errors="replace"), parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


def rendered(entry: Entry) -> RenderableType:
    """The entry for a terminal."""
    match entry.kind:
        case "text":
            return Group(*_with_note(_Words(entry.body), entry))
        case "thinking":
            return Padding(Group(*_with_note(Text(entry.body, style="dim italic"), entry)), (0, 0, 0, 2))
        case "tool":
            return _rendered_tool(entry)
        case "error":
            return Group(Text(f"✗ {entry.title}", style="bold red"), *_indented(entry, style="red"))
        case "step":
            return Text(f"── {entry.title}", style="dim")
        case "log":
            return Text(entry.title, style="dim")


def as_json(entry: Entry) -> dict[str, object]:
    """The entry as plain data: the same text that a terminal shows."""
    return {
        "kind": entry.kind,
        "title": entry.title,
        "body": entry.body,
        "leftOut": entry.left_out,
        "failed": entry.failed,
        "seconds": entry.took.total_seconds() if entry.took is not None else None,
    }


# reading


def _words(kind: Kind, value: object, limit: int) -> Entry | None:
    body, left_out = _bounded(_visible(value), limit)
    return Entry(kind, body=body, left_out=left_out) if body.strip() else None


def _log(raw: bytes) -> Entry | None:
    text = _line(raw[: 4 * LOG].decode("utf-8", errors="replace"), LOG)
    return Entry("log", text) if text else None


def _tool(part: dict[str, Any]) -> Entry:
    state = _object(part.get("state"))
    exit_code = _object(state.get("metadata")).get("exit")
    failed = state.get("status") == "error" or part.get("tool") == "invalid" or exit_code not in (None, 0)
    told = state.get("error") if state.get("status") == "error" else state.get("output")
    body, left_out = _bounded(_visible(told).strip("\n"), RESULT, RESULT_LINES)
    title = _call(part, state)
    if isinstance(exit_code, int) and exit_code:
        title += f"  (exit {exit_code})"
    return Entry("tool", title, body, left_out, failed, _took(state))


def _call(part: dict[str, Any], state: dict[str, Any]) -> str:
    """`bash  ls -l`: the tool and what it was called with, on one line."""
    given = _object(state.get("input"))
    tool = _line(part.get("tool"), 40) or "tool"
    if tool == "invalid":
        return f"refused call of {_line(given.get('tool'), 40) or 'a tool'}"
    subject = next((given[name] for name in _SUBJECTS if isinstance(given.get(name), str) and given[name]), None)
    return f"{tool}  {_line(subject or state.get('title'), TITLE)}".rstrip()


def _took(state: dict[str, Any]) -> timedelta | None:
    clock = _object(state.get("time"))
    began, ended = clock.get("start"), clock.get("end")
    if not (_is_number(began) and _is_number(ended)) or not 0 <= ended - began < 1e12:
        return None
    return timedelta(milliseconds=ended - began)


def _usage(part: dict[str, Any]) -> str:
    tokens = _object(part.get("tokens"))
    cached = _object(tokens.get("cache")).get("read")
    shares = [(tokens.get("input"), "in"), (cached, "cached"), (tokens.get("output"), "out")]
    shares.append((tokens.get("reasoning"), "reasoning"))
    told = [f"{count:,.0f} {name}" for count, name in shares if _is_number(count) and count]
    cost = part.get("cost")
    if _is_number(cost) and cost:
        told.append(f"${cost:.4f}")
    return ", ".join([*told, _line(part.get("reason"), 40) or "no finish reason"])


def _error(event: dict[str, Any]) -> Entry:
    error = event.get("error")
    named = _object(error)
    facts = _object(named.get("data"))
    status = facts.get("statusCode")
    title = " ".join([_line(named.get("name"), 60) or "error", *([str(status)] if isinstance(status, int) else [])])
    text = facts.get("message") or named.get("message") or event.get("message") or error
    body, left_out = _bounded(_visible(text), RESULT, RESULT_LINES)
    return Entry("error", title, body, left_out, failed=True)


def _visible(value: object) -> str:
    """Text without anything that a terminal would act on."""
    if not isinstance(value, str):
        return "" if value is None else _visible(json.dumps(value, default=str)[: LINE_LIMIT // 16])
    return printable(value.translate(_VISIBLE), len(value))


def _line(value: object, limit: int) -> str:
    """The same on one line."""
    text = value[: 8 * limit] if isinstance(value, str) else value
    return printable(" ".join(_visible(text).split()), limit)


def _bounded(text: str, limit: int, lines: int | None = None) -> tuple[str, int]:
    """The beginning of `text`, and how many characters of it are missing."""
    kept = text[:limit]
    if lines is not None:
        kept = "\n".join(kept.split("\n", lines)[:lines])
    return kept, len(text) - len(kept)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


# rendering


class _Words(Markdown):
    """Markdown in which HTML is text: rich would leave it out, and links are shown, not hidden behind words."""

    _parser: Final = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])

    def __init__(self, markup: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = markup
        self.parsed = self._parser.parse(markup)


def _rendered_tool(entry: Entry) -> RenderableType:
    head = Text("✗ " if entry.failed else "▸ ", style="red" if entry.failed else "cyan")
    head.append(entry.title, style="bold")
    if entry.took is not None:
        head.append(f"  {entry.took.total_seconds():.1f} s", style="dim")
    return Group(head, *_indented(entry, style="red" if entry.failed else "dim"))


def _indented(entry: Entry, style: str) -> Iterable[RenderableType]:
    if entry.body:
        yield Padding(Group(*_with_note(Text(entry.body, style=style), entry)), (0, 0, 0, 4))


def _with_note(shown: RenderableType, entry: Entry) -> Iterable[RenderableType]:
    yield shown
    if entry.left_out:
        yield Text(f"… {entry.left_out:,} more characters", style="dim")
