"""Watches for an agent that makes no progress for too long, beside the follower of its log."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from agent_runs.contracts.messages import PodRef
from agent_runs.logs.log_resume import LogReader, ReadResult
from agent_runs.logs.silence import (
    FIRST_CHECK_AFTER,
    LIVE_AFTER,
    NO_LIMITS,
    WORKING_CHECK_INTERVAL,
    LastOutput,
    SilenceClock,
    SilenceLimits,
    SilenceProof,
    WallClock,
)
from agent_runs.logs.source import Source
from agent_runs.logs.work import Work
from agent_runs.transcript.agent_state import AgentState


class SilenceWatch:
    """Takes all that is read of the log, until the silence is proven.

    Args:
        log: what was read so far.
        has_stdout: output on stdout is stored already.
        agent_state: judges the output, and knows what is stored already; without it all output is progress.
        is_running: whether nothing has shown the agent's end.
        is_stored: whether the consumer has stored all that was read, and waits for more.
        on_proven: called once the silence is proven: what is read later would change what the agent seems to wait for.

    Attributes:
        exceeded: the silence that was proven.
        chatters: the agent wrote in it, but nothing new.
    """

    def __init__(
        self,
        cluster: Source,
        pod: PodRef,
        log: LogReader,
        *,
        limits: SilenceLimits,
        has_stdout: bool,
        agent_state: AgentState | None,
        wall_clock: WallClock,
        is_running: Callable[[], bool],
        is_stored: Callable[[], bool],
        on_proven: Callable[[], None],
    ) -> None:
        self._proof = SilenceProof(cluster, pod)
        self._pod = pod
        self._log = log
        self._limits = limits
        self._had_stdout = has_stdout
        self._agent_state = agent_state
        self._wall_clock = wall_clock
        self._is_running = is_running
        self._is_stored = is_stored
        self._on_proven = on_proven
        self._clock: SilenceClock | None = None  # until it starts, and without limits
        self._progressed = self._brought_lines = False  # since output was last noted
        self._progress_stamp: datetime | None = None  # by the node's clock
        self._newest_at = 0.0
        self._newest_number = 0
        self._work: tuple[float, Work] | None = None
        self.exceeded: SilenceClock | None = None
        self.chatters = False

    @property
    def has_limits(self) -> bool:
        return self._limits != NO_LIMITS

    # what is read

    def note(self, result: ReadResult, opened: float) -> None:
        """Take what a connection brought that was opened then: just now, if that was a while ago."""
        self._judge(result)
        if self._clock is None or self._log.newest_number <= self._newest_number:
            return
        self._newest_number, now = self._log.newest_number, _now()
        self._clock.has_stdout = self._clock.has_stdout or self._log.has_stdout
        stamp = self._log.newest.written_at if self._log.newest is not None else None
        is_live = now - opened >= LIVE_AFTER.total_seconds()
        output = LastOutput(now, observed=True) if is_live else LastOutput.stamped(stamp, now, self._wall_clock())
        self._newest_at = output.at
        if self._progressed or not self._brought_lines:  # what is stored already may have been progress
            self._note(output, stamp)
        self._progressed = self._brought_lines = False

    def note_late(self, result: ReadResult) -> None:
        """Take what did not come with the newest line, as if it were written now."""
        self._judge(result)
        if self._progressed:
            self._note(LastOutput(_now(), observed=True), self._log.newest.written_at if self._log.newest else None)
            self._progressed = self._brought_lines = False

    def _judge(self, result: ReadResult) -> None:
        """Note whether it brought lines, and progress; a gap may hide some."""
        if result.lines or result.gaps:
            self._brought_lines = True
            judged = self._agent_state is None or self._agent_state.add(result.lines)
            self._progressed = self._progressed or judged or bool(result.gaps)

    def _note(self, output: LastOutput, stamp: datetime | None) -> None:
        if self._clock is not None:
            self._clock.note(output)
            self._progress_stamp = stamp

    # measuring

    def start(self) -> "asyncio.Task[None]":
        """Measure from now on. The task ends once the agent is provably silent for too long, or no limit is left."""
        now = _now()
        started = LastOutput.stamped(self._pod.started_at, now, self._wall_clock())
        check_at = now + FIRST_CHECK_AFTER.total_seconds()
        self._clock = SilenceClock(self._limits, started, check_at, has_stdout=self._had_stdout)
        return asyncio.create_task(self._measure(self._clock))

    async def _measure(self, clock: SilenceClock) -> None:
        loop = asyncio.get_running_loop()
        while clock.limit or self._limits.answered:
            clock.has_answered = self._agent_state is not None and self._agent_state.has_answered
            left = clock.remaining(loop.time()) if clock.limit else self._limits.answered
            if left > timedelta():  # the limit may be another one before it is over
                await asyncio.sleep(min(left, self._limits.shortest or left).total_seconds())
            elif not await self._is_silent(clock):
                clock.postpone(loop.time())
            elif await self._may_work(clock):
                clock.postpone(loop.time(), WORKING_CHECK_INTERVAL)
            elif clock.remaining(loop.time()) <= timedelta():  # it may have made progress while its work was looked at
                self.chatters = not clock.awaits_first_output and self._wrote_lately(clock)
                self.exceeded = clock
                self._on_proven()
                return

    async def _is_silent(self, clock: SilenceClock) -> bool:
        """Whether the agent makes no progress for too long, and all that it wrote before is stored."""
        newest = self._log.newest
        if self._agent_state is not None and self._agent_state.is_asking:
            return False
        if self._wrote_without_progress(clock):
            return self._log.missing_range is None and self._is_running()
        return (
            self._has_nothing_left
            and await self._proof.holds(clock, newest)
            and (self._has_nothing_left and self._log.newest == newest)
        )

    @property
    def _has_nothing_left(self) -> bool:
        """Whether all that was read is stored, nothing is known to be missing, and the agent runs."""
        return self._is_stored() and self._log.missing_range is None and self._is_running()

    def _wrote_without_progress(self, clock: SilenceClock) -> bool:
        """Whether the log itself shows that no progress was made for too long, both ends by the node's clock.

        No frame is missing between them, so nothing else needs to be proven.
        """
        newest = self._log.newest
        written = newest.written_at if newest is not None else None
        if clock.awaits_first_output or written is None or self._progress_stamp is None:
            return False
        return written - self._progress_stamp >= clock.limit

    def _wrote_lately(self, clock: SilenceClock) -> bool:
        """Whether there was output, without progress, in the second half of the time."""
        return self._newest_at > clock.since.at and _now() - self._newest_at < clock.limit.total_seconds() / 2

    async def _may_work(self, clock: SilenceClock) -> bool:
        """Whether a tool works although nothing shows it, or nobody can tell."""
        if self._agent_state is None or clock.awaits_first_output or clock.has_answered:
            return False
        if not self._agent_state.may_run_tool:
            return False
        work, now, before = await self._proof.work(), _now(), self._work
        if work is None:
            return True
        self._work = now, work
        if before is None:
            return work.goes_on(self._agent_state.last_progress, None, timedelta())
        return work.goes_on(self._agent_state.last_progress, before[1], timedelta(seconds=now - before[0]))


def _now() -> float:
    return asyncio.get_running_loop().time()
