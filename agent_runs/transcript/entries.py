"""OpenCode's output as a person reads it: one line of it to one bounded entry of plain text.

Agent output is hostile: ANSI codes, control and direction characters do not reach the text, and each entry is bounded.
Whoever shows an entry escapes it for its own medium. The whole line is always in the transcript.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, Self, TypeGuard

import msgspec

from agent_runs.contracts.large_json import LARGE, load_json
from agent_runs.contracts.outcome import GAP_STREAM
from agent_runs.transcript.events import (
    AGENT_VERSION,
    QUESTION_ANSWERED,
    QUESTION_ASKED,
    SERVER_EVENTS,
    SUBAGENT_STEP,
    USER_MESSAGE,
    as_object,
    printable,
    visible,
)
from agent_runs.transcript.lines import LINE_LIMIT

Kind = Literal["text", "thinking", "tool", "error", "step", "log", "gap"]

ENTRY_TITLE_LIMIT: Final = 160
LOG_LIMIT: Final = 1_000
NAME_LIMIT: Final = 40
MAX_ARGUMENTS: Final = 12
VISIBLE_LIMIT: Final = 256 * 1024
"""Characters of a text that are made visible; of a longer one the rest is only counted."""
MAX_DEPTH: Final = 64
"""Of an object or list that is shown as JSON."""


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

_ENCODER: Final = json.JSONEncoder(default=str, ensure_ascii=False)
SUBJECTS: Final = ("command", "filePath", "file_path", "path", "pattern", "url", "description", "query", "name")
"""Arguments that show what a tool call is about, the most useful first."""
_STEPS: Final = {"completed": "✓", "in_progress": "▸"}
"""Marks of a plan's steps; any other has a circle."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Attributes:
        id: by which the agent names the call; empty: it names none.
        subject: what the call is about, one line.
        arguments: texts and numbers as they are, anything else as JSON.
    """

    name: str
    id: str = ""
    subject: str = ""
    arguments: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A step that has ended: why, and what it has used.

    Attributes:
        input: uncached, with the tokens that were written to the cache.
        output: without reasoning.
        cost: in US dollars.
    """

    reason: str
    input: float = 0
    cached: float = 0
    output: float = 0
    reasoning: float = 0
    cost: float = 0

    @classmethod
    def of(cls, part: dict[str, Any]) -> Self:
        tokens = as_object(part.get("tokens"))
        cache = as_object(tokens.get("cache"))
        return cls(
            reason=visible_line(part.get("reason"), NAME_LIMIT) or "no finish reason",
            input=_amount(tokens.get("input")) + _amount(cache.get("write")),
            cached=_amount(cache.get("read")),
            output=_amount(tokens.get("output")),
            reasoning=_amount(tokens.get("reasoning")),
            cost=_amount(part.get("cost")),
        )

    def __str__(self) -> str:
        shares = ((self.input, "in"), (self.cached, "cached"), (self.output, "out"), (self.reasoning, "reasoning"))
        amounts = [f"{count:,.0f} {name}" for count, name in shares if count]
        cost = [f"${self.cost:.4f}"] if self.cost else []
        return ", ".join([*amounts, *cost, self.reason])


@dataclass(frozen=True)
class Entry:
    """One thing that happened, as text that is safe to show.

    Attributes:
        title: one line; empty for plain text.
        body: Markdown for `text`, plain for everything else.
        left_out: characters of the body that are not shown.
        failed: a tool call that ended in an error or with an exit code other than 0.
        running: a tool call that has not ended.
        duration: of a tool call.
    """

    kind: Kind
    title: str = ""
    body: str = ""
    left_out: int = 0
    failed: bool = False
    running: bool = False
    duration: timedelta | None = None
    call: ToolCall | None = None
    step: Step | None = None


def entry(raw: bytes, stream: str = "stdout", limits: Limits = TERMINAL_LIMITS) -> Entry | None:
    """The entry for one line of output, or None for a line that means nothing to a person. Never raises."""
    if stream == GAP_STREAM:
        return _gap(raw)
    event = json_object(raw) if stream == "stdout" else None
    if event is None or not isinstance(event.get("type"), str):
        return _log(raw)
    part = as_object(event.get("part"))
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
            return Entry("step", str(step := Step.of(part)), step=step)
        case "error":
            return _error(event, limits)
        case "acp_update":
            return _update(as_object(as_object(as_object(event.get("acp")).get("params")).get("update")), limits)
        case _:
            return _other(event)


