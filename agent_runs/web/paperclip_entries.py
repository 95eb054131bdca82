"""A line of an agent as entries of Paperclip's transcript view: what happened, in the words of that view.

An entry is a JSON object with a `kind` and the fields of that kind, without the time `ts`, which its reader adds:

    assistant, thinking, system, stdout, stderr   text
    tool_call                                     name, input, toolUseId
    tool_result                                   toolUseId, toolName, content, isError
    diff                                          changeType, text
    result                                        text, inputTokens, outputTokens, cachedTokens, costUsd, subtype,
                                                  isError, errors

Source: `TranscriptEntry` of `@paperclipai/adapter-utils` 2026.916.1, and `run --format json` of OpenCode 1.18. Texts
are as the agent printed them: whoever writes an entry bounds it.
"""

import json
from collections.abc import Iterator
from math import isfinite
from typing import Any, Final, Literal

from agent_runs.contracts.outcome import GAP_STREAM
from agent_runs.transcript.entries import entry
from agent_runs.transcript.store import Line

Stream = Literal["stdout", "stderr"]
TranscriptEntry = dict[str, Any]

EVENT_LIMIT: Final = 512 * 1024
"""Characters of a line up to which it is parsed; OpenCode's own events stay below."""

OWN_TYPE: Final = "agent_run"
"""`type` of the lines that are ours: of the plugin, and of what is made here for its parser."""

BLANKS: Final = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""What JavaScript's `trim` removes, which Paperclip's parsers call before they parse a line."""

_NAME_LIMIT: Final = 200
_DIFF_LINES: Final = 200


def entries(line: Line) -> Iterator[TranscriptEntry]:
    """What happened in a line that is not of stderr; nothing where nothing is to be shown. Never raises."""
    if line.stream == GAP_STREAM:
        gap = entry(line.data, GAP_STREAM)
        yield from _text_entry("stderr", gap.title if gap else "")
        return
    text = decoded(line.data)
    if text is None:
        yield from _text_entry("stdout", f"(a line of {len(line.data)} bytes; the transcript has it)")
        return
    event = parsed(text)
    if event is None or event_type(event) is None:
        yield from _text_entry("stdout", text)
        return
    yield from _event(event, line.data)


def decoded(data: bytes) -> str | None:
    """The line as text, bytes that are not UTF-8 replaced; None for one that is too long to be parsed."""
    if len(data) > 4 * EVENT_LIMIT:
        return None
    text = data.decode("utf-8", errors="replace")
    return text if len(text) <= EVENT_LIMIT else None


def parsed(text: str) -> dict[str, Any] | None:
    """The JSON object on a line, as JavaScript reads it; None for everything else, also for one nested too deeply."""
    stripped = text.strip(BLANKS)
    if not stripped.startswith("{"):
        return None
    try:
        document = json.loads(stripped, parse_int=_number, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def event_type(event: dict[str, Any] | None) -> str | None:
    """The type of an agent's event; None for anything else, also for what has the form of a line of ours."""
    kind = (event or {}).get("type")
    return kind if isinstance(kind, str) and kind != OWN_TYPE else None


def compact(value: object) -> str:
    """The value as JSON on one line."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "(nested too deeply)"


def _number(digits: str) -> int | float:
    """As JavaScript: any number of digits, beyond 64 bits not exact."""
    return int(digits) if len(digits) < 18 else float(digits)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _event(event: dict[str, Any], data: bytes) -> Iterator[TranscriptEntry]:
    part = _object(event.get("part"))
    match event["type"]:
        case "text":
            yield from _text_entry("assistant", _text(part.get("text")))
        case "reasoning":
            yield from _text_entry("thinking", _text(part.get("text")).strip())
        case "tool_use":
            yield from _tool(part)
        case "step_start":
            yield from _text_entry("system", "Starting step…")
        case "step_finish":
            yield _step_end(part)
        case "error":
            yield from _text_entry("stderr", _error_text(event))
        case "acp_update" if shown := entry(data):
            yield from _text_entry("stdout", "\n".join(filter(None, (shown.title, shown.body))))


def _text_entry(kind: str, text: str) -> Iterator[TranscriptEntry]:
    if text.strip():
        yield {"kind": kind, "text": text}


def _tool(part: dict[str, Any]) -> Iterator[TranscriptEntry]:
    state = _object(part.get("state"))
    metadata = _object(state.get("metadata"))
    name = _first_text(part.get("tool"), part.get("type"))[:_NAME_LIMIT] or "tool"
    use = _first_text(part.get("callID"), part.get("id"))[:_NAME_LIMIT] or name
    arguments = state.get("description") if state.get("input") is None else state["input"]
    yield {"kind": "tool_call", "name": name, "input": arguments, "toolUseId": use}
    result = {"kind": "tool_result", "toolUseId": use, "toolName": name}
    match state.get("status"):
        case "error":
            yield result | {"content": _text(state.get("error")).strip() or "Tool error", "isError": True}
        case "completed":
            output = _text(state.get("output")).strip()
            content = output or _first_text(state.get("description"), state.get("title")) or "Done"
            # a shell command that failed is `completed` as well: its exit code shows the failure
            yield result | {"content": content, "isError": _amount(metadata.get("exit")) != 0}
            yield from _diff(_text(metadata.get("diff")))


def _diff(patch: str) -> Iterator[TranscriptEntry]:
    lines = patch.removesuffix("\n").split("\n") if patch.strip() else []
    in_hunk = False
    for line in lines[:_DIFF_LINES]:
        in_hunk = in_hunk or line.startswith("@@")
        yield {"kind": "diff", "changeType": _change(line) if in_hunk else "file_header", "text": line}
    if omitted := len(lines[_DIFF_LINES:]):
        yield {"kind": "diff", "changeType": "truncation", "text": f"{omitted} more lines"}


def _change(line: str) -> str:
    if line.startswith("@@"):
        return "hunk"
    return {"+": "add", "-": "remove"}.get(line[:1], "context")


def _step_end(part: dict[str, Any]) -> TranscriptEntry:
    tokens, reason = _object(part.get("tokens")), _text(part.get("reason"))
    return {
        "kind": "result",
        "text": f"Step finished: {reason or 'done'}",
        "inputTokens": _amount(tokens.get("input")),
        "outputTokens": _amount(tokens.get("output")) + _amount(tokens.get("reasoning")),
        "cachedTokens": _amount(_object(tokens.get("cache")).get("read")),
        "costUsd": _amount(part.get("cost")),
        "subtype": reason or "step_finish",
        "isError": False,
        "errors": [],
    }


def _error_text(event: dict[str, Any]) -> str:
    error = next((value for value in (event.get("error"), event.get("message")) if value is not None), event)
    fields = _object(error)
    message = _object(fields.get("data")).get("message")
    text = _first_text(error, fields.get("message"), message, fields.get("name"), fields.get("code"))
    return text.strip() or (compact(fields) if fields else "")


def _first_text(*values: object) -> str:
    """The first of them that is a text with anything in it."""
    return next((text for text in map(_text, values) if text.strip()), "")


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _amount(value: object) -> float:
    """A number, 0 for everything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0
    return value if isfinite(value) else 0
