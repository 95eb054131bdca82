"""What people see of updates of the Agent Client Protocol that made no line of OpenCode's form."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.transcript.entries import Entry, Limits, entry
from agent_runs.web.paperclip_log import FORMATS, LogFormat, calls
from tests.web import parts

PLAN = {
    "sessionUpdate": "plan",
    "entries": [
        {"content": "Look", "priority": "medium", "status": "completed"},
        {"content": "Write\x1b[31m", "priority": "medium", "status": "in_progress"},
        {"content": "Test", "priority": "medium", "status": "pending"},
    ],
}
"""As Codex 0.137 and Claude Code 2.1.318 send it; but for the colour."""
READ = "✓ Look\n▸ Write\n○ Test"
HIDDEN = {"Cs", "Zl", "Zp"}
RETRYING = "Retrying (attempt 1/3, waiting 2s)..."


def line(update: object) -> bytes:
    message = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}
    return json.dumps({"type": "acp_update", "acp": message}).encode()


def chunk(text: str) -> dict[str, Any]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


@pytest.mark.parametrize(
    ("update", "shown"),
    [
        (PLAN, Entry("tool", "plan  1 of 3 done", READ)),
        ({"sessionUpdate": "current_mode_update", "currentModeId": "plan"}, Entry("log", "mode: plan")),
        (chunk(RETRYING), Entry("log", f"notice: {RETRYING}")),
        (chunk(""), None),  # Qwen's, which have only the tokens of a step
        ({"sessionUpdate": "plan", "entries": []}, None),
        ({"sessionUpdate": "usage_update", "used": 120, "size": 200000}, None),
        ({"sessionUpdate": "session_info_update", "title": "a title"}, None),
        ({"sessionUpdate": "tool_call", "toolCallId": "1", "title": "bash"}, None),  # its end has a line of its own
    ],
)
def test_plans_notices_and_modes_are_shown_and_other_updates_are_not(update: object, shown: Entry | None) -> None:
    assert entry(line(update)) == shown


def test_a_long_plan_is_bounded() -> None:
    steps = [{"content": "x" * 500, "status": "pending"}] * 40
    shown = entry(line({"sessionUpdate": "plan", "entries": steps}))
    assert shown is not None
    assert len(shown.body) < 3000
    assert shown.body.endswith("… 25 more")


def read(log_format: LogFormat, update: object) -> str:
    return "\n".join(call.text for call in calls(parts.line(1, line(update)), log_format))


@pytest.mark.parametrize("log_format", FORMATS)
def test_paperclips_log_has_plans_and_notices(log_format: LogFormat) -> None:
    assert read(log_format, PLAN) == f"plan  1 of 3 done\n{READ}"
    assert read(log_format, chunk(RETRYING)) == f"notice: {RETRYING}"
    assert read(log_format, {"sessionUpdate": "usage_update", "used": 1}) == ""


def test_a_tool_call_of_claude_is_named_by_its_file() -> None:
    state = {"status": "completed", "input": {"content": "x", "file_path": "/app/x.py"}, "title": "Write x.py"}
    shown = entry(json.dumps({"type": "tool_use", "part": {"tool": "Write", "state": state}}).encode())
    assert shown is not None
    assert shown.title == "Write  /app/x.py"


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
)


@given(st.sampled_from(["plan", "current_mode_update", "agent_message_chunk"]), values, values)
def test_whatever_an_update_holds_is_shown_or_left_out(kind: str, value: object, inner: object) -> None:
    update = {"sessionUpdate": kind, "entries": value, "content": value, "currentModeId": inner}
    for each in (update, {**update, "entries": [value, {"content": inner, "status": value}]}, value):
        shown = entry(line(each))
        assert shown is None or not {unicodedata.category(sign) for sign in shown.title + shown.body} & HIDDEN
        for log_format in FORMATS:
            read(log_format, each)


def test_the_arguments_of_a_call_are_bounded_together() -> None:
    given = {"first": "x" * 9, "number": 12345, "long": "y" * 100_000}
    line = {"type": "tool_use", "part": {"tool": "write", "state": {"status": "completed", "input": given}}}
    shown = entry(json.dumps(line).encode(), limits=Limits(arguments=10))
    assert shown is not None
    assert shown.call is not None
    assert shown.call.arguments == {"first": "x" * 9, "number": 12345, "long": ""}
