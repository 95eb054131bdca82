"""Follows the log of an agent's container until the container has ended and all of its output is in, or until the agent
has been silent for too long.

The end of a log stream proves nothing: a kubelet that restarts ends it cleanly while the container runs, and a proxy
or the API server may cut it at any time. So after every end the container's status is read, and following is over only
when the status shows the container's end and either the runner's last frame is in or two clean reads bring nothing
new. `agent_runs.logs.log_resume` decides what the text means; this module has connections, pauses and timeouts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import structlog

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable, PodLost
from agent_runs.contracts.messages import JobRef, PodRef
from agent_runs.contracts.outcome import ContainerEnd, Gap
from agent_runs.kube.diagnosis import Ended, Failing, Running, diagnose
from agent_runs.kube.objects import Job, Pod
from agent_runs.kube.port import ExecFailed, LogCut, LogRefused
from agent_runs.logs.frames import FRAME_LIMIT, LastFrame, LogLine
from agent_runs.logs.log_resume import Cursor, LogReader, ReadResult
from agent_runs.logs.silence import (
    FIRST_CHECK_AFTER,
    LIVE_AFTER,
    LastOutput,
    SilenceClock,
    SilenceLimits,
    SilenceProof,
    WallClock,
    utc_now,
)
from agent_runs.logs.source import ACKNOWLEDGE_COMMAND, REPLAY_COMMAND, Source

TAIL_FRAMES: Final = 100_000
"""Frames requested at once when their number is not known."""
BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Bytes read ahead of the consumer. A reader that stalls loses output when the kubelet rotates the log."""

EXEC_TIMEOUT: Final = timedelta(seconds=30)
"""How long a command in the container may be silent."""

log: Final[Any] = structlog.get_logger()

Termination: TypeAlias = Ended | Failing


@dataclass(frozen=True)
class FollowTiming:
    """Pauses and timeouts of a follower.

    Attributes:
        first_pause: before the second connection; doubles after each one that brings nothing.
        max_pause: the longest pause.
        ending_pause: the longest pause while the pod is being deleted. A restarted kubelet removes the log of such a
            pod a second or two after its end. Source: Kubernetes 1.20, observed.
        idle_timeout: after this long without a byte the connection is closed and the status is read.
        poll_interval: between reads on a node that cannot follow.
        unreadable_timeout: how long the log of an ended container may be unreadable before its rest counts as lost.
            Also how long missing frames are requested while the container cannot be reached.
        backfill_timeout: how long missing frames are requested while the container answers but does not have them: a
            batch is in the runner's index only when all of it is written.
        acknowledge_delay: how long the container may run after its last frame before it gets the acknowledgement that
            all is stored.
    """

    first_pause: timedelta = timedelta(milliseconds=100)
    max_pause: timedelta = timedelta(seconds=5)
    ending_pause: timedelta = timedelta(milliseconds=500)
    idle_timeout: timedelta = timedelta(minutes=2)
    poll_interval: timedelta = timedelta(seconds=1)
    unreadable_timeout: timedelta = timedelta(minutes=2)
    backfill_timeout: timedelta = timedelta(seconds=10)
    acknowledge_delay: timedelta = timedelta(seconds=1)


@dataclass
class Batch:
    """Output that came together. `cursor` is where to continue once these lines are stored."""

    lines: list[LogLine] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    cursor: Cursor | None = None

    @property
    def size(self) -> int:
        """The approximate number of bytes."""
        return sum(len(line.data) + 64 for line in self.lines)


