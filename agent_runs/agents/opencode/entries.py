"""OpenCode's output as a person reads it: one line of it to one bounded entry of plain text.

Agent output is hostile: ANSI codes, control and direction characters do not reach the text, and each entry is bounded.
Whoever shows an entry escapes it for its own medium. The whole line is always in the transcript.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeGuard

import msgspec

from agent_runs.agents.opencode.events import printable
from agent_runs.contracts.outcome import GAP_STREAM
from agent_runs.contracts.output import LINE_LIMIT

Kind = Literal["text", "thinking", "tool", "error", "step", "log", "gap"]

ENTRY_TITLE_LIMIT: Final = 160
LOG_LIMIT: Final = 1_000


@dataclass(frozen=True)
class Limits:
    """Characters of an entry that are shown.

    Attributes:
        text: of one assistant text.
        thinking: of one text of reasoning.
        result: of a tool's result or an error, of at most `result_lines` lines.
        arguments: of what a tool was called with; 0 leaves it out.
    """

    text: int = 12_000
    thinking: int = 4_000
    result: int = 2_000
    result_lines: int = 15
    arguments: int = 0


TERMINAL_LIMITS: Final = Limits()

_DIRECTIONS: Final = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF])
"""Characters that turn the direction of text: they make people see something else than what is there."""
_BREAKS: Final = dict.fromkeys([0x85, 0x2028, 0x2029], "\n")
_VISIBLE: Final = {**_DIRECTIONS, **_BREAKS}
SUBJECTS: Final = ("command", "filePath", "path", "pattern", "url", "description", "query", "name")
"""Arguments that show what a tool call is about, the most useful first."""


@dataclass(frozen=True)
class Entry:
    """One thing that happened, as text that is safe to show.

    Attributes:
        title: one line; empty for plain text.
        body: Markdown for `text`, plain for everything else.
        left_out: characters of the body that are not shown.
        failed: a tool call that ended in an error or with an exit code other than 0.
        duration: of a tool call.
        arguments: what a tool was called with.
    """

    kind: Kind
    title: str = ""
    body: str = ""
    left_out: int = 0
    failed: bool = False
    duration: timedelta | None = None
    arguments: str = ""


def entry(raw: bytes, stream: str = "stdout", limits: Limits = TERMINAL_LIMITS) -> Entry | None:
    """The entry for one line of output, or None for a line that means nothing to a person. Never raises."""
    if stream == GAP_STREAM:
        return _gap(raw)
    event = json_object(raw) if stream == "stdout" else None
    if event is None or not isinstance(event.get("type"), str):
        return _log(raw)
    part = _object(event.get("part"))
    match event["type"]:
        case "step_start":
            return None
        case "text":
            return _prose("text", part.get("text"), limits.text)
        case "reasoning":
            return _prose("thinking", part.get("text"), limits.thinking)
        case "tool_use":
            return _tool(part, limits)
        case "step_finish":
            return Entry("step", _usage(part))
        case "error":
            return _error(event, limits)
        case other:
            return Entry("log", _line(f"{other} event", ENTRY_TITLE_LIMIT))


def json_object(raw: bytes) -> dict[str, Any] | None:
    """The JSON object on a line, or None. Lone surrogates and invalid UTF-8 are tolerated."""
    if len(raw) > LINE_LIMIT:
        return None
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:
            document = json.loads(raw.decode("utf-8", errors="replace"), parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return None
    return document if isinstance(document, dict) else None


def _prose(kind: Kind, value: object, limit: int) -> Entry | None:
    body, left_out = _bounded(_visible(value), limit)
    return Entry(kind, body=body, left_out=left_out) if body.strip() else None


def _log(raw: bytes) -> Entry | None:
    text = _line(raw[: 4 * LOG_LIMIT].decode("utf-8", errors="replace"), LOG_LIMIT)
    return Entry("log", text) if text else None


def _gap(raw: bytes) -> Entry:
    frames = (json_object(raw) or {}).get("frames")
    size = f"{frames:,} frames" if isinstance(frames, int) and not isinstance(frames, bool) else "an unknown amount"
    return Entry("gap", f"output is missing here: {size}", failed=True)


def _tool(part: dict[str, Any], limits: Limits) -> Entry:
    state = _object(part.get("state"))
    exit_code = _object(state.get("metadata")).get("exit")
    failed = state.get("status") == "error" or part.get("tool") == "invalid" or exit_code not in (None, 0)
    result = state.get("error") if state.get("status") == "error" else state.get("output")
    body, left_out = _bounded(_visible(result).strip("\n"), limits.result, limits.result_lines)
    title = _tool_title(part, state)
    if isinstance(exit_code, int) and exit_code:
        title += f"  (exit {exit_code})"
    return Entry("tool", title, body, left_out, failed, _duration(state), _arguments(state, limits.arguments))


def _tool_title(part: dict[str, Any], state: dict[str, Any]) -> str:
    """`bash  ls -l`: the tool and what it was called with, on one line."""
    arguments = _object(state.get("input"))
    tool = _line(part.get("tool"), 40) or "tool"
    if tool == "invalid":
        return f"refused call of {_line(arguments.get('tool'), 40) or 'a tool'}"
    subjects = (arguments[name] for name in SUBJECTS if isinstance(arguments.get(name), str) and arguments[name])
    subject = next(subjects, None)
    return f"{tool}  {_line(subject or state.get('title'), ENTRY_TITLE_LIMIT)}".rstrip()


def _arguments(state: dict[str, Any], limit: int) -> str:
    """The arguments one after the other, texts as they are."""
    shown = (f"{_line(name, 60)}: {_visible(value)[:limit]}" for name, value in _object(state.get("input")).items())
    return printable("\n".join(shown), limit) if limit else ""


def _duration(state: dict[str, Any]) -> timedelta | None:
    times = _object(state.get("time"))
    began, ended = times.get("start"), times.get("end")
    if not (_is_number(began) and _is_number(ended)) or not 0 <= ended - began < 1e12:
        return None
    return timedelta(milliseconds=ended - began)


def _usage(part: dict[str, Any]) -> str:
    tokens = _object(part.get("tokens"))
    cached = _object(tokens.get("cache")).get("read")
    shares = [(tokens.get("input"), "in"), (cached, "cached"), (tokens.get("output"), "out")]
    shares.append((tokens.get("reasoning"), "reasoning"))
    amounts = [f"{count:,.0f} {name}" for count, name in shares if _is_number(count) and count]
    cost = part.get("cost")
    if _is_number(cost) and cost:
        amounts.append(f"${cost:.4f}")
    return ", ".join([*amounts, _line(part.get("reason"), 40) or "no finish reason"])


def _error(event: dict[str, Any], limits: Limits) -> Entry:
    error = event.get("error")
    fields = _object(error)
    data = _object(fields.get("data"))
    status = data.get("statusCode")
    title = " ".join([_line(fields.get("name"), 60) or "error", *([str(status)] if isinstance(status, int) else [])])
    text = data.get("message") or fields.get("message") or event.get("message") or error
    body, left_out = _bounded(_visible(text), limits.result, limits.result_lines)
    return Entry("error", title, body, left_out, failed=True)


def _visible(value: object) -> str:
    """Text without anything that a terminal or a browser would act on by itself."""
    if not isinstance(value, str):
        return "" if value is None else _visible(json.dumps(value, default=str)[: LINE_LIMIT // 16])
    return printable(value.translate(_VISIBLE), len(value))


def _line(value: object, limit: int) -> str:
    """`value` as visible text on one line."""
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
