"""What OpenCode is doing is read from its events and its log: what is progress, and what it waits for."""

import random

import pytest

from agent_runs.transcript.agent_state import AgentState
from agent_runs.transcript.lines import Line
from tests.support.lines import file_line
from tests.transcript.event_lines import step_finish, step_start, text, tool_use
from tests.transcript.log_lines import call, created, loop, plugin, request, stream_error

MAIN, CHILD = "ses_main", "ses_child"


def err(line: str) -> Line:
    return file_line(line.encode(), "stderr")


def doing(*lines: Line | bytes) -> tuple[AgentState, list[bool]]:
    agent = AgentState()
    return agent, [agent.add([file_line(line) if isinstance(line, bytes) else line]) for line in lines]


BEGUN = [err(created(MAIN)), err(loop(MAIN, 0)), err(request(MAIN))]


def test_a_request_waits_for_the_provider_and_runs_no_tool() -> None:
    agent, _ = doing(*BEGUN)
    assert (agent.waits_for, agent.may_run_tool, agent.tools) == ("provider", False, ())
    agent, progress = doing(*BEGUN, step_start())
    assert (agent.waits_for, agent.may_run_tool, progress[-1]) == ("provider", True, True)


def test_a_call_that_has_not_ended_waits_for_its_tool() -> None:
    agent, progress = doing(*BEGUN, err(call("bash", "make all")), err(call("bash", "ls")), step_start())
    assert (agent.waits_for, agent.tools, agent.may_run_tool) == ("tool", ("bash",), True)
    assert progress[-3:] == [True, True, True]
    agent, _ = doing(*BEGUN, err(call("bash", "make")), err(call("edit", "a.txt")), tool_use("write"))
    assert agent.tools == ("bash",)
    agent, _ = doing(*BEGUN, err(call("edit", "a.txt")), step_start(), tool_use("write"))
    assert (agent.waits_for, agent.tools) == ("provider", ())


def test_the_next_step_ends_all_tools_however_late_the_events_come() -> None:
    late = [step_start(), tool_use("bash"), step_finish()]
    agent, _ = doing(*BEGUN, err(call("bash", "make")), err(loop(MAIN, 1)), err(request(MAIN)), *late)
    assert (agent.waits_for, agent.tools) == ("provider", ())


def test_a_sub_agent_is_a_tool_that_waits_for_a_provider_or_for_tools_of_its_own() -> None:
    child = [err(call("task", "general")), err(created(CHILD, MAIN)), err(loop(CHILD, 0)), err(request(CHILD))]
    agent, _ = doing(*BEGUN, *child)
    assert (agent.waits_for, agent.tools) == ("provider", ("task",))
    agent, _ = doing(*BEGUN, *child, err(call("read", "fifo")))
    assert (agent.waits_for, agent.tools) == ("tool", ("task", "read"))
    agent, progress = doing(*BEGUN, *child, err(call("read", "fifo")), err(loop(CHILD, 1)))
    assert (agent.waits_for, agent.tools, progress[-1]) == ("tool", ("task",), True)


def test_retries_and_repeated_lines_are_no_progress() -> None:
    first = [err(request(MAIN)), err(stream_error(MAIN, "overloaded 1"))]
    _, progress = doing(*BEGUN, *first, *[err(stream_error(MAIN, f"overloaded {n}")) for n in range(9)])
    assert progress[-9:] == [False] * 9
    agent, progress = doing(*BEGUN, *[err(plugin(f"sync {n} of ab12cd34ef{n:02}")) for n in range(50)])
    assert progress[-49:] == [False] * 49
    assert agent.repeated_line == "service=plugin message='sync 49 of ab12cd34ef49'"
    _, progress = doing(*BEGUN, step_start(), err(request(MAIN)), step_start(), err(request(MAIN)), step_start())
    assert [progress[3], progress[5], progress[7]] == [True, False, False]
    _, progress = doing(*BEGUN, step_start(), tool_use(), step_start(), text(), step_start())
    assert progress[-5:] == [True] * 5


def test_each_step_is_progress_although_its_line_looks_like_the_one_before() -> None:
    _, progress = doing(*[err(loop(MAIN, number)) for number in range(30)], err(loop(MAIN, 29)))
    assert progress == [True] * 30 + [False]


def test_a_line_of_a_kind_that_was_not_seen_is_progress() -> None:
    _, progress = doing(err(plugin("compiling")), err(plugin("linking")), b"stray", b"stray", b"{broken", b"")
    assert progress == [True, True, True, False, True, False]


def test_output_that_is_not_opencodes_shows_no_tool() -> None:
    agent, _ = doing(b'{"type":"x"}', err("compiling"))
    assert (agent.waits_for, agent.may_run_tool) == ("unknown", False)


def test_of_a_flood_only_a_part_is_compared_and_the_rest_may_be_progress() -> None:
    agent, flood = AgentState(), [err(plugin("same"))] * 201
    assert agent.add(flood[:200])
    assert not agent.add(flood[:200])
    assert agent.add(flood)


@pytest.mark.parametrize("seed", range(5))
def test_memory_is_bounded_whatever_is_written(seed: int) -> None:
    noise, agent = random.Random(seed), AgentState()
    for _ in range(3000):
        stream = noise.choice(["stdout", "stderr"])
        data = noise.choice([b"", b'{"type":"tool_use","part":{"tool":"', b" message=evaluated permission="])
        agent.add([file_line(data + noise.randbytes(noise.randint(0, 900)), stream)])
    assert len(agent._kinds) <= 1024
    assert len(agent.tools) <= 8
    assert len(agent.repeated_line) <= 200


def test_the_work_is_done_once_the_last_step_ends_with_an_answer() -> None:
    answered: list[Line | bytes] = [*BEGUN, step_start(), text("It is done."), step_finish("stop")]
    assert doing(*answered, err(loop(MAIN, 1)))[0].has_answered
    more: Line | bytes
    for more in (step_start(), b"a stray line", err(request(MAIN))):
        assert not doing(*answered, more)[0].has_answered
    assert not doing(*BEGUN, step_start(), step_finish("tool-calls"))[0].has_answered
    assert doing(step_start(), step_finish("stop"))[0].has_answered
    assert not doing(step_start(), step_finish("stop"), err("INFO service=llm stream"))[0].has_answered
    assert not doing(*BEGUN)[0].has_answered
