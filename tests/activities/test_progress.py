"""Silence means no progress of the model and of tools. Hung providers, hung tools and chatter are named as such, and
nothing that works is stopped. In virtual time, by output as OpenCode writes it.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from activities.stream_logs import cause_of_silence
from agent_runs.logs.follower import Follower
from agent_runs.logs.log_resume import Cursor
from agent_runs.logs.silence import SilenceLimits
from agent_runs.transcript.agent_state import AgentState
from agent_runs.transcript.lines import Line
from tests.logs.scripted_log import JOB
from tests.logs.timed_container import TimedContainer, now, worker_clock
from tests.support.virtual_time import run_in_virtual_time
from tests.transcript.event_lines import step_finish, step_start, text, tool_use
from tests.transcript.log_lines import call, created, loop, plugin, request, stream_error, written

HOUR = 3600.0
LIMITS = SilenceLimits(silence=timedelta(hours=1))
SLACK = 400.0
"""Seconds after the limit in which a silence is found at the latest: the longest pause between checks."""


@dataclass
class Script:
    """A run of OpenCode by its seed: what it writes and when, and what its processes do."""

    seed: int
    at: float = 5.0
    outputs: list[tuple[float, str]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    ends_at: float = float("inf")
    work: Callable[[float], bytes | None] = lambda at: processes(at)  # noqa: PLW0108  # defined below
    steps: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.log(created("ses_main"))
        for _ in range(self.random.randint(1, 6)):
            self.step()

    def wait(self, least: float, most: float) -> None:
        self.at += self.random.uniform(least, most)

    def event(self, *lines: bytes) -> None:
        self.outputs += [(self.at, "stdout") for _ in lines]
        self.texts += lines

    def log(self, *lines: str) -> None:
        self.outputs += [(self.at, "stderr") for _ in lines]
        self.texts += [written(line, self.at).encode() for line in lines]

    def begin_step(self, session: str = "ses_main") -> None:
        self.log(loop(session, self.steps), request(session))
        self.steps += 1

    def step(self) -> None:
        """A step with a tool that ends, and the noise of a plugin."""
        self.begin_step()
        self.wait(1, 900)
        self.event(step_start())
        self.log(call("bash", f"make {self.steps}"), plugin(f"saved {self.steps}"))
        self.wait(1, 900)
        self.event(tool_use("bash", command=f"make {self.steps}"), step_finish())

    def finish(self) -> None:
        """The answer, and the end."""
        self.begin_step()
        self.wait(1, 60)
        self.event(step_start(), text(), step_finish("stop"))
        self.ends_at = self.at + 1


def processes(at: float, *others: tuple[float, float]) -> bytes:
    """What the runner lists: OpenCode, which began at 0, and others by their begin and CPU time, in seconds."""
    opencode = [(7, 1, 0.0, 0.0), (8, 7, 0.0, at * 0.03)]
    listed = [*opencode, *((number, 8, *other) for number, other in enumerate(others, 20))]
    rows = [f"{pid} {parent} {int((at - begin) * 100)} {int(cpu * 100)} a name" for pid, parent, begin, cpu in listed]
    return "\n".join(rows).encode()


# what may happen


def hung_request(script: Script) -> str:
    script.begin_step()
    return "provider"


def hung_after_retries(script: Script) -> str:
    script.begin_step()
    for number in range(5):
        script.wait(2, 30)
        script.log(stream_error("ses_main", f"overloaded {number}"), request("ses_main"))
    return "provider"


def hung_answer(script: Script) -> str:
    script.begin_step()
    script.wait(1, 60)
    script.event(step_start())
    server = script.random.uniform(0, 4)
    script.work = lambda at: processes(at, (server, 1))
    return "provider"


def hung_sub_agent(script: Script) -> str:
    script.begin_step()
    script.log(call("task", "general"), created("ses_child", "ses_main"), loop("ses_child", 0), request("ses_child"))
    return "provider"


def hung_tool(script: Script) -> str:
    script.begin_step()
    script.wait(1, 60)
    script.log(call("read", "fifo"))
    script.event(step_start())
    return "tool"


def hung_tool_of_an_idle_server(script: Script) -> str:
    script.begin_step()
    script.log(call("docs_search", "*"))
    script.work = lambda at: processes(at, (2, 3 + at * 0.001))
    return "tool"


def hung_tool_with_noise(script: Script) -> str:
    script.begin_step()
    script.log(call("read", "fifo"))
    for _ in range(500):
        script.wait(5, 60)
        script.log(plugin("waiting"))
    return "tool"


def retries_without_end(script: Script) -> str:
    script.begin_step()
    for number in range(2000):
        script.wait(2, 60)
        script.log(stream_error("ses_main", f"connection {number} refused"), request("ses_main"))
    return "chatter"


def noise_of_a_plugin(script: Script) -> str:
    script.begin_step()
    script.wait(1, 60)
    script.event(step_start())
    script.work = lambda at: processes(at, (2, 3))
    for number in range(2000):
        script.wait(1, 40)
        script.log(plugin(f"synchronised {number} files"))
    return "chatter"


def broken_answers_without_end(script: Script) -> str:
    script.begin_step()
    for _ in range(500):
        script.wait(100, 320)
        script.event(step_start())
        script.log(request("ses_main"))
    return "chatter"


def long_command(script: Script) -> None:
    script.begin_step()
    script.wait(1, 60)
    script.log(call("bash", "make world"))
    script.event(step_start())
    begin = script.at + 1
    script.wait(2 * HOUR, 3 * HOUR)
    ended = script.at
    script.work = lambda at: processes(at, (2, 3), *([(begin, 0)] if at < ended else []))
    script.event(tool_use("bash", command="make world"), step_finish())
    script.finish()


def long_call_of_a_server(script: Script) -> None:
    script.begin_step()
    script.log(call("docs_index", "*"))
    script.wait(2 * HOUR, 3 * HOUR)
    script.work = lambda at: processes(at, (2, at * 0.5))
    script.event(step_start(), tool_use("docs_index"), step_finish())
    script.finish()


def long_tool_of_which_nothing_is_known(script: Script) -> None:
    long_command(script)
    script.work = lambda _: None


def long_sub_agent(script: Script) -> None:
    script.begin_step()
    script.event(step_start())
    script.log(call("task", "general"), created("ses_child", "ses_main"))
    for number in range(10):
        script.log(loop("ses_child", number), request("ses_child"))
        script.wait(600, 1800)
    script.event(tool_use("task"), step_finish())
    script.finish()


def many_steps(script: Script) -> None:
    for _ in range(20):
        script.step()
    script.finish()


KINDS: tuple[Callable[[Script], str | None], ...] = (
    *(hung_request, hung_after_retries, hung_answer, hung_sub_agent),
    *(hung_tool, hung_tool_of_an_idle_server, hung_tool_with_noise),
    *(retries_without_end, noise_of_a_plugin, broken_answers_without_end),
    *(long_command, long_call_of_a_server, long_tool_of_which_nothing_is_known, long_sub_agent, many_steps),
)


@dataclass
class Followed:
    """What was found, when, and by how many workers."""

    cause: str | None
    detail: str
    at: float


async def follow(script: Script, takeovers: Sequence[float] = (), **faults: Any) -> Followed:
    """Follow to the end. At each take-over another worker continues, which knows what is stored."""
    container = TimedContainer(script.outputs, ends_at=script.ends_at, texts=script.texts, work=script.work, **faults)
    stored: list[Line] = []
    cursor = Cursor()
    for until in (*takeovers, 100 * HOUR):
        agent = AgentState()
        agent.add(stored)
        follower = Follower(
            container, JOB, container.pod_ref, cursor, limits=LIMITS, agent_state=agent, wall_clock=worker_clock
        )
        try:
            async with asyncio.timeout_at(until), follower:
                async for batch in follower:
                    stored += batch.lines
                    cursor = batch.cursor or cursor
        except TimeoutError:
            continue
        break
    if follower.silence.exceeded is None:
        return Followed(None, "", now())
    cause, detail = cause_of_silence(agent, chatters=follower.silence.chatters)
    return Followed(cause, detail, now())


@pytest.mark.parametrize("seed", range(30))
def test_what_an_agent_waits_for_is_named_and_what_works_is_never_stopped(seed: int) -> None:
    script = Script(seed)
    expected, kind = KINDS[seed % len(KINDS)], KINDS[seed % len(KINDS)].__name__
    began = script.at
    cause = expected(script)
    takeovers = sorted(script.random.uniform(0, began) for _ in range(script.random.randint(0, 2)))
    found = run_in_virtual_time(follow(script, takeovers))
    assert found.cause == cause, kind
    if cause is not None:
        assert found.at >= began + HOUR - 1, kind
    if cause is not None and "retries" not in kind:
        assert found.at <= began + HOUR + 60 + SLACK, kind


@pytest.mark.parametrize("kind", [hung_request, hung_tool, retries_without_end, long_command, long_sub_agent])
def test_a_takeover_in_the_middle_changes_nothing_in_what_is_found(kind: Callable[[Script], str | None]) -> None:
    script = Script(7)
    began = script.at
    cause = kind(script)
    found = run_in_virtual_time(follow(script, [began + 0.5 * HOUR, began + 0.9 * HOUR]))
    assert found.cause == cause


def test_what_is_found_says_which_tool_and_which_line() -> None:
    script = Script(3)
    hung_tool(script)
    assert run_in_virtual_time(follow(script)).detail == "read"
    script = Script(4)
    retries_without_end(script)
    assert "connection" in run_in_virtual_time(follow(script)).detail or "message=stream" in script.texts[-1].decode()


def test_a_tool_that_worked_and_then_hangs_is_found() -> None:
    script = Script(5)
    script.begin_step()
    script.log(call("docs_index", "*"))
    idle_from = script.at + 3 * HOUR
    script.work = lambda at: processes(at, (2, min(at, idle_from) * 0.5))
    found = run_in_virtual_time(follow(script))
    assert found.cause == "tool"
    assert idle_from <= found.at <= idle_from + 2 * SLACK


def test_an_agent_that_waits_for_a_person_for_a_day_is_not_silent_and_one_that_has_the_answer_may_be() -> None:
    script = Script(9)
    script.begin_step()
    script.event(b'{"type":"question_asked","timestamp":1,"sessionID":"s","question":{"id":"per_1","fields":[]}}')
    script.wait(24 * HOUR, 24 * HOUR)
    script.event(b'{"type":"question_answered","timestamp":2,"sessionID":"s","question":{"id":"per_1","by":"Ada"}}')
    answered = script.at
    found = run_in_virtual_time(follow(script, [answered - 12 * HOUR]))
    assert found.cause is not None
    assert answered + HOUR - 1 <= found.at <= answered + HOUR + 60 + SLACK


# lost contact


@pytest.mark.parametrize("kind", ["outages", "stalls"])
def test_progress_that_nobody_sees_for_hours_is_progress(kind: str) -> None:
    script = Script(11)
    begin = script.at
    many_steps(script)
    found = run_in_virtual_time(follow(script, (), **{kind: [(begin + 100, begin + 2.5 * HOUR)]}))
    assert found.cause is None
    assert found.at >= script.ends_at


@pytest.mark.parametrize("kind", [hung_request, hung_tool, retries_without_end])
@pytest.mark.parametrize("fault", ["outages", "stalls"])
def test_without_contact_nothing_is_found_and_after_it_what_there_was(
    fault: str, kind: Callable[[Script], str | None]
) -> None:
    script = Script(12)
    begin = script.at
    cause = kind(script)
    found = run_in_virtual_time(follow(script, (), **{fault: [(begin + 60, begin + 1.5 * HOUR)]}))
    assert found.cause == cause
    assert found.at >= begin + (1.5 if fault == "outages" else 1) * HOUR - 1


@pytest.mark.parametrize("hours", [-10, 10])
@pytest.mark.parametrize("kind", [hung_request, hung_tool, noise_of_a_plugin, long_command, many_steps])
def test_clocks_that_differ_change_nothing_in_what_is_found(hours: int, kind: Callable[[Script], str | None]) -> None:
    script = Script(13)
    begin = script.at
    cause = kind(script)
    found = run_in_virtual_time(follow(script, [begin + 0.5 * HOUR], node_ahead=timedelta(hours=hours)))
    assert found.cause == cause