class Follower:
    """Follows one container's log. Iterate it inside `async with`; then `termination`, `last` and `framed` are set.

    With limits on silence it also ends, with `silent_for_too_long`, once the agent has provably written nothing for so
    long and everything that it wrote before is stored (the consumer waits for more). See `agent_runs.logs.silence`.

    Raises (while iterating):
        ClusterForbidden: the worker was not allowed to read logs or pods for `FollowTiming.unreadable_timeout`.

    Every other failure is retried or reported by `termination`. Frames that the log has lost are requested from the
    runner in the container before anything beyond them is delivered (`backfilled` counts them); what it does not have
    is a gap.

    Args:
        replay: the command that repeats frames; the numbers of the first and the last one are appended. None: gaps
            remain, and the log need not have frames.
        buffer: bytes read ahead of the consumer.
        limits: how long the agent may be silent.
        has_stdout: output on stdout is stored already.
        wall_clock: this machine's.
    """

    def __init__(
        self,
        cluster: Source,
        job: JobRef,
        pod: PodRef,
        cursor: Cursor | None = None,
        *,
        timing: FollowTiming | None = None,
        replay: Sequence[str] | None = REPLAY_COMMAND,
        buffer: int = BUFFER_BYTES,
        limits: SilenceLimits | None = None,
        has_stdout: bool = False,
        wall_clock: WallClock = utc_now,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._pod = pod
        self._timing = timing or FollowTiming()
        self._replay = replay
        self._log = LogReader(cursor, can_backfill=replay is not None, expects_frames=replay is not None)
        self._delivered = cursor or Cursor()
        self._forbidden: dict[str, float] = {}
        self._buffer = _Buffer(buffer)
        self._task: asyncio.Task[None] | None = None
        self._limits = limits or SilenceLimits()
        self._had_stdout = has_stdout
        self._wall_clock = wall_clock
        self._silence: SilenceClock | None = None  # until the follower starts, and without limits
        self._silence_task: asyncio.Task[None] | None = None
        self._newest_number = 0
        self._container_id = ""
        self._last_frame_at = 0.0
        self._log_ended = False  # after the last frame: most likely the runner does not wait for an acknowledgement
        self._acknowledged = False
        self._is_pod_ending = False
        self.termination: Termination | None = None
        self.warning: str | None = None
        self.silent_for_too_long: SilenceClock | None = None
        self.connections = 0
        self.backfilled = 0

    @property
    def last(self) -> LastFrame | None:
        """The runner's last frame, None when it was killed before it, or the log has no frames."""
        return self._log.last

    @property
    def framed(self) -> bool:
        """Whether the log has frames, so that its receipt can be verified."""
        return self._log.framed

    @property
    def end(self) -> ContainerEnd | None:
        """How the container ended, None while it runs or when it is lost. A lost exit code is the last frame's."""
        if not isinstance(self.termination, Ended):
            return None
        end = self.termination.end
        if end.exit_code is None and self.last is not None and self.last.exit_code is not None:
            return end.model_copy(update={"exit_code": self.last.exit_code})
        return end

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"follow {self._pod.name}")
        if self._limits != SilenceLimits():
            now = asyncio.get_running_loop().time()
            started = LastOutput.stamped(self._pod.started_at, now, self._wall_clock())
            check_at = now + FIRST_CHECK_AFTER.total_seconds()
            self._silence = SilenceClock(self._limits, started, check_at, has_stdout=self._had_stdout)
            self._silence_task = asyncio.create_task(self._measure_silence(self._silence))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for task in (self._task, self._silence_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # retrieved here; `next_batch` has raised it already

    async def __aiter__(self) -> AsyncIterator[Batch]:
        while (batch := await self.next_batch()) is not None:
            yield batch

    def wake(self) -> None:
        """Make the current call of `next_batch`, or the next one, return at once, if need be with an empty batch."""
        self._buffer.wake()

    async def next_batch(self, max_wait: timedelta | None = None) -> Batch | None:
        """Return what has come since the last call, None at the end; empty if nothing came in time, or after `wake`."""
        batch = await self._buffer.take(max_wait)
        if batch is None:
            measured = self._silence_task is not None and self._silence_task.done()
            ended = self._silence_task if measured else self._task
            if ended is not None:
                await ended  # raises what ended it
            return None
        self._delivered = batch.cursor = batch.cursor or self._delivered
        return batch

    async def _run(self) -> None:
        try:
            await self._until_ended()
            if isinstance(self.termination, Ended) and self.last is None:
                await self._finish_log()
            await self._deliver(self._log.disconnect(final=True))
            self._apply_last_frame()
        finally:
            self._buffer.close()

    async def _measure_silence(self, clock: SilenceClock) -> None:
        """End following once the agent is provably silent for too long; return when no limit is left."""
        loop, proof = (
            asyncio.get_running_loop(),
            SilenceProof(self._cluster, self._pod, replays=self._replay is not None),
        )
        while clock.limit:
            left = clock.remaining(loop.time())
            if left > timedelta():
                await asyncio.sleep(min(left, self._limits.silence or left).total_seconds())
            elif await self._is_silent(clock, proof):
                self.silent_for_too_long = clock
                self._buffer.close()
                return
            else:
                clock.postpone(loop.time())

    async def _is_silent(self, clock: SilenceClock, proof: SilenceProof) -> bool:
        """Whether the agent is silent for too long, and all that it wrote before is stored."""
        newest = self._log.newest
        return (
            self._has_nothing_left
            and await proof.holds(clock, newest)
            and (self._has_nothing_left and self._log.newest == newest and self.termination is None)
        )

    @property
    def _has_nothing_left(self) -> bool:
        """Whether all that was read is stored, and nothing is known to be missing."""
        return self._buffer.stored and self._log.missing_range is None and self.last is None

    def _note_output(self, opened: float) -> None:
        """Note when the newest line came: just now, if this connection has been open for a while."""
        if self._silence is None or self._log.newest_number <= self._newest_number:
            return
        self._newest_number, now = self._log.newest_number, asyncio.get_running_loop().time()
        self._silence.has_stdout = self._silence.has_stdout or self._log.has_stdout
        if now - opened >= LIVE_AFTER.total_seconds():
            self._silence.note(LastOutput(now, observed=True))
        elif (newest := self._log.newest) is not None:
            self._silence.note(LastOutput.stamped(newest.written_at, now, self._wall_clock()))

    async def _until_ended(self) -> None:
        pause = _Backoff(self._timing)
        while self.termination is None:
            read = await self._read_log(follow=not self._log.needs_polling) if self.last is None else _Connection()
            if self.last is not None:
                await self._await_status(pause)
            self.termination = await self._read_termination()
            if self.termination is None:
                if read.ended_cleanly and not self._log.contiguous:
                    await self._backfill_tail()
                at_least = self._timing.poll_interval if self._log.needs_polling else timedelta()
                await self._pause(pause.after(read), at_least)

    async def _pause(self, length: timedelta, at_least: timedelta = timedelta()) -> None:
        """Pause, shorter if the pod is being deleted: its node may soon remove the log."""
        loop = asyncio.get_running_loop()
        end = loop.time() + max(length, at_least).total_seconds()
        self._is_pod_ending = self._is_pod_ending or await self._watch_shows(
            max(length, at_least), lambda pod: pod is not None and pod.metadata.deletion_timestamp is not None
        )
        left = end - loop.time()
        await asyncio.sleep(min(left, self._timing.ending_pause.total_seconds()) if self._is_pod_ending else left)

    async def _await_end(self, pieces: AsyncIterator[bytes]) -> None:
        """Await the end of the log, which follows the last frame at once, or after the acknowledgement."""
        self._last_frame_at = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.acknowledge_delay.total_seconds()):
                async for _ in pieces:
                    pass
                self._log_ended = True

    async def _await_status(self, pause: "_Backoff") -> None:
        """Wait until the container's status may show its end, which a kubelet reports up to seconds after the log.

        The watch that all runs share costs nothing; it only decides when the status is read.
        """
        waited = timedelta(seconds=asyncio.get_running_loop().time() - self._last_frame_at)
        delay = self._timing.max_pause if self._log_ended else self._timing.acknowledge_delay
        if await self._watch_shows(delay - waited, self._shows_end):
            return
        await self._acknowledge()
        delay = self._timing.max_pause if self._acknowledged or self._replay is None else pause.step()
        await self._watch_shows(delay, self._shows_end)

    def _shows_end(self, pod: Pod | None) -> bool:
        """Whether this shows the container's end, or that its pod no longer exists."""
        return pod is None or self._diagnose(pod, None, job_was_read=False) is not None

    async def _watch_shows(self, max_wait: timedelta, condition: Callable[[Pod | None], bool]) -> bool:
        """Whether our pod meets the condition in time, as the watch shows it; None stands for a deleted pod."""
        with suppress(TimeoutError, ClusterUnavailable, ClusterForbidden):
            async with (
                asyncio.timeout(max(max_wait, timedelta()).total_seconds()),
                self._cluster.watch_pods(self._job) as states,
            ):
                async for pods in states:
                    ours = [pod for pod in pods if pod.metadata.uid == self._pod.uid]
                    if condition(ours[0] if ours else None):
                        return True
        return False

    async def _acknowledge(self) -> None:
        """Acknowledge the whole log: the runner of one that may have been rotated waits until all of it is stored."""
        if self._replay is None or self._acknowledged or not self._buffer.stored:
            return
        waited = asyncio.get_running_loop().time() - self._last_frame_at
        if waited < self._timing.acknowledge_delay.total_seconds():
            return
        pod = self._pod
        try:
            async with self._cluster.exec_output(
                pod.namespace,
                pod.name,
                pod.container,
                ACKNOWLEDGE_COMMAND,
                limit=FRAME_LIMIT,
                idle_timeout=EXEC_TIMEOUT,
            ) as pieces:
                async for _ in pieces:
                    pass
        except ExecFailed:
            return  # the container has ended by now, or the next call retries
        except ClusterForbidden:
            pass  # the runner's own timeout ends its wait
        self._acknowledged = True

    async def _finish_log(self) -> None:
        """Read the rest of an ended container's log, until two reads bring nothing new or its pod no longer exists.

        The first read follows, because kubelets up to 1.21 report a pod as ended while its container still ends. The
        last one begins at the start of the log, since `sinceTime` hides lines that were stamped after the clock was set
        back. A read that does not come as far as what is known, or ends with another partial line, was cut.
        """
        pause, loop = _Backoff(self._timing), asyncio.get_running_loop()
        readable = loop.time()
        follow, quiet, partial_line = True, 0, b""
        while self.last is None and quiet < 2:
            read = await self._read_log(follow=follow, whole=quiet == 1 and self.framed)
            if read.ended_cleanly and (read.progressed or self._log.caught_up):
                readable = loop.time()
                same, partial_line = self._log.partial_line == partial_line, self._log.partial_line
                quiet = 0 if read.progressed or follow else 1 + (quiet if same else 0)
                follow = False
            elif (
                loop.time() - readable > self._timing.unreadable_timeout.total_seconds() or await self._is_pod_deleted()
            ):
                return
            else:
                await self._pause(pause.after(read))

    def _apply_last_frame(self) -> None:
        """Take the end from the last frame if the pod was deleted before its status could be read."""
        last = self.last
        if not isinstance(self.termination, Failing) or last is None or last.stopped_by:
            return
        if last.exit_code is not None:
            message = "the pod was deleted before its status could be read; the exit code is the runner's"
            self.termination = Ended(ContainerEnd(exit_code=last.exit_code, message=message))

    async def _read_log(self, *, follow: bool, whole: bool = False) -> "_Connection":
        """Read one connection.

        Args:
            whole: from the start of the log, which also happens after a connection that lacked frames.
        """
        from_start = whole or self._log.incomplete or self._log.since is None
        since = None if from_start else self._log.since
        self._log.connect(from_start=from_start)
        self.connections += 1
        pod, read, opened = self._pod, _Connection(), asyncio.get_running_loop().time()
        with suppress(LogRefused, LogCut), self._while_forbidden("pods/log"):
            async with self._cluster.open_log(
                pod.namespace,
                pod.name,
                pod.container,
                follow=follow,
                since=since,
                idle_timeout=self._timing.idle_timeout,
            ) as pieces:
                async for piece in pieces:
                    result = self._log.feed(piece)
                    self._note_output(opened)
                    read.progressed = await self._deliver(result) or read.progressed
                    if self._log.missing_range is not None:
                        await self._backfill()
                    if self._log.spent:
                        break
                    if self.last is not None:
                        await self._await_end(pieces)
                else:
                    read.ended_cleanly = True
        await self._deliver(self._log.disconnect())
        read.duration = timedelta(seconds=asyncio.get_running_loop().time() - opened)
        return read

    async def _backfill(self) -> None:
        """Request the frames that are missing before what was read last from the runner in the container."""
        while (missing := self._log.missing_range) is not None:
            await self._backfill_range(missing)

    async def _backfill_range(self, missing: range) -> None:
        loop, pause = asyncio.get_running_loop(), _Backoff(self._timing)
        began, left = loop.time(), missing
        while self.termination is None:
            answered = await self._request_replay(left)
            now = self._log.missing_range
            if now is None or now.stop != missing.stop:
                log.info("log.gap_backfilled", pod=self._pod.name, frames=len(missing))
                self.backfilled += len(missing)
                return
            progressed, left = now.start > left.start, now
            began = loop.time() if progressed else began
            timeout = self._timing.backfill_timeout if answered else self._timing.unreadable_timeout
            if answered is None or loop.time() - began >= timeout.total_seconds():
                break
            if await self._read_termination() is not None:
                break
            await self._pause(pause.after(_Connection(progressed=progressed)))
        self.backfilled += len(missing) - len(left)
        result = self._log.give_up_missing_range()
        if result.gaps:
            log.warning("log.gap_recorded", pod=self._pod.name, frames=len(left))
        await self._deliver(result)

    async def _backfill_tail(self) -> None:
        """Request frames that a rotation removed before a silence: no later frame shows that they are missing."""
        missing = self._log.open_tail(TAIL_FRAMES) if self._replay is not None else None
        if missing is None:
            return
        await self._request_replay(missing)
        backfilled_frames = self._log.close_tail() - missing.start
        if backfilled_frames:
            log.info("log.tail_backfilled", pod=self._pod.name, frames=backfilled_frames)
            self.backfilled += backfilled_frames

    async def _request_replay(self, missing: range) -> bool | None:
        """Whether the container answered; None when exec is forbidden."""
        pod, command = self._pod, [*(self._replay or ()), str(missing.start), str(missing.stop - 1)]
        limit = len(missing) * FRAME_LIMIT + FRAME_LIMIT
        self._log.begin_backfill()
        try:
            async with self._cluster.exec_output(
                pod.namespace, pod.name, pod.container, command, limit=limit, idle_timeout=EXEC_TIMEOUT
            ) as pieces:
                async for piece in pieces:
                    await self._deliver(self._log.backfill(piece))
                    if (left := self._log.missing_range) is None or left.stop != missing.stop:
                        return True
        except ExecFailed as failure:
            return failure.exit_code is not None
        except ClusterForbidden:
            return None
        return True

    async def _deliver(self, result: ReadResult) -> bool:
        if not (result.lines or result.gaps):
            return False
        await self._buffer.put(Batch(result.lines, result.gaps, self._log.cursor))
        return True

    async def _read_termination(self) -> Termination | None:
        """Read how the container ended; None while it runs or that cannot be read."""
        with suppress(ClusterUnavailable), self._while_forbidden("pods"):
            pod = await self._read_pod()
            if pod is None:
                return self._diagnose(None, await self._read_job())
            termination = self._diagnose(pod, None, job_was_read=False)
            if termination is None or pod.metadata.deletion_timestamp is None:
                return termination
            return self._diagnose(pod, await self._read_job())  # was it deleted with its Job?
        return None

    def _diagnose(self, pod: Pod | None, job: Job | None, *, job_was_read: bool = True) -> Termination | None:
        now = datetime.now(UTC)
        diagnosis = diagnose(pod, job, container=self._pod.container, had_pod=True, job_was_read=job_was_read, now=now)
        if pod is not None and self._restarted(pod):
            return Failing(PodLost, "the agent container was started a second time")
        if isinstance(diagnosis, Running):
            self.warning = diagnosis.warning
        return diagnosis if isinstance(diagnosis, Ended | Failing) else None

    @contextmanager
    def _while_forbidden(self, resource: str) -> Iterator[None]:
        """Tolerate refusals for a while: an API server that has just started refuses what it allows a moment later."""
        now = asyncio.get_running_loop().time()
        try:
            yield
        except ClusterForbidden:
            if now - self._forbidden.setdefault(resource, now) >= self._timing.unreadable_timeout.total_seconds():
                raise
        else:
            self._forbidden.pop(resource, None)

    async def _is_pod_deleted(self) -> bool:
        """Whether the API server reports that there is no such pod; False without an answer."""
        with suppress(ClusterUnavailable), self._while_forbidden("pods"):
            return await self._read_pod() is None
        return False

    async def _read_pod(self) -> Pod | None:
        pod = await self._cluster.read_pod(self._pod.namespace, self._pod.name)
        if pod is None or pod.metadata.uid != self._pod.uid:
            return None
        self._is_pod_ending = pod.metadata.deletion_timestamp is not None
        return pod

    async def _read_job(self) -> Job | None:
        job = await self._cluster.read_job(self._job.namespace, self._job.name)
        return job if job is not None and job.metadata.uid == self._job.uid else None

    def _restarted(self, pod: Pod) -> bool:
        """Whether the container was restarted since it was first seen."""
        status = pod.container(self._pod.container)
        seen = status.container_id if status is not None else ""
        self._container_id = self._container_id or seen
        return bool(seen) and seen != self._container_id


