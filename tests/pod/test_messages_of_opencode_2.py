"""What the driver makes of OpenCode 2's messages is a pure function that never fails, whatever the server sends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.pod.sidecar.drivers.lines import encoded
from agent_runs.pod.sidecar.drivers.opencode_server.v2.messages import Messages, error_of, is_settled, spent

KINDS = ("assistant", "user", "idle", "synthetic", "compaction", "text", "reasoning", "tool", "running", "completed")
NAMES = (
    *("id", "type", "time", "created", "streamed", "completed", "content", "text", "state", "status", "input", "name"),
    *("metadata", "sessionID", "shellID", "jobID", "error", "message", "tokens", "cost", "finish", "outcome", "retry"),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(KINDS)
values = st.recursive(
    scalars,
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.sampled_from(NAMES), deeper),
    max_leaves=12,
)
messages = st.dictionaries(st.sampled_from(NAMES), values).map(lambda found: {"type": "assistant", **found})


def tool(status: str, **state: Any) -> dict[str, Any]:
    return {"type": "tool", "id": "call_1", "name": "shell", "state": {"status": status, "input": {}, **state}}


def answer(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "msg_1", "type": "assistant", "time": {"created": 1}, "content": list(content), **more}


@given(st.lists(messages, max_size=4))
def test_no_message_makes_it_fail(sent: list[dict[str, Any]]) -> None:
    taken = Messages("ses_1", "msg_prompt")
    for message in sent:
        for line in [*taken.add(message), *spent("ses_1", message)]:
            assert encoded(line, 0, "ses_1").endswith(b"\n")
        error_of(message)
        is_settled(message)


def test_a_tool_that_has_begun_and_ended_between_two_readings_has_both_lines() -> None:
    lines = list(Messages("ses_1", "msg_0").add(answer(tool("completed", content=[{"type": "text", "text": "3"}]))))
    assert [line.type for line in lines] == ["step_start", "tool_running", "tool_use"]
    assert lines[-1].content["part"]["state"]["output"] == "3"


def test_what_follows_a_text_waits_until_the_text_is_whole() -> None:
    content = [{"type": "text", "text": ""}, tool("running")]
    growing = list(Messages("ses_1", "msg_0").add(answer(*content)))
    content[0]["text"] = "I look."
    whole = list(Messages("ses_1", "msg_0").add(answer(*content, time={"created": 1, "streamed": 2})))
    assert [line.type for line in growing] == ["step_start"]
    assert [line.type for line in whole] == ["step_start", "text", "tool_running"]


def test_a_message_that_is_read_again_makes_lines_with_the_same_identifiers() -> None:
    message = answer(
        tool("error", error={"message": "no"}), time={"created": 1, "completed": 2}, tokens={}, finish="stop"
    )
    taken = Messages("ses_1", "msg_0")
    first, second = ([line.content["part"]["id"] for line in taken.add(message)] for _ in range(2))
    assert first == second
    assert len({*first}) == len(first) - 1  # a tool's beginning and end are of one part


def test_an_error_has_the_status_that_decides_its_name() -> None:
    """That of a stream is of its beginning: 200."""
    errors = {
        ("provider.auth", None): ("APIError", 401),
        ("provider.internal", 200): ("APIError", 500),
        ("provider.rate-limit", 429): ("APIError", 429),
        ("provider.content-filter", None): ("ContentFilterError", None),
        ("tool.execution", None): ("UnknownError", None),
    }
    for (kind, status), expected in errors.items():
        found = error_of({"type": kind, "message": "m", "status": status})
        assert (found["name"], found["data"].get("statusCode")) == expected


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_what_a_summary_costs_is_used_once_it_is_made(status: str) -> None:
    """The message of OpenCode 2.0.15: it has a status, and no time at which it was completed."""
    made: dict[str, Any] = {
        "id": "msg_2",
        "type": "compaction",
        "time": {"created": 1},
        "status": status,
        "reason": "auto",
    }
    made |= {"cost": 0.0006, "tokens": {"input": 100, "output": 20, "reasoning": 0, "cache": {"read": 0, "write": 0}}}
    begun = {**made, "status": "running"}
    assert [list(Messages("ses_1", "msg_0").add(begun)), is_settled(begun)] == [[], False]
    (line,) = Messages("ses_1", "msg_0").add(made)
    assert (line.type, line.content["part"]["tokens"]["input"], is_settled(made)) == ("subagent_step", 100, True)