def _other(event: dict[str, Any]) -> Entry | None:
    kind = event["type"]
    if kind == "permission_rejected":
        asked = " ".join(visible_line(event.get(name), ENTRY_TITLE_LIMIT) for name in ("permission", "patterns"))
        by = visible_line(event.get("by"), ENTRY_TITLE_LIMIT)
        return Entry("log", f"rejected permission: {asked}{f' by {by}' if by else ''}")
    if kind in (QUESTION_ASKED, QUESTION_ANSWERED):
        return _question(as_object(event.get("question")))
    if kind == AGENT_VERSION:
        return Entry("log", f"OpenCode {visible_line(event.get('version'), ENTRY_TITLE_LIMIT)}")
    if kind == USER_MESSAGE:
        said = as_object(event.get("message"))
        words = " ".join(visible_line(said.get(name), LOG_LIMIT) for name in ("by", "text"))
        return Entry("log", visible_line(f"message of {words}", LOG_LIMIT))
    if kind == SUBAGENT_STEP:
        return Entry("step", f"sub-agent: {Step.of(as_object(event.get('part')))}")
    return None if kind in SERVER_EVENTS else Entry("log", visible_line(f"{kind} event", ENTRY_TITLE_LIMIT))


def _question(question: dict[str, Any]) -> Entry:
    """What the agent asks, with what may be chosen; or who has answered what."""
    if "fields" not in question:
        chosen = "; ".join(", ".join(map(str, each)) for each in _lists(question.get("answers")))
        by = visible_line(question.get("by"), ENTRY_TITLE_LIMIT)
        if not by:
            return Entry("log", "the agent does not ask this any more")
        return Entry("log", visible_line(f"answer of {by}: {chosen or 'rejected'}", LOG_LIMIT))
    asked = [as_object(each) for each in _lists(question["fields"], dict)]
    choices = [[as_object(option).get("label") for option in _lists(each.get("options"), dict)] for each in asked]
    lines = [f"{each.get('text')} [{', '.join(map(str, labels))}]" for each, labels in zip(asked, choices, strict=True)]
    return Entry("log", visible_line(f"question: {'; '.join(lines)}", LOG_LIMIT))


def _lists(value: object, kind: type = list) -> list[Any]:
    """The elements of this kind, if it is a list."""
    return [each for each in value if isinstance(each, kind)] if isinstance(value, list) else []


def _update(update: dict[str, Any], limits: Limits) -> Entry | None:
    """An update of the Agent Client Protocol that made no line of OpenCode's form. The line has all of it."""
    match update.get("sessionUpdate"):
        case "plan":
            return _plan(update.get("entries"), limits)
        case "current_mode_update":
            return Entry("log", f"mode: {visible_line(update.get('currentModeId'), ENTRY_TITLE_LIMIT)}")
        case "agent_message_chunk":  # the agent's own words about its work, which are no part of the answer
            notice = visible_line(as_object(update.get("content")).get("text"), ENTRY_TITLE_LIMIT)
            return Entry("log", f"notice: {notice}") if notice else None
        case _:
            return None


def _plan(steps: object, limits: Limits) -> Entry | None:
    """A plan as it stands now, a line for each step. Source: agentclientprotocol.com, version 1, `Plan`."""
    known = [each for each in steps if isinstance(each, dict)] if isinstance(steps, list) else []
    lines = [
        f"{_STEPS.get(str(each.get('status')), '○')} {visible_line(each.get('content'), ENTRY_TITLE_LIMIT)}"
        for each in known[: limits.result_lines]
    ]
    body, left_out = _bounded("\n".join(lines), limits.result)
    if more := len(known) - len(lines):
        body += f"\n… {more} more"
    done = sum(each.get("status") == "completed" for each in known)
    return Entry("tool", f"plan  {done} of {len(known)} done", body, left_out) if known else None


def json_object(raw: bytes) -> dict[str, Any] | None:
    """The JSON object on a line, or None. Lone surrogates and invalid UTF-8 are tolerated, too many values are not."""
    if len(raw) > LINE_LIMIT or not raw.lstrip(b" \t\r\n").startswith(b"{"):
        return None
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        if len(raw) <= LARGE:
            return _object_or_none(msgspec.json.decode(raw))
    with suppress(ValueError, RecursionError):
        return _object_or_none(load_json(raw.decode("utf-8", errors="replace")))
    return None


def _object_or_none(document: object) -> dict[str, Any] | None:
    return document if isinstance(document, dict) else None


def _prose(kind: Kind, value: object, limit: int) -> Entry | None:
    body, left_out = _bounded(value, limit)
    return Entry(kind, body=body, left_out=left_out) if body.strip() else None


def _log(raw: bytes) -> Entry | None:
    text = visible_line(raw[: 4 * LOG_LIMIT].decode("utf-8", errors="replace"), LOG_LIMIT)
    left_out = len(raw) - len(text) if len(raw) > LOG_LIMIT else 0
    return Entry("log", text, left_out=left_out) if text else None


def _gap(raw: bytes) -> Entry:
    frames = (json_object(raw) or {}).get("frames")
    size = f"{frames:,} frames" if isinstance(frames, int) and not isinstance(frames, bool) else "an unknown amount"
    return Entry("gap", f"output is missing here: {size}", failed=True)