@dataclass
class _Connection:
    """What one connection brought."""

    progressed: bool = False
    ended_cleanly: bool = False
    duration: timedelta = timedelta()


class _Backoff:
    """Pauses that grow while connections bring nothing and end early."""

    def __init__(self, timing: FollowTiming) -> None:
        self._timing = timing
        self._next = timing.first_pause

    def after(self, read: _Connection) -> timedelta:
        """Return the pause after this connection, a short one if it brought something or lasted."""
        if read.progressed or read.duration > self._timing.max_pause:
            self._next = self._timing.first_pause
        return self.step()

    def step(self) -> timedelta:
        """Return the next pause."""
        now, self._next = self._next, min(self._next * 2, self._timing.max_pause)
        return now


class _Buffer:
    """Batches read ahead, bounded by their bytes and merged into one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batch: Batch | None = None
        self._size = 0
        self._closed = False
        self._has_waiter = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    @property
    def stored(self) -> bool:
        """Whether everything was taken and the consumer waits for more, so that it has stored it."""
        return self._batch is None and self._has_waiter

    async def put(self, batch: Batch) -> None:
        """Add a batch; wait while the buffer is full."""
        while self._size > self._limit:
            self._emptied.clear()
            await self._emptied.wait()
        if self._batch is None:
            self._batch = batch
        else:
            self._batch.lines += batch.lines
            self._batch.gaps += batch.gaps
            self._batch.cursor = batch.cursor
        self._size += batch.size
        self._filled.set()

    async def take(self, max_wait: timedelta | None) -> Batch | None:
        """Take everything; an empty batch when nothing came in time, None after `close`."""
        if self._batch is None and not self._closed:
            self._has_waiter = True
            if max_wait is None:  # the usual case needs no timer
                await self._filled.wait()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max_wait.total_seconds()):
                        await self._filled.wait()
        taken, self._batch, self._size = self._batch, None, 0
        self._has_waiter = self._has_waiter and taken is None
        if not self._closed:
            self._filled.clear()
        self._emptied.set()
        return taken if taken is not None or self._closed else Batch()

    def wake(self) -> None:
        """Make the waiting call of `take` return."""
        self._filled.set()

    def close(self) -> None:
        """Refuse further batches; `take` returns None once the buffer is empty."""
        self._closed = True
        self._filled.set()
