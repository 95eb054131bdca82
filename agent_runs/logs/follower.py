"""Follows the log of an agent's sidecar until the agent's container has ended and all of its output is in, or until the
agent has been silent for too long.

The sidecar writes the agent's output and lives on after its last frame, so its log does not end with the agent; how
the agent ended is what the status of its own container says. The end of a log stream proves nothing either: a kubelet
that restarts ends it cleanly, and a proxy or the API server may cut it at any time. So after every end the status is
read, and following is over only when it shows the agent's end and the last frame is in, or nothing more can come.
`agent_runs.logs.log_resume` decides what the text means; this module has connections, pauses and timeouts.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import structlog

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable, PodLost
from agent_runs.contracts.messages import JobRef, PodRef
from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.contracts.pod import SIDECAR_CONTAINER
from agent_runs.kube.diagnosis import ContainerEnded, Failing, Running, diagnose, silent_node
from agent_runs.kube.failures import ExecFailed, LogCut, LogRefused
from agent_runs.kube.objects import ContainerState, Job, Pod
from agent_runs.logs.buffer import BUFFER_BYTES, Batch, Buffer
from agent_runs.logs.frames import FRAME_LIMIT, LastFrame
from agent_runs.logs.log_resume import Cursor, LogReader, ReadResult
from agent_runs.logs.silence import NO_LIMITS, SilenceLimits, WallClock, utc_now
from agent_runs.logs.silence_watch import SilenceWatch
from agent_runs.logs.source import REPLAY_COMMAND, Source, WatchedPod
from agent_runs.metrics.definitions import RECONNECTS
from agent_runs.metrics.recorder import NOT_RECORDED, Recorder
from agent_runs.transcript.agent_state import AgentState

TAIL_FRAMES: Final = 100_000
"""Frames requested at once when their number is not known."""
ROTATION_BYTES: Final = 512 * 1024
"""After so many bytes of one connection the kubelet may have rotated the log: files of less than 1 MiB are unusual."""
EXEC_TIMEOUT: Final = timedelta(seconds=30)
"""How long a command in the container may be silent."""

UNRECORDED_EXIT: Final = 255
"""What a container runtime reports of a container whose end it has not seen."""
SIDECAR_LOST: Final = "the sidecar ended while the agent was running, so its output cannot be followed any more"

log: Final[Any] = structlog.get_logger()

Termination: TypeAlias = ContainerEnded | Failing


@dataclass(frozen=True)
class FollowTiming:
    """Pauses and timeouts of a follower.

    Attributes:
        first_pause: before the second connection; doubles after each one that brings nothing.
        max_pause: the longest pause.
        ending_pause: the longest pause while the pod is being deleted. A restarted kubelet removes the log of such a
            pod a second or two after its end. Source: Kubernetes 1.20, observed.
        idle_timeout: after this long without a byte the connection is closed and the status is read.
        rotated_idle_timeout: the same after `ROTATION_BYTES`. Before Kubernetes 1.29 a connection may stay at a file
            that was rotated away, and bring nothing more.
        poll_interval: between reads on a node that cannot follow.
        unreadable_timeout: how long the log of an ended container may be unreadable before its rest counts as lost.
            Also how long missing frames are requested while the sidecar cannot be reached, and how long an ended
            agent's last frame is awaited while nothing comes.
        last_checkpoint_timeout: how long that frame is awaited while the sidecar of a carried workspace answers, which
            sends the last checkpoint first.
        backfill_timeout: how long missing frames are requested while the sidecar answers but does not have them.
        last_frame_delay: how long a connection may bring nothing after the agent's end before the rest is requested
            from the sidecar; doubles, up to `max_pause`.
    """

    first_pause: timedelta = timedelta(milliseconds=100)
    max_pause: timedelta = timedelta(seconds=5)
    ending_pause: timedelta = timedelta(milliseconds=500)
    idle_timeout: timedelta = timedelta(minutes=2)
    rotated_idle_timeout: timedelta = timedelta(seconds=15)
    poll_interval: timedelta = timedelta(seconds=1)
    unreadable_timeout: timedelta = timedelta(minutes=2)
    last_checkpoint_timeout: timedelta = timedelta(minutes=15)
    backfill_timeout: timedelta = timedelta(seconds=10)
    last_frame_delay: timedelta = timedelta(seconds=1)


class Follower:
    """Follows one agent's output. Iterate it inside `async with`; then `termination` and `last_frame` are set.

    Once `may_end_early` is true, the consumer may call `end_early` instead of waiting for the status of the agent's
    container, if it has all of the output; `termination` then stays None.

    `silent_node` is what `diagnosis.silent_node` says of the pod's last state.

    With limits on silence it also ends, with `silence.exceeded`, once the agent has provably made no progress for so
    long and everything that it wrote before is stored (the consumer waits for more). See `agent_runs.logs.silence`.
    While a tool works, or may work, it is not silent.

    Raises (while iterating):
        ClusterForbidden: the worker was not allowed to read logs or pods for `FollowTiming.unreadable_timeout`.

    Every other failure is retried or reported by `termination`. Frames that the log has lost are requested from the
    sidecar before anything beyond them is delivered (`backfilled` counts them); what it does not have is a gap.

    Args:
        buffer: bytes read ahead of the consumer.
        limits: how long the agent may be silent.
        has_stdout: output on stdout is stored already.
        agent_state: judges the output, and knows what is stored already; without it all output is progress.
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
        buffer: int = BUFFER_BYTES,
        limits: SilenceLimits = NO_LIMITS,
        has_stdout: bool = False,
        agent_state: AgentState | None = None,
        wall_clock: WallClock = utc_now,
        metrics: Recorder = NOT_RECORDED,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._pod = pod
        self._timing = timing or FollowTiming()
        self._log = LogReader(cursor)
        self._delivered = cursor or Cursor()
        self._forbidden: dict[str, _Refusal] = {}
        self._buffer = Buffer(buffer)
        self._task: asyncio.Task[None] | None = None
        self._metrics = metrics
        self._silence_task: asyncio.Task[None] | None = None
        self.silence = SilenceWatch(
            cluster,
            pod,
            self._log,
            limits=limits,
            has_stdout=has_stdout,
            agent_state=agent_state,
            wall_clock=wall_clock,
            is_running=lambda: self.last_frame is None and self.termination is None,
            is_stored=lambda: self._buffer.stored,
            on_proven=self._stop_reading,
        )
        self._container_id = ""
        self._is_pod_ending = False
        self._watched = WatchedPod(cluster, job, pod, self._note_state)
        self._watch_task: asyncio.Task[None] | None = None
        self._agent_ended = False  # as the watch shows, or the status
        self._sidecar = ContainerState()  # as last read
        self._is_finishing = self._sidecar_answers = False
        self._waiting: asyncio.Timeout | None = None  # while a piece of the log is awaited
        self._last_frame_delay = self._timing.last_frame_delay
        self._progressed_at: float | None = None  # after the agent's end
        self._answered_at = 0.0
        self.termination: Termination | None = None
        self.ended_early = False
        self.silent_node: tuple[str, datetime | None] | None = None
        self.connections = 0
        self.backfilled = 0

    @property
    def last_frame(self) -> LastFrame | None:
        """The sidecar's last frame, None when it was killed before it."""
        return self._log.last_frame

    @property
    def has_frames(self) -> bool:
        """Whether the sidecar has written any frame, according to what was read now or is stored already."""
        return self._log.has_frames

    @property
    def end(self) -> ContainerEnd | None:
        """How the agent's container ended, None while it runs or when it is lost.

        A lost exit code is the last frame's.
        """
        if self.ended_early:
            return ContainerEnd(exit_code=0)
        if not isinstance(self.termination, ContainerEnded):
            return None
        end = self.termination.end
        if end.exit_code is None and self.last_frame is not None and self.last_frame.exit_code is not None:
            return end.model_copy(update={"exit_code": self.last_frame.exit_code})
        return end

    @property
    def is_end_unrecorded(self) -> bool:
        """Whether neither the sidecar nor the container runtime has recorded how the containers ended.

        Source: containerd, cleanupAfterDeadShim, which reports 255 of each container of a killed shim; observed.
        """
        sidecar = self._sidecar.terminated
        codes = {self.end.exit_code if self.end else None, sidecar.exit_code if sidecar else None}
        return self.last_frame is None and codes == {UNRECORDED_EXIT}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the worker may still not do; the output came in another way, and later."""
        return tuple(f"{refusal.message}: {ClusterForbidden.next_step}" for refusal in self._forbidden.values())

    @property
    def may_end_early(self) -> bool:
        """Whether the last frame says that the agent ended well by itself, and no output is known to be missing.

        Never once the status is known, which counts for more.
        """
        last = self.last_frame
        return (
            self.termination is None
            and last is not None
            and (last.exit_code, last.stopped_by, last.error) == (0, None, None)
            and self._log.missing_range is None
        )

    def end_early(self) -> None:
        """End without the status of the agent's container. `next_batch` then returns None."""
        self.ended_early = True
        self._buffer.close()

    async def __aenter__(self) -> Self:
        self._watch_task = asyncio.create_task(self._watched.run(), name=f"watch {self._pod.name}")
        self._task = asyncio.create_task(self._run(), name=f"follow {self._pod.name}")
        if self.silence.has_limits:
            self._silence_task = self.silence.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for task in (self._task, self._silence_task, self._watch_task) if task is not None]
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

    async def next_batch(self) -> Batch | None:
        """Return what has come since the last call, None at the end; empty after `wake`."""
        batch = await self._buffer.take()
        if batch is None and self.ended_early:
            return None
        if batch is None:
            measured = self._silence_task is not None and self._silence_task.done()
            ended = self._silence_task if measured else self._task
            if ended is not None:
                await ended  # raises what ended it
            return None
        self._delivered = batch.cursor = batch.cursor or self._delivered
        newest = self._log.newest
        batch.written_at = newest.written_at if newest is not None and batch.lines else None
        return batch

    def _stop_reading(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._until_ended()
            await self._deliver(self._log.disconnect(final=True))
            self._apply_last_frame()
        finally:
            self._buffer.close()

    async def _until_ended(self) -> None:
        pause = _Backoff(self._timing)
        while self.termination is None:
            read = _Connection()
            if self.last_frame is None:
                read = await self._read_log(follow=not self._log.needs_polling)
            if self.last_frame is not None:
                self.wake()  # the consumer may end early
                # a kubelet reports the end up to seconds later
                await self._watched.shows(self._shows_end, self._timing.max_pause)
            termination = await self._read_termination()
            if termination is not None:
                self._agent_ended = True
                if self.last_frame is None:
                    termination = await self._after_end(termination, read)
                self.termination = termination
            elif read.ended_cleanly and not self._log.contiguous:
                await self._backfill_tail()
            if self.termination is None:
                at_least = self._timing.poll_interval if self._log.needs_polling else timedelta()
                await self._pause(pause.after(read), at_least)

    async def _after_end(self, termination: Termination, read: "_Connection") -> Termination | None:
        """Get what is missing up to the last frame of an agent that has ended; None if more may come."""
        if isinstance(termination, ContainerEnded) and self._sidecar_runs:
            return termination if await self._is_tail_over(read) else None
        if isinstance(termination, ContainerEnded | _SidecarLost) and not self._never_had_output:
            self._is_finishing = True
            await self._finish_log()
        if isinstance(termination, _SidecarLost) and self.last_frame is not None:
            return await self._read_termination()  # nothing is lost
        return termination

    @property
    def _sidecar_runs(self) -> bool:
        return self._sidecar.running is not None

    @property
    def _never_had_output(self) -> bool:
        """Whether the sidecar never ran, so that no log is to be waited for."""
        return self._sidecar.waiting is not None and not self.has_frames

    async def _is_tail_over(self, read: "_Connection") -> bool:
        """Whether the last frame is in, also by the sidecar's answer, or has been awaited for too long."""
        now = asyncio.get_running_loop().time()
        if await self._backfill_tail() or read.progressed or self._progressed_at is None:
            self._progressed_at = self._answered_at = now
        if self.last_frame is not None:
            return True
        if self._sidecar_answers and now - self._progressed_at < self._timing.last_checkpoint_timeout.total_seconds():
            self._answered_at = now
        if now - self._answered_at < self._timing.unreadable_timeout.total_seconds():
            return False
        log.warning("log.last_frame_missed", pod=self._pod.name)
        return True

    async def _pause(self, length: timedelta, at_least: timedelta = timedelta()) -> None:
        """Pause, shorter if the pod is being deleted: its node may soon remove the log."""
        loop = asyncio.get_running_loop()
        end = loop.time() + max(length, at_least).total_seconds()
        self._is_pod_ending = self._is_pod_ending or await self._watched.shows(_is_being_deleted, max(length, at_least))
        left = end - loop.time()
        await asyncio.sleep(min(left, self._timing.ending_pause.total_seconds()) if self._is_pod_ending else left)

    def _note_state(self, pod: Pod | None) -> None:
        """Note a state that the watch shows: after the agent's end its last frame must soon come."""
        self.silent_node = None if pod is None else silent_node(pod)
        if not self._agent_ended and self._shows_end(pod):
            self._agent_ended = True
            if self._waiting is not None and not self._waiting.expired():
                now = asyncio.get_running_loop().time()
                self._waiting.reschedule(now + self._last_frame_delay.total_seconds())

    def _shows_end(self, pod: Pod | None) -> bool:
        """Whether this shows the agent's end, or that its pod no longer exists."""
        return pod is None or self._diagnose(pod, None, job_was_read=False) is not None

    async def _finish_log(self) -> None:
        """Read the rest of an ended sidecar's log, until two reads bring nothing new or its pod no longer exists.

        The first read follows, because kubelets up to 1.21 report a pod as ended while its container still ends. The
        last one begins at the start of the log, since `sinceTime` hides lines that were stamped after the clock was set
        back. A read that does not come as far as what is known, or ends with another partial line, was cut.
        """
        pause, loop = _Backoff(self._timing), asyncio.get_running_loop()
        readable = loop.time()
        follow, quiet, partial_line = not self._sidecar_runs, 0, b""
        while self.last_frame is None and quiet < 2:
            read = await self._read_log(follow=follow, whole=quiet == 1)
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
        last = self.last_frame
        if not isinstance(self.termination, Failing) or last is None or last.stopped_by:
            return
        if last.exit_code is not None:
            message = "the pod was deleted before its status could be read; the exit code is the runner's"
            self.termination = ContainerEnded(ContainerEnd(exit_code=last.exit_code, message=message))

    async def _read_log(self, *, follow: bool, whole: bool = False) -> "_Connection":
        """Read one connection.

        Args:
            whole: from the start of the log, which also happens after a connection that lacked frames.
        """
        from_start = whole or self._log.incomplete or self._log.since is None
        since = None if from_start else self._log.since
        self._log.connect(from_start=from_start)
        self.connections += 1
        if follow and self.connections > 1:
            self._metrics.count(RECONNECTS)
        pod, read, opened = self._pod, _Connection(), asyncio.get_running_loop().time()
        with suppress(LogRefused, LogCut), self._while_forbidden("pods/log"):
            async with self._cluster.open_log(
                pod.namespace,
                pod.name,
                SIDECAR_CONTAINER,
                follow=follow,
                since=since,
                idle_timeout=self._timing.idle_timeout,
            ) as pieces:
                while (piece := await self._next_piece(pieces, read)) is not None:
                    result = self._log.feed(piece)
                    self.silence.note(result, opened)
                    read.progressed = await self._deliver(result) or read.progressed
                    if self._log.missing_range is not None:
                        await self._backfill()
                    if self._log.spent or self.last_frame is not None:
                        break
                else:
                    read.ended_cleanly = True
        rest = self._log.disconnect()
        self.silence.note_late(rest)
        await self._deliver(rest)
        read.duration = timedelta(seconds=asyncio.get_running_loop().time() - opened)
        return read

    async def _next_piece(self, pieces: AsyncIterator[bytes], read: "_Connection") -> bytes | None:
        """Return the next piece of a connection, None at its end.

        Raises:
            LogCut: nothing came for so long that another connection may bring more.
        """
        ended = self._agent_ended and not self._is_finishing
        rotated = self._timing.rotated_idle_timeout if read.size > ROTATION_BYTES else None
        limit = self._last_frame_delay if ended else rotated
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()) as self._waiting:
                piece = await anext(pieces, None)
        except TimeoutError:
            if self._agent_ended:
                self._last_frame_delay = min(2 * self._last_frame_delay, self._timing.max_pause)
            raise LogCut("nothing came for too long") from None
        finally:
            self._waiting = None
        read.size += len(piece or b"")
        return piece

    async def _backfill(self) -> None:
        """Request the frames that are missing before what was read last from the sidecar."""
        while (missing := self._log.missing_range) is not None:
            await self._backfill_range(missing)

    async def _backfill_range(self, missing: range) -> None:
        loop, pause = asyncio.get_running_loop(), _Backoff(self._timing)
        began, left = loop.time(), missing
        while not self._is_finishing:
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
            if await self._read_termination() is not None and not self._sidecar_runs:
                break
            await self._pause(pause.after(_Connection(progressed=progressed)))
        self.backfilled += len(missing) - len(left)
        result = self._log.give_up_missing_range()
        if result.gaps:
            log.warning("log.gap_recorded", pod=self._pod.name, frames=len(left))
        self.silence.note_late(result)
        await self._deliver(result)

    async def _backfill_tail(self) -> bool:
        """Request frames that a rotation removed before a silence: no later frame shows that they are missing.

        Return whether there were any.
        """
        missing = self._log.open_tail(TAIL_FRAMES)
        if missing is None:
            return False
        answered = await self._request_replay(missing)
        self._sidecar_answers = bool(answered) and self._job.restored is not None
        backfilled_frames = self._log.close_tail() - missing.start
        if backfilled_frames:
            log.info("log.tail_backfilled", pod=self._pod.name, frames=backfilled_frames)
            self.backfilled += backfilled_frames
        return backfilled_frames > 0

    async def _request_replay(self, missing: range) -> bool | None:
        """Whether the sidecar answered; None when exec is forbidden."""
        pod, command = self._pod, [*REPLAY_COMMAND, str(missing.start), str(missing.stop - 1)]
        limit = len(missing) * FRAME_LIMIT + FRAME_LIMIT
        self._log.begin_backfill()
        try:
            async with self._cluster.exec_output(
                pod.namespace, pod.name, SIDECAR_CONTAINER, command, limit=limit, idle_timeout=EXEC_TIMEOUT
            ) as pieces:
                async for piece in pieces:
                    result = self._log.backfill(piece)
                    self.silence.note_late(result)
                    await self._deliver(result)
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
        """Read how the agent's container ended; None while it runs or that cannot be read."""
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
            return None if pod is None else self._diagnose_sidecar(pod)
        return diagnosis if isinstance(diagnosis, ContainerEnded | Failing) else None

    def _diagnose_sidecar(self, pod: Pod) -> "_SidecarLost | None":
        """Return the failure if the sidecar of a running agent has ended: it is never started again.

        A pod that is being deleted has another reason to end, which its agent's status will show.
        """
        ended = _sidecar_state(pod).terminated
        if ended is None or self.last_frame is not None or _is_being_deleted(pod):
            return None
        code = "unknown" if ended.exit_code is None else str(ended.exit_code)
        return _SidecarLost(PodLost, f"{SIDECAR_LOST}: {ended.reason or 'ended'} (exit {code})")

    @contextmanager
    def _while_forbidden(self, resource: str) -> Iterator[None]:
        """Tolerate refusals for a while: an API server that has just started refuses what it allows a moment later."""
        now = asyncio.get_running_loop().time()
        try:
            yield
        except ClusterForbidden as error:
            first = self._forbidden.setdefault(resource, _Refusal(now, str(error))).at
            if now - first >= self._timing.unreadable_timeout.total_seconds():
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
            self._sidecar = ContainerState()
            return None
        self._sidecar = _sidecar_state(pod)
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


@dataclass(frozen=True)
class _Refusal:
    """Since when a resource is forbidden, by the event loop's clock, and what the API server said."""

    at: float
    message: str


@dataclass(frozen=True)
class _SidecarLost(Failing):
    """The sidecar has ended before the agent."""


def _sidecar_state(pod: Pod) -> ContainerState:
    """The state of the sidecar; none if it is not known, because a pod that has ended may show an old one."""
    status = pod.container(SIDECAR_CONTAINER)
    if status is None or (pod.status.phase in {"Succeeded", "Failed"} and status.state.terminated is None):
        return ContainerState()
    return status.state


def _is_being_deleted(pod: Pod | None) -> bool:
    return pod is not None and pod.metadata.deletion_timestamp is not None


@dataclass
class _Connection:
    """What one connection brought; its size in bytes."""

    size: int = 0
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
        now, self._next = self._next, min(self._next * 2, self._timing.max_pause)
        return now
