"""What the driver makes of events is a pure function, bounded, and never fails, whatever the agent's server sends."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.pod.sidecar.drivers.growth import MAX_TEXT, Growth
from agent_runs.pod.sidecar.drivers.lines import LEFT_OUT, Line, encoded
from agent_runs.pod.sidecar.drivers.opencode_server import wire
from agent_runs.pod.sidecar.drivers.opencode_server.served import identifier
from agent_runs.pod.sidecar.drivers.opencode_server.v1.children import MAX_CHILDREN, NEVER, Children
from agent_runs.pod.sidecar.drivers.opencode_server.v1.drive import grow
from agent_runs.pod.sidecar.drivers.opencode_server.v1.journal import Journal
from agent_runs.pod.sidecar.drivers.opencode_server.wire import NoAnswer, TooLarge, elements
from agent_runs.pod.sidecar.drivers.record import Record
from agent_runs.transcript.agent_state import AgentState
from agent_runs.transcript.entries import entry
from agent_runs.transcript.events import SERVER_EVENTS
from agent_runs.transcript.store import Line as StoredLine
from agent_runs.web.paperclip_log import FORMATS, calls
from tests.support.lines import file_line
from tests.support.saved_output import fold_chunks
from tests.transcript.event_lines import step_finish, step_start, text, tool_use

AT = datetime(2026, 1, 1, tzinfo=UTC)
SESSION, PROMPT = "ses_1", "msg_prompt"
FIRST = (0, "message.updated.1", {"info": {"id": PROMPT, "role": "user"}})
names = [
    *("id", "sessionID", "type", "text", "time", "end", "state", "status", "callID"),
    *("tool", "input", "title", "info", "role", "error", "part", "start"),
]
words = [
    "message.updated.1",
    "message.part.updated.1",
    "tool",
    "text",
    "running",
    "completed",
    "step-start",
    "assistant",
]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
scalars |= st.sampled_from([*words, SESSION, PROMPT, "x" * 5000])
values = st.recursive(
    scalars,
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.sampled_from(names), deeper),
    max_leaves=12,
)
SERVER_LINES: list[dict[str, Any]] = [
    {"type": "tool_running", "part": {"tool": "bash", "callID": "call_1", "input": "{}", "title": ""}},
    {"type": "text_growth", "partID": "prt_1", "length": 1},
    {"type": "session_status", "status": "retry", "attempt": 2, "message": "Overloaded", "next": 1_800_000_000_000},
]


@given(st.lists(st.tuples(st.sampled_from(words) | st.text(max_size=5), values), max_size=8))
def test_hostile_events_make_lines_that_can_be_read_or_none(events: list[tuple[str, Any]]) -> None:
    mapping = Journal(SESSION, PROMPT)
    mapping.add(*FIRST)
    for seq, (kind, data) in enumerate(events, 1):
        for line in mapping.add(seq, kind, data):
            written = encoded(line, 1, SESSION)
            assert written.count(b"\n") == 1
            assert json.loads(written)["sessionID"] == SESSION


@given(values, values, values)
def test_the_beginning_of_a_tool_call_is_bounded(part: Any, tool: Any, title: Any) -> None:
    mapping = Journal(SESSION, PROMPT)
    mapping.add(*FIRST)
    state = {"status": "running", "input": {"command": "x" * 9000, "more": part}, "title": title}
    data = {"part": {"type": "tool", "sessionID": SESSION, "callID": "call_1", "tool": tool, "state": state}}
    (line,) = mapping.add(1, "message.part.updated.1", data)
    assert len(json.dumps(line.content)) < 20_000
    assert mapping.add(2, "message.part.updated.1", data) == []


@given(st.lists(st.tuples(st.sampled_from(["message.part.delta", "message.part.updated"]), values), max_size=6))
def test_text_that_grows_is_bounded_whatever_comes(events: list[tuple[str, Any]]) -> None:
    growth, now = Growth(), 0.0
    grow(growth, "message.part.updated", {"part": {"id": "prt_1", "type": "text", "text": ""}}, now)
    for kind, properties in events:
        grow(growth, kind, properties if isinstance(properties, dict) else {}, now)
    for _ in range(20):
        grow(growth, "message.part.delta", {"partID": "prt_1", "field": "text", "delta": "y " * 5_000}, now)
        now += 2
        assert "prt_1" in [line.content["partID"] for line in growth.due(now)]
        assert list(growth.due(now)) == []
    (kept,) = (line.content["text"] for line in growth.unfinished() if line.content["partID"] == "prt_1")
    assert len(kept) == MAX_TEXT


@given(
    st.lists(st.dictionaries(st.text(max_size=3), scalars.filter(lambda value: value == value), max_size=3)), st.data()
)
def test_an_array_in_any_pieces_has_its_values(expected: list[Any], data: st.DataObject) -> None:
    try:
        document = json.dumps(expected, allow_nan=False).encode()
    except ValueError:
        return
    at = data.draw(st.integers(1, 40))
    pieces = [document[start : start + at] for start in range(0, len(document), at)]
    assert list(elements(iter(pieces))) == expected


ODD = {"a": ["}", '"]', "\\", {"b": '\\"{'}, "€" * 30], "c": {}}


@pytest.mark.parametrize("size", [*range(1, 12), 10**6])
def test_an_object_that_is_too_large_is_skipped_and_the_others_are_read(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_EVENT", 50)
    large = {"id": 1, "data": [ODD] * 3}
    document = json.dumps([{"id": 0}, large, {"id": 2}, large, large], ensure_ascii=False).encode()
    found = list(elements(iter([document[start : start + size] for start in range(0, len(document), size)])))
    read = [large if isinstance(each, TooLarge) else each for each in found]
    assert read == [{"id": 0}, large, {"id": 2}, large, large]
    assert size > 11 or [isinstance(each, TooLarge) for each in found] == [False, True, False, True, True]


@pytest.mark.parametrize("document", [b"", b"null", b"<html>", b"{}", b"[{}", b"[{},", b"[NaN]", b"[" * 9999])
def test_what_is_no_array_is_no_answer(document: bytes) -> None:
    with pytest.raises(NoAnswer):
        list(elements(iter([document])))


@given(st.integers(0, 2**42), st.integers(0, 2**48 - 1))
def test_a_prompt_sorts_behind_every_message_of_its_session(now: int, newest: int) -> None:
    after = f"msg_{newest:012x}" + "A" * 14
    made = identifier("msg", now, after)
    assert len(made) == len(after)
    assert made[:16] > after[:16] or newest == 2**48 - 1


def test_an_event_that_is_too_large_is_left_out_by_name_and_counted() -> None:
    mapping = Journal(SESSION, PROMPT)
    assert mapping.add(0, "message.part.updated.1", LEFT_OUT) == []
    mapping.add(1, "message.updated.1", {"info": {"id": PROMPT}})
    assert mapping.add(2, "message.part.updated.1", LEFT_OUT) == [Line("event_left_out", {})]
    assert mapping.seq == 2


def test_a_line_that_nests_too_deeply_is_left_out_by_name() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert json.loads(encoded(Line("text", {"part": deep}), 1, SESSION))["type"] == "event_left_out"


def test_after_a_live_line_that_cannot_be_written_the_next_driver_leaves_out_no_line_too_many(tmp_path: Path) -> None:
    path, live = str(tmp_path / "events"), {"error"}
    first, second = (Line("text", {"part": {"text": text}}) for text in ("first", "second"))
    record = Record(path, SESSION, live)
    record.write(Line("error", {"error": float("inf")}))
    record.write(first)
    successor = Record(path, SESSION, live)
    successor.write(first)
    successor.write(second)
    written = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [line["type"] for line in written] == ["event_left_out", "text", "text"]


def test_lines_that_only_a_server_makes_change_no_result_and_show_nothing() -> None:
    lines = [step_start(), text(), tool_use(), step_finish("stop", cost=1)]
    only = [json.dumps({"timestamp": 1, "sessionID": "ses_1", **each}).encode() for each in SERVER_LINES]
    assert {each["type"] for each in SERVER_LINES} < SERVER_EVENTS
    mixed = [only[0], *(line for each in lines for line in (each, *only))]
    plain, more = (fold_chunks([line + b"\n" for line in each]) for each in (lines, mixed))
    assert plain.report(ContainerEnd(exit_code=0)) == more.report(ContainerEnd(exit_code=0))
    assert plain.progress == more.progress
    assert fold_chunks([only[2]]).report(ContainerEnd(exit_code=1)).events == 0
    assert [entry(line) for line in only] == [None] * 3
    assert [
        list(calls(StoredLine(sequence=1, stream="stdout", data=line, at=AT), form))
        for line in only
        for form in FORMATS
    ] == [[]] * 6


def test_a_tool_that_a_server_reports_as_running_is_what_the_run_waits_for() -> None:
    running, growing, retry = (
        encoded(Line(each["type"], {name: each[name] for name in each if name != "type"}), 1, SESSION)
        for each in SERVER_LINES
    )
    agent = AgentState()
    assert agent.add([file_line(running)])
    assert (agent.waits_for, agent.tools) == ("tool", ("bash",))
    assert agent.add([file_line(tool_use("bash"))])
    assert agent.tools == ()
    assert not agent.add([file_line(retry)])
    assert agent.waits_for == "provider"
    assert agent.add([file_line(growing)])


CREATED = "session.created.1"
PART = "message.part.updated.1"


def finished(message: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    """The data of the event that a step has finished."""
    tokens = {"input": 10, "output": 2, "reasoning": 0, "cache": {"read": 5, "write": 0}}
    part = {"id": f"prt_{number}", "messageID": message, "type": "step-finish", "reason": "stop", "cost": 0.5}
    return {"part": {**part, "tokens": tokens, **changes}}


def test_only_steps_of_this_turns_sub_agents_make_lines_each_once() -> None:
    children = Children(SESSION, PROMPT, {})
    children.add("ses_child", 0, CREATED, {"info": {"parentID": SESSION}})
    children.add("ses_deep", 0, CREATED, {"info": {"parentID": "ses_child"}})
    children.add("ses_other", 0, CREATED, {"info": {}})
    events = [("ses_child", 1), ("ses_deep", 1), ("ses_child", 1), ("ses_other", 1), ("ses_child", 2)]
    lines = [line for child, seq in events for line in children.add(child, seq, PART, finished(PROMPT + "_later"))]
    assert [(line.content["child"], line.content["seq"]) for line in lines] == [
        ("ses_child", 1),
        ("ses_deep", 1),
        ("ses_child", 2),
    ]
    assert children.add("ses_child", 3, PART, finished("msg_earlier")) == []
    assert children.add("ses_child", 4, PART, LEFT_OUT) == []
    assert children.after == {"ses_child": 4, "ses_deep": 1}


def test_an_older_sub_agent_is_read_from_its_first_live_event_and_after_a_cut_as_a_whole() -> None:
    children = Children(SESSION, PROMPT, {"ses_written": 7})
    children.add_older({"ses_grandchild": "ses_child", "ses_child": SESSION, "ses_other": "", "ses_written": SESSION})
    assert children.after == {"ses_written": 7, "ses_child": NEVER, "ses_grandchild": NEVER}
    assert not children.misses("ses_child", 40)
    assert children.misses("ses_written", 9)
    children.reconsider_older()
    assert children.after == {"ses_written": 7, "ses_child": 39, "ses_grandchild": -1}


@given(st.lists(st.tuples(st.sampled_from([CREATED, PART]), st.integers(-9, 9), values), max_size=8), values)
def test_hostile_events_of_sub_agents_make_bounded_lines_or_none(events: list[Any], tokens: Any) -> None:
    children = Children(SESSION, PROMPT, {"ses_child": 0})
    for number, (kind, seq, data) in enumerate(events):
        children.add(f"ses_{number}", seq, kind, data)
        children.add("ses_child", seq, kind, data)
    (line,) = children.add("ses_child", 10, PART, finished("msg_z" * 999, tokens=tokens, cost=tokens, reason=tokens))
    written = encoded(line, 1, SESSION)
    assert len(written) < 2000
    fold = fold_chunks([written])
    assert (fold.progress.steps, fold.report(ContainerEnd(exit_code=0)).events) == (1, 0)


def test_there_may_be_any_number_of_sub_agents() -> None:
    children = Children(SESSION, PROMPT, {})
    for number in range(2 * MAX_CHILDREN):
        children.add(f"ses_{number}", 0, CREATED, {"info": {"parentID": SESSION}})
    assert len(children.after) == MAX_CHILDREN


def test_what_sub_agents_use_is_used_by_the_run_and_is_progress_but_not_its_end() -> None:
    children = Children(SESSION, PROMPT, {"ses_child": 0})
    (step,) = children.add("ses_child", 1, PART, finished("msg_z", reason="length"))
    line = encoded(step, 1, SESSION)
    lines = [step_start(), text(), step_finish("stop", cost=1)]
    plain, more = (fold_chunks([each + b"\n" for each in given]) for given in (lines, [*lines, line, line]))
    before, after = plain.progress, more.progress
    assert (after.steps, after.cost_usd) == (before.steps + 1, (before.cost_usd or 0) + Decimal("0.5"))
    assert after.usage.cached_input_tokens == before.usage.cached_input_tokens + 5
    assert (after.continues, after.context_tokens) == (before.continues, before.context_tokens)
    changed = {"usage": None, "cost_usd": None, "steps": 0}
    reports = [fold.report(ContainerEnd(exit_code=0)).model_copy(update=changed) for fold in (plain, more)]
    assert reports[0] == reports[1]
    shown = entry(line)
    assert shown is not None
    assert shown.title == "sub-agent: 10 in, 5 cached, 2 out, $0.5000, length"
    assert [list(calls(StoredLine(sequence=1, stream="stdout", data=line, at=AT), form)) for form in FORMATS] == [
        [],
        [],
    ]
    agent = AgentState()
    assert agent.add([file_line(line)])
    assert agent.add([file_line(line)])


def test_the_length_of_a_text_that_grows_is_that_of_all_that_came() -> None:
    growth, lengths = Growth(), list[int]()
    growth.begin("prt_1", "msg_1", "text", 0)
    for now, delta in enumerate(("a", "", "bc", "d" * MAX_TEXT), 1):
        growth.add("prt_1", delta)
        lengths += [line.content["length"] for line in growth.due(now)]
    assert lengths == [1, 3, 3 + MAX_TEXT]


def test_no_more_than_32_texts_grow_at_once() -> None:
    growth = Growth()
    for part in map(str, range(40)):
        growth.begin(part, "msg_1", "text", 0)
        growth.add(part, "x")
    assert [line.content["partID"] for line in growth.due(1)] == [str(part) for part in range(32)]
    growth.end("0")
    growth.begin("40", "msg_1", "text", 1)
    growth.add("40", "x")
    assert [line.content["partID"] for line in growth.due(2)] == ["40"]