def _tool(part: dict[str, Any], limits: Limits) -> Entry:
    state = as_object(part.get("state"))
    metadata = as_object(state.get("metadata"))
    exit_code = metadata.get("exit")
    failed = state.get("status") == "error" or part.get("tool") == "invalid" or exit_code not in (None, 0)
    result = state.get("error") if state.get("status") == "error" else state.get("output")
    if isinstance(result, str | None) and isinstance(diff := metadata.get("diff"), str):
        result = f"{(result or '')[:VISIBLE_LIMIT].strip()}\n{diff}"
    body, left_out = _bounded(result, limits.result, limits.result_lines, strip="\n")
    call = _tool_call(part, state, limits.arguments)
    title = f"{call.name}  {call.subject}".rstrip()
    if isinstance(exit_code, int) and exit_code:
        title += f"  (exit {exit_code})"
    running = state.get("status") in {"pending", "running"}
    return Entry("tool", title, body, left_out, failed, running, _duration(state), call)


def _tool_call(part: dict[str, Any], state: dict[str, Any], limit: int) -> ToolCall:
    """What was called; a call that OpenCode refused has the name `invalid` and names the tool in its arguments."""
    given = as_object(state.get("input"))
    tool = visible_line(part.get("tool"), NAME_LIMIT) or "tool"
    identifier = visible_line(part.get("callID") or part.get("id"), ENTRY_TITLE_LIMIT)
    if tool == "invalid":
        return ToolCall(f"refused call of {visible_line(given.get('tool'), NAME_LIMIT) or 'a tool'}", identifier)
    subjects = (given[name] for name in SUBJECTS if isinstance(given.get(name), str) and given[name])
    subject = next(subjects, None) or state.get("title") or (given or None)
    return ToolCall(tool, identifier, visible_line(subject, ENTRY_TITLE_LIMIT), _arguments(given, limit))


def begun_call(tool: str | None, given: str | None, title: str | None) -> str:
    """A call that has begun, on one line: its name and what it is about. `given` is JSON, which may be cut."""
    arguments = json_object((given or "").encode(errors="replace"))
    call = _tool_call({"tool": tool}, {"input": arguments, "title": title}, 0)
    return f"{call.name}: {call.subject}" if call.subject else call.name


def _arguments(given: dict[str, Any], limit: int) -> dict[str, str | float]:
    """The first arguments, `limit` characters of them."""
    shown: dict[str, str | float] = {}
    for name, value in list(given.items())[:MAX_ARGUMENTS] if limit else ():
        text = value if _is_number(value) else _bounded(value, limit)[0]
        shown[visible_line(name, NAME_LIMIT)] = text
        limit = max(limit - len(str(text)), 0)
    if limit > 0 and (more := len(given) - MAX_ARGUMENTS) > 0:
        shown["…"] = f"{more} more"
    return shown


def _duration(state: dict[str, Any]) -> timedelta | None:
    times = as_object(state.get("time"))
    began, ended = times.get("start"), times.get("end")
    if not (_is_number(began) and _is_number(ended)) or not 0 <= ended - began < 1e12:
        return None
    return timedelta(milliseconds=ended - began)


def _error(event: dict[str, Any], limits: Limits) -> Entry:
    error = event.get("error")
    fields = as_object(error)
    data = as_object(fields.get("data"))
    status = data.get("statusCode")
    title = " ".join(
        [visible_line(fields.get("name"), 60) or "error", *([str(status)] if isinstance(status, int) else [])]
    )
    text = data.get("message") or fields.get("message") or event.get("message") or error
    body, left_out = _bounded(text, limits.result, limits.result_lines)
    return Entry("error", title, body, left_out, failed=True)


def _visible(value: object) -> str:
    if not isinstance(value, str):
        return "" if value is None else _visible(_as_json(value))
    return visible(value).strip()


def _as_json(value: object) -> str:
    """The beginning of the value as JSON."""
    pieces, size = [], 0
    for piece in _ENCODER.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size >= VISIBLE_LIMIT:
            break
    return "".join(pieces)[:VISIBLE_LIMIT]


def _cut(value: object, depth: int = 0) -> object:
    """The value with its long texts and deep parts cut: no entry shows more, and cleaning all would take long."""
    match value:
        case str():
            return value[:VISIBLE_LIMIT]
        case dict() | list() if depth >= MAX_DEPTH:
            return "…"
        case dict():
            return {name[:VISIBLE_LIMIT]: _cut(item, depth + 1) for name, item in value.items()}
        case list():
            return [_cut(item, depth + 1) for item in value]
        case _:
            return value


def visible_line(value: object, limit: int) -> str:
    text = value[: 8 * limit] if isinstance(value, str) else _cut(value)
    return printable(" ".join(_visible(text).split()), limit)


def _bounded(value: object, limit: int, lines: int | None = None, strip: str = "") -> tuple[str, int]:
    """The beginning of a value as visible text, and how many characters of it are missing."""
    text = _visible(_cut(value)).strip(strip)
    uncut = len(value) - VISIBLE_LIMIT if isinstance(value, str) else 0
    kept = text[:limit]
    if lines is not None:
        kept = "\n".join(kept.split("\n", lines)[:lines])
    return kept, len(text) - len(kept) + max(uncut, 0)


def _amount(value: object) -> float:
    """A number; 0 for anything else."""
    return value if _is_number(value) else 0


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
