"""A silent agent is detected by its container's log alone; nothing else looks like silence. All in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from agent_runs.kube.objects import Pod
from agent_runs.logs.follower import Follower
from agent_runs.logs.log_resume import Cursor
from agent_runs.logs.silence import STAMP_MARGIN, LastOutput, SilenceClock, SilenceLimits, SilenceProof
from agent_runs.logs.source import WORK_COMMAND
from agent_runs.transcript.agent_state import AgentState
from tests.kube.pods import pod, terminated
from tests.logs.scripted_log import JOB
from tests.logs.timed_container import TimedContainer, now, worker_clock
from tests.support.virtual_time import run_in_virtual_time
from tests.transcript.event_lines import step_finish, step_start, tool_use
from tests.transcript.log_lines import loop, request

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
LIMIT = SilenceLimits(first_output=timedelta(minutes=7), silence=timedelta(minutes=1))
SLACK = 31.0
"""Seconds after which silence is detected at the latest once it can be proven: the longest pause between checks."""


@dataclass
class Followed:
    """What one follower brought, and when its end came."""

    lines: int
    cursor: Cursor
    is_silent: bool
    first_output: bool
    at: float


async def follow(
    container: TimedContainer,
    cursor: Cursor | None = None,
    *,
    until: float = 30 * DAY,
    limits: SilenceLimits = LIMIT,
    has_stdout: bool = False,
    agent_state: AgentState | None = None,
) -> Followed:
    """Follow until the container ends, is silent, or this worker is gone."""
    lines, cursor = 0, cursor or Cursor()
    follower = Follower(
        container,
        JOB,
        container.pod_ref,
        cursor,
        limits=limits,
        has_stdout=has_stdout,
        agent_state=agent_state,
        wall_clock=worker_clock,
    )
    try:
        async with asyncio.timeout_at(until), follower:
            async for batch in follower:
                lines, cursor = lines + len(batch.lines), batch.cursor or cursor
    except TimeoutError:
        pass
    clock = follower.silence.exceeded
    return Followed(lines, cursor, clock is not None, clock is not None and clock.awaits_first_output, now())


def followed(container: TimedContainer, *, until: float = 30 * DAY, limits: SilenceLimits = LIMIT) -> Followed:
    return run_in_virtual_time(follow(container, until=until, limits=limits))


def every(seconds: float, until: float, stream: str = "stdout") -> list[tuple[float, str]]:
    """A line every so often, the first one at once."""
    return [(0.5 + number * seconds, stream) for number in range(int(until / seconds))]


def test_an_agent_that_writes_just_in_time_for_a_week_is_not_silent_and_costs_one_connection() -> None:
    container = TimedContainer((lines := every(59, 7 * DAY)), ends_at=lines[-1][0] + 59)
    result = followed(container)
    assert (result.is_silent, result.lines) == (False, len(container.outputs))
    assert container.opened == [(True, None)]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_silence_counts_from_the_last_line_of_either_stream(stream: str) -> None:
    result = followed(TimedContainer([(1, "stdout"), (200, stream)]))
    assert (result.is_silent, result.first_output, result.lines) == (True, False, 1)
    assert 61 <= result.at <= 62
    result = followed(TimedContainer([(1, "stdout"), (50, stream)]))
    assert (result.is_silent, result.lines) == (True, 2)
    assert 110 <= result.at <= 111


def test_without_limits_a_silent_agent_is_followed_for_ever() -> None:
    assert not followed(TimedContainer([(1, "stdout")]), limits=SilenceLimits(), until=7 * DAY).is_silent
    only_first = SilenceLimits(first_output=timedelta(minutes=7))
    assert not followed(TimedContainer([(1, "stdout")]), limits=only_first, until=7 * DAY).is_silent


def test_only_stdout_is_a_first_output() -> None:
    chatter = every(10, HOUR, "stderr")
    result = followed(TimedContainer(chatter))
    assert (result.is_silent, result.first_output) == (True, True)
    assert 7 * MINUTE <= result.at <= 7 * MINUTE + 1
    in_time = sorted([*chatter[:40], (6.9 * MINUTE, "stdout")])
    result = followed(TimedContainer(in_time))
    assert (result.is_silent, result.first_output) == (True, False)
    assert 7.9 * MINUTE <= result.at <= 7.9 * MINUTE + 1


def test_without_a_limit_on_the_first_output_silence_counts_from_the_start() -> None:
    result = followed(TimedContainer(every(10, 100, "stderr")), limits=SilenceLimits(silence=timedelta(minutes=1)))
    assert result.is_silent
    assert 150.5 <= result.at <= 151.5


# take-overs


@pytest.mark.parametrize("knows", ["the last heartbeat", "the store alone"])
@pytest.mark.parametrize("takeovers", [(40,), (2, 9, 30, 50)])
def test_a_takeover_does_not_reset_the_silence(knows: str, takeovers: Sequence[float]) -> None:
    async def run() -> Followed:
        container, cursor, result = TimedContainer([(0.5, "stdout"), (1, "stderr")]), None, None
        for end in (*takeovers, 30 * DAY):
            if result is not None:
                assert not result.is_silent
                await asyncio.sleep(0.2)  # nobody follows meanwhile
            result = await follow(container, cursor, until=end, has_stdout=cursor is not None)
            cursor = result.cursor if knows == "the last heartbeat" else Cursor(after=result.cursor.after)
        assert result is not None
        return result

    result = run_in_virtual_time(run())
    assert result.is_silent
    assert 61 <= result.at <= 63


def test_silence_without_any_worker_counts() -> None:
    async def run() -> Followed:
        await asyncio.sleep(HOUR)
        return await follow(TimedContainer([(0.5, "stdout"), (1, "stderr")]))

    result = run_in_virtual_time(run())
    assert (result.is_silent, result.first_output, result.lines) == (True, False, 2)
    assert HOUR <= result.at <= HOUR + SLACK


def test_a_takeover_does_not_reset_the_wait_for_the_first_output() -> None:
    async def run() -> Followed:
        container = TimedContainer(every(10, HOUR, "stderr"))
        first = await follow(container, until=6 * MINUTE)
        assert not first.is_silent
        return await follow(container, first.cursor)

    result = run_in_virtual_time(run())
    assert (result.is_silent, result.first_output) == (True, True)
    assert 7 * MINUTE <= result.at <= 7 * MINUTE + 1


# clocks that differ


@pytest.mark.parametrize("minutes", [-600, -10, 10, 600])
def test_different_clocks_never_make_an_agent_that_writes_look_silent(minutes: int) -> None:
    async def run() -> list[bool]:
        container = TimedContainer(every(50, HOUR), ends_at=HOUR, node_ahead=timedelta(minutes=minutes))
        cursor, silences = Cursor(), []
        for until in (30, 100, 117, 160, 500, 30 * DAY):
            result = await follow(container, cursor, until=until, has_stdout=True)
            cursor = result.cursor
            silences.append(result.is_silent)
        assert len(container.opened) < 60  # a difference between the clocks costs a few reads after each take-over
        return silences

    assert not any(run_in_virtual_time(run()))


@pytest.mark.parametrize("minutes", [-600, -10, 10, 600])
def test_different_clocks_do_not_end_an_agent_that_starts(minutes: int) -> None:
    container = TimedContainer(
        [*every(10, 300, "stderr"), (400, "stdout")], ends_at=430, node_ahead=timedelta(minutes=minutes)
    )
    assert not followed(container).is_silent


@pytest.mark.parametrize("minutes", [-600, -10, 10, 600])
@pytest.mark.parametrize("takeover", [False, True])
def test_with_different_clocks_silence_is_detected_after_twice_the_limit_at_the_latest(
    minutes: int, takeover: bool
) -> None:
    async def run() -> Followed:
        container = TimedContainer([(20, "stdout")], node_ahead=timedelta(minutes=minutes))
        cursor = Cursor()
        if takeover:
            cursor = (await follow(container, until=50)).cursor
        return await follow(container, cursor, has_stdout=takeover)

    result = run_in_virtual_time(run())
    assert result.is_silent
    assert 80 <= result.at <= 20 + 2 * MINUTE + SLACK


# lost contact


def test_an_outage_is_not_silence() -> None:
    container = TimedContainer(
        [(1, "stdout"), *((2 + at, "stdout") for at in range(0, 600, 10))], outages=[(30, 500)], ends_at=620
    )
    result = followed(container)
    assert (result.is_silent, result.lines) == (False, len(container.outputs))


def test_an_agent_that_was_silent_throughout_an_outage_is_detected_after_it() -> None:
    result = followed(TimedContainer([(1, "stdout")], outages=[(30, 500)]))
    assert result.is_silent
    assert 500 <= result.at <= 500 + SLACK


def test_a_connection_that_brings_nothing_is_not_silence() -> None:
    container = TimedContainer(every(10, 300), stalls=[(30, 110)], ends_at=301)
    result = followed(container)
    assert (result.is_silent, result.lines) == (False, len(container.outputs))


@pytest.mark.parametrize("last_line", [1, 20])
def test_a_read_that_the_kubelet_answers_with_an_error_text_proves_nothing(last_line: int) -> None:
    result = followed(TimedContainer([(last_line, "stdout")], unreadable=[(0, 300)]))
    assert result.is_silent
    assert 300 <= result.at <= 300 + SLACK


def test_a_log_that_lacks_the_newest_line_proves_nothing_unless_the_runner_has_no_newer_one() -> None:
    result = followed(TimedContainer([(1, "stdout")], rotations=[5]))
    assert result.is_silent
    assert 61 <= result.at <= 62

    class Forgetful(TimedContainer):
        """A log whose answer is empty, however cleanly it ends, while the runner has a line that nobody read."""

        @property
        def is_lying(self) -> bool:
            return now() < 200

        def _oldest(self) -> int:
            return len(self.times) if self.is_lying and now() > 5 else super()._oldest()

    result = followed(Forgetful([(1, "stdout"), (40, "stdout")], stalls=[(2, 200)]))
    assert result.is_silent
    assert (result.lines, result.at >= 200) == (2, True)


@pytest.mark.parametrize("outputs", [[], [(1, "stdout")], [(1, "stderr")]])
@pytest.mark.parametrize("rotations", [[], [5]])
def test_what_the_sidecar_writes_to_its_own_stderr_is_no_output(
    outputs: list[tuple[float, str]], rotations: list[float]
) -> None:
    class Complaining(TimedContainer):
        """Its sidecar writes a line at every moment at which its log is read."""

        async def _pieces(self, since: datetime | None, idle: float, *, follow: bool) -> AsyncIterator[bytes]:
            async for piece in super()._pieces(since, idle, follow=follow):
                yield piece
            yield self.node_time(now()).strftime("%Y-%m-%dT%H:%M:%S.%f000Z Traceback\n").encode()

    quiet, complaining = [followed(kind(outputs, rotations=rotations)) for kind in (TimedContainer, Complaining)]
    assert complaining.is_silent
    assert (complaining.at, complaining.lines) == (quiet.at, quiet.lines)


def test_a_container_that_ends_or_is_being_deleted_is_not_silent() -> None:
    assert not followed(TimedContainer([(1, "stdout")], deleted=True), until=HOUR).is_silent

    class Ended(TimedContainer):
        """Its end is in its status but not yet in its log."""

        async def read_pod(self, *_: str) -> Pod | None:
            return pod(terminated(0, "Completed"), phase="Succeeded")

    assert not followed(Ended([(1, "stdout")]), until=HOUR).is_silent


def test_an_agent_whose_output_is_not_stored_is_not_silent() -> None:
    async def run() -> bool:
        container = TimedContainer([(1, "stdout")])
        async with Follower(container, JOB, container.pod_ref, limits=LIMIT, wall_clock=worker_clock) as follower:
            await follower.next_batch()
            await asyncio.sleep(HOUR)  # the store does not answer
            return follower.silence.exceeded is not None

    assert not run_in_virtual_time(run())


def test_the_processes_of_a_silent_agent_are_listed_if_its_node_answers() -> None:
    async def processes(container: TimedContainer) -> tuple[str, ...]:
        return await SilenceProof(container, container.pod_ref).processes()

    listing = b"20 1 500 3 opencode\n21 20 400 0 make all \x1b[1m\n22 20 4\nno line of it\n" + b"23 20 4 0 %b\n" % (
        b"x" * 40
    )
    silent = TimedContainer(work=lambda _: listing)
    assert run_in_virtual_time(processes(silent)) == ("opencode", "make all", "x" * 40)
    assert run_in_virtual_time(processes(TimedContainer(outages=[(0, 1)]))) == ()
    assert run_in_virtual_time(processes(TimedContainer())) == ()


@pytest.mark.parametrize("silence", [timedelta(), timedelta(hours=1)])
def test_an_agent_that_stays_after_its_last_step_is_silent_soon(silence: timedelta) -> None:
    limits = SilenceLimits(silence=silence, answered=timedelta(seconds=30))
    for reason, found in (("stop", True), ("tool-calls", False)):
        texts = [step_start(), step_finish(reason)]
        container = TimedContainer([(100, "stdout"), (101, "stdout")], texts=texts)
        result = run_in_virtual_time(follow(container, until=3000, limits=limits, agent_state=AgentState()))
        assert (result.lines, result.is_silent) == (2, found)
        assert result.at <= 101 + 30 + SLACK or not found


def test_what_a_silent_agent_writes_afterwards_changes_nothing_of_what_was_found() -> None:
    """Else one that ends just then, on a busy node, would no longer count as one that has answered."""

    async def judged() -> bool:
        late = request("ses_1").encode()
        outputs = [(100.0, "stdout"), (101.0, "stdout"), (150.0, "stderr")]
        container = TimedContainer(outputs, texts=[step_start(), step_finish("stop"), late])
        limits, agent_state = SilenceLimits(answered=timedelta(seconds=30)), AgentState()
        follower = Follower(
            container, JOB, container.pod_ref, limits=limits, agent_state=agent_state, wall_clock=worker_clock
        )
        async with follower:
            async for _ in follower:
                pass
            assert (follower.silence.exceeded is not None, now() < 150) == (True, True)
            await asyncio.sleep(HOUR)
        return agent_state.has_answered

    assert run_in_virtual_time(judged())


def test_an_agent_that_makes_progress_while_its_processes_are_listed_is_not_silent() -> None:
    class SlowNode(TimedContainer):
        """A node that takes five seconds for a command."""

        async def _answer(self, argv: tuple[str, ...]) -> AsyncIterator[bytes]:
            await asyncio.sleep(5 if argv == WORK_COMMAND else 0)
            async for piece in super()._answer(argv):
                yield piece

    texts = [loop("ses_1", 0).encode(), request("ses_1").encode(), step_start(), tool_use()]
    outputs = [(1.0, "stderr"), (1.0, "stderr"), (1.0, "stdout"), (63.0, "stdout")]
    container = SlowNode(outputs, texts=texts, work=lambda at: b"8 7 %d 3 opencode\n" % (at * 100))
    result = run_in_virtual_time(follow(container, agent_state=AgentState(), has_stdout=True))
    assert (result.lines, result.is_silent, result.at >= 63 + MINUTE) == (4, True, True)


def test_silence_that_could_not_be_proven_is_looked_for_again_soon_and_not_all_the_time() -> None:
    for limit, pause in ((timedelta(milliseconds=100), 1), (timedelta(seconds=40), 10), (timedelta(hours=1), 30)):
        clock = SilenceClock(SilenceLimits(silence=limit), LastOutput(0), 0)
        clock.postpone(100.0, timedelta(seconds=30))
        assert clock.check_at == 100 + pause
        assert clock.remaining(100.0) == max(timedelta(seconds=pause), limit + STAMP_MARGIN - timedelta(seconds=100))
