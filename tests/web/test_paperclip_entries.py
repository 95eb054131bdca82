"""What happened in a line of an agent, in the words of Paperclip's transcript view."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_runs.web.paperclip_entries import EVENT_LIMIT, TranscriptEntry, entries
from tests.web import parts

FIXTURES = Path(__file__).parents[1] / "fixtures"


def shown(data: object, stream: str = "stdout") -> list[TranscriptEntry]:
    text = data if isinstance(data, str) else json.dumps(data)
    return list(entries(parts.line(1, text.encode(), stream)))


def recorded() -> Iterator[str]:
    """Every event that the real OpenCode printed and that is parsed."""
    for path in sorted((FIXTURES / "opencode").glob("*/*events.jsonl")):
        for line in path.read_text(errors="replace").split("\n"):
            if line.startswith('{"type"') and line.endswith("}") and len(line) < EVENT_LIMIT:
                yield line


def test_no_recorded_event_is_dropped_or_shown_as_plain_output() -> None:
    events = list(recorded())
    assert len(events) > 300
    for event in events:
        kinds = [entry["kind"] for entry in shown(event)]
        assert "stdout" not in kinds
        assert kinds or not json.loads(event)["part"]["text"].strip()


def test_each_recorded_tool_call_has_its_result_under_the_same_id() -> None:
    found = [entry for event in recorded() for entry in shown(event)]
    calls = [entry["toolUseId"] for entry in found if entry["kind"] == "tool_call"]
    assert len(calls) > 50
    assert [entry["toolUseId"] for entry in found if entry["kind"] == "tool_result"] == calls


def test_a_recorded_edit_is_a_diff() -> None:
    edit = next(event for event in recorded() if '"tool":"edit"' in event and '"diff"' in event)
    changes = [entry["changeType"] for entry in shown(edit) if entry["kind"] == "diff"]
    assert changes == [*["file_header"] * 4, "hunk", "context", "remove", "add", "context"]


def test_a_recorded_shell_command_that_failed_is_an_error() -> None:
    failed = next(event for event in recorded() if '"tool":"bash"' in event and '"exit":3' in event)
    assert [entry["isError"] for entry in shown(failed) if entry["kind"] == "tool_result"] == [True]


STEP_END = {
    "kind": "result",
    "text": "Step finished: done",
    "inputTokens": 0,
    "outputTokens": 5,
    "cachedTokens": 0,
    "costUsd": 0,
    "subtype": "step_finish",
    "isError": False,
    "errors": [],
}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("  ", []),
        ("hello", [{"kind": "stdout", "text": "hello"}]),
        ("42", [{"kind": "stdout", "text": "42"}]),
        ('{"no":"type"}', [{"kind": "stdout", "text": '{"no":"type"}'}]),
        ({"type": "text", "part": {"text": " hi"}}, [{"kind": "assistant", "text": " hi"}]),
        ({"type": "text", "part": {"text": ""}}, []),
        ({"type": "reasoning", "part": {"text": " hm "}}, [{"kind": "thinking", "text": "hm"}]),
        ({"type": "step_start", "part": {}}, [{"kind": "system", "text": "Starting step…"}]),
        ({"type": "step_finish", "part": {"tokens": {"output": 3, "reasoning": 2, "input": True}}}, [STEP_END]),
        (
            {"type": "error", "error": {"name": "APIError", "data": {"message": "no credit"}}},
            [{"kind": "stderr", "text": "no credit"}],
        ),
        ({"type": "error", "error": {"name": "Odd"}}, [{"kind": "stderr", "text": "Odd"}]),
        ({"type": "error", "error": {"odd": 1}}, [{"kind": "stderr", "text": '{"odd":1}'}]),
        ({"type": "odd"}, []),
    ],
)
def test_an_event_is_shown_as_what_it_says(data: object, expected: list[TranscriptEntry]) -> None:
    assert shown(data) == expected


@pytest.mark.parametrize(
    ("state", "result"),
    [
        ({"status": "running", "description": "list"}, []),
        ({"status": "completed", "output": " x "}, [("x", False)]),
        ({"status": "completed", "title": "t"}, [("t", False)]),
        ({"status": "completed", "output": "x", "metadata": {"exit": 1}}, [("x", True)]),
        ({"status": "error"}, [("Tool error", True)]),
    ],
)
def test_a_tool_call_is_shown_with_its_result(state: dict[str, Any], result: list[tuple[str, bool]]) -> None:
    call, *rest = shown({"type": "tool_use", "part": {"tool": "bash", "state": state}})
    assert call == {"kind": "tool_call", "name": "bash", "toolUseId": "bash", "input": state.get("description")}
    assert [(entry["content"], entry["isError"]) for entry in rest] == result


def test_a_long_diff_says_how_much_is_missing() -> None:
    state = {"status": "completed", "metadata": {"diff": "@@\n" + "+a\n" * 300}}
    *_, last = shown({"type": "tool_use", "part": {"tool": "edit", "state": state}})
    assert last == {"kind": "diff", "changeType": "truncation", "text": "101 more lines"}


def test_a_gap_in_the_transcript_is_named() -> None:
    assert shown('{"frames": 7, "afterSequence": 1}', "gap") == [
        {"kind": "stderr", "text": "output is missing here: 7 frames"}
    ]


@pytest.mark.parametrize(
    "data",
    ['{"type":1}', '{"type":"text","part":null}', '{"type":"tool_use","part":{"state":[]}}', "[" * 5000, "\x00", "{"],
)
def test_nothing_makes_it_fail(data: str) -> None:
    shown(data)
