"""Follows the log of an agent's container until the container has ended and all of its output is in.

The end of a log stream proves nothing: a kubelet that restarts ends it cleanly while the container runs on, and a
proxy or the API server may cut it at any time. So every end leads to a look at the container's status, and following
is over only when that says so and either the runner's last frame is in or two clean reads bring nothing new. What
the text means is decided in `cluster.reading`; here are connections, pauses and patience.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

import structlog

from cluster.diagnosis import Ended, Failing, Running, diagnose
from cluster.frames import FRAME_LIMIT, LastFrame
from cluster.manifest import RUN_DIRECTORY
from cluster.objects import Job, Pod
from cluster.port import ExecFailed, LogCut, LogRefused
from cluster.reading import Cursor, LogLine, Reading, Step, Tally, resume
from cluster.secrets import RUNNER_KEY
from contracts.errors import ClusterForbidden, ClusterUnavailable, PodLost
from contracts.messages import JobRef, PodRef
from contracts.outcome import ContainerEnd, Gap

__all__ = ["Batch", "Cursor", "Follower", "LogLine", "Pace", "Tally", "resume"]

TAIL: Final = 100_000
"""Frames asked for at once when nobody knows how many there are."""
BUFFER: Final = 8 * 1024 * 1024
"""Bytes read ahead of the consumer. A reader that stalls loses output when the kubelet rotates the log."""

AGAIN: Final = ("sh", f"{RUN_DIRECTORY}/secret/{RUNNER_KEY}", "--out", f"{RUN_DIRECTORY}/output", "--again")
"""The runner's command for repeating frames from its files."""
READ: Final = (*AGAIN[:-1], "--read")
"""The runner's command for a run that waits until it is read."""
ANSWER: Final = timedelta(seconds=30)
"""How long a command in the container may be silent."""

log: Final[Any] = structlog.get_logger()

Fate: TypeAlias = Ended | Failing


@dataclass(frozen=True)
class Pace:
    """Pauses and patience.

    Attributes:
        first: pause before the second try; doubles with each try that brings nothing.
        longest: the longest pause.
        leaving: the longest pause while the pod is being deleted. A kubelet that comes back to such a pod removes its
            log a second or two after the end. Source: Kubernetes 1.20, observed.
        idle: after this long without a byte the connection is given up and the status is asked.
        poll: between reads on a node that cannot follow.
        giving_up: how long the log of an ended container may be unreadable before the rest of it counts as lost. Also
            how long missing frames are asked for while nobody can be reached in the container.
        mending: how long missing frames are asked for while the container answers but does not have them: a batch is
            in the runner's index only when all of it is written.
        patience: how long the container may go on after its last frame before it is told that all is stored.
    """

    first: timedelta = timedelta(milliseconds=100)
    longest: timedelta = timedelta(seconds=5)
    leaving: timedelta = timedelta(milliseconds=500)
    idle: timedelta = timedelta(minutes=2)
    poll: timedelta = timedelta(seconds=1)
    giving_up: timedelta = timedelta(minutes=2)
    mending: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(seconds=1)


@dataclass
class Batch:
    """Output that came together. `cursor` is where to go on after these lines are stored."""

    lines: list[LogLine] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    cursor: Cursor | None = None

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return sum(len(line.data) + 64 for line in self.lines)


class Source(Protocol):
    """What a follower needs of the `Cluster` port."""

    def open_log(
        self, namespace: str, pod: str, container: str, *, follow: bool, since: datetime | None, idle: timedelta | None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """As `Cluster.open_log`, with timestamps."""
        ...

    def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle: timedelta
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """As `Cluster.exec_output`."""
        ...

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """As `Cluster.read_pod`."""
        ...

    def watch_pods(self, job: JobRef) -> AbstractAsyncContextManager[AsyncIterator[list[Pod]]]:
        """As `Cluster.watch_pods`."""
        ...

    async def read_job(self, namespace: str, name: str) -> Job | None:
        """As `Cluster.read_job`."""
        ...


class Follower:
    """Follows one container. Iterate it inside `async with`; afterwards `fate`, `last` and `framed` tell the rest.

    Raises (while iterating):
        ClusterForbidden: the worker may not read logs or pods, for `Pace.giving_up` on end.

    Everything else is ridden out, or told by `fate`. Frames that the log has lost are asked of the runner in the
    container before anything beyond them is given out (`mended` counts them); what it cannot tell is a gap.

    Args:
        again: the command that repeats frames; the numbers of the first and last are appended. None: gaps stay, and
            the log need not have frames.
        buffer: bytes read ahead of the consumer.
    """

    def __init__(
        self,
        cluster: Source,
        job: JobRef,
        pod: PodRef,
        cursor: Cursor | None = None,
        *,
        pace: Pace | None = None,
        again: Sequence[str] | None = AGAIN,
        buffer: int = BUFFER,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._pod = pod
        self._pace = pace or Pace()
        self._again = again
        self._reading = Reading(cursor, mendable=again is not None, expected=again is not None)
        self._given = cursor or Cursor()
        self._forbidden: dict[str, float] = {}
        self._buffer = _Buffer(buffer)
        self._reader: asyncio.Task[None] | None = None
        self._instance = ""
        self._over = 0.0
        self._closed = False  # the log ended behind the last frame: most likely nobody waits in the container
        self._told = False
        self._leaving = False
        self.fate: Fate | None = None
        self.doubt: str | None = None
        self.connections = 0
        self.mended = 0

    @property
    def last(self) -> LastFrame | None:
        """The runner's last word, None when it was killed before it, or the log has no frames."""
        return self._reading.last

    @property
    def framed(self) -> bool:
        """The log has frames, so its receipt can be verified."""
        return self._reading.framed

    @property
    def end(self) -> ContainerEnd | None:
        """How the container ended, None while it runs or when it is lost. The runner's word fills in a lost code."""
        if not isinstance(self.fate, Ended):
            return None
        told = self.fate.end
        if told.exit_code is None and self.last is not None and self.last.exit_code is not None:
            return told.model_copy(update={"exit_code": self.last.exit_code})
        return told

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._run(), name=f"follow {self._pod.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
            if not self._reader.cancelled():
                self._reader.exception()  # seen: whoever iterated has had it already

    async def __aiter__(self) -> AsyncIterator[Batch]:
        while (batch := await self.next_batch()) is not None:
            yield batch

    def wake(self) -> None:
        """Whoever waits for the next batch, or asks for it next, gets what there is, be it nothing."""
        self._buffer.wake()

    async def next_batch(self, within: timedelta | None = None) -> Batch | None:
        """What has come since the last call, None at the end; empty if nothing came in time, or before a `wake`."""
        batch = await self._buffer.take(within)
        if batch is None:
            if self._reader is not None:
                await self._reader  # raises what ended it
            return None
        self._given = batch.cursor = batch.cursor or self._given
        return batch

    async def _run(self) -> None:
        try:
            await self._until_ended()
            if isinstance(self.fate, Ended) and self.last is None:
                await self._finish_log()
            await self._give(self._reading.disconnect(final=True))
            self._settle()
        finally:
            self._buffer.close()

    async def _until_ended(self) -> None:
        pause = _Pause(self._pace)
        while self.fate is None:
            read = await self._read(follow=not self._reading.starved) if self.last is None else _Read()
            if self.last is not None:
                await self._await_status(pause)
            self.fate = await self._look()
            if self.fate is None:
                if read.clean and not self._reading.anchored:
                    await self._rescue_tail()
                await self._rest(pause.after(read), at_least=self._pace.poll if self._reading.starved else timedelta())

    async def _rest(self, length: timedelta, at_least: timedelta = timedelta()) -> None:
        """A pause, cut short when the pod is being deleted: what its node has of it may soon be gone."""
        loop = asyncio.get_running_loop()
        end = loop.time() + max(length, at_least).total_seconds()
        self._leaving = self._leaving or await self._shown(
            max(length, at_least), lambda pod: pod is not None and pod.metadata.deletion_timestamp is not None
        )
        left = end - loop.time()
        await asyncio.sleep(min(left, self._pace.leaving.total_seconds()) if self._leaving else left)

    async def _await_end(self, pieces: AsyncIterator[bytes]) -> None:
        """Nothing follows the last frame but the end of the log, at once or when the runner is told to go."""
        self._over = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.patience.total_seconds()):
                async for _ in pieces:
                    pass
                self._closed = True

    async def _await_status(self, pause: "_Pause") -> None:
        """Until the container's status may say how it ended, which a kubelet tells up to seconds after the log.

        The watch that all runs share costs nothing; it is never believed, only asked when to look.
        """
        waited = timedelta(seconds=asyncio.get_running_loop().time() - self._over)
        if await self._shown((self._pace.longest if self._closed else self._pace.patience) - waited, self._over_by):
            return
        await self._let_go()
        await self._shown(self._pace.longest if self._told or self._again is None else pause.step(), self._over_by)

    def _over_by(self, pod: Pod | None) -> bool:
        """Whether this shows the container's end. Its pod may be gone, too."""
        return pod is None or self._judge(pod, None, asked=False) is not None

    async def _shown(self, within: timedelta, sign: Callable[[Pod | None], bool]) -> bool:
        """Whether the watch shows our pod with this sign in time, None for one that it does not show."""
        with suppress(TimeoutError, ClusterUnavailable, ClusterForbidden):
            async with (
                asyncio.timeout(max(within, timedelta()).total_seconds()),
                self._cluster.watch_pods(self._job) as states,
            ):
                async for pods in states:
                    ours = [pod for pod in pods if pod.metadata.uid == self._pod.uid]
                    if sign(ours[0] if ours else None):
                        return True
        return False

    async def _let_go(self) -> None:
        """The runner of a log that may have been rotated waits until somebody says that all of it is stored."""
        waited = asyncio.get_running_loop().time() - self._over
        if self._again is None or self._told or not self._buffer.stored or waited < self._pace.patience.total_seconds():
            return
        pod = self._pod
        try:
            async with self._cluster.exec_output(
                pod.namespace, pod.name, pod.container, READ, limit=FRAME_LIMIT, idle=ANSWER
            ) as pieces:
                async for _ in pieces:
                    pass
        except ExecFailed:
            return  # it has ended by now, or it is tried again
        except ClusterForbidden:
            pass  # it ends by itself, later
        self._told = True

    async def _finish_log(self) -> None:
        """The rest of an ended container's log: once more as long as it lasts, then until nothing new comes twice.

        A log whose pod is gone comes back no more.

        The first read follows, because kubelets up to 1.21 call a pod ended while its container still ends. The last
        one begins at the start of the log, since stamps of a clock that was set back hide lines from `sinceTime`. A
        read that does not come as far as what is known, or ends in another part of a line, was cut.
        """
        pause, loop = _Pause(self._pace), asyncio.get_running_loop()
        readable = loop.time()
        follow, quiet, rest = True, 0, b""
        while self.last is None and quiet < 2:
            read = await self._read(follow=follow, whole=quiet == 1 and self.framed)
            if read.clean and (read.moved or self._reading.reached):
                readable = loop.time()
                same, rest = self._reading.rest == rest, self._reading.rest
                quiet = 0 if read.moved or follow else 1 + (quiet if same else 0)
                follow = False
            elif loop.time() - readable > self._pace.giving_up.total_seconds() or await self._gone():
                return
            else:
                await self._rest(pause.after(read))

    def _settle(self) -> None:
        """A pod that vanished after the runner's last frame has ended by itself, and the runner said how."""
        last = self.last
        if isinstance(self.fate, Failing) and last is not None and last.exit_code is not None and not last.stopped_by:
            message = "the pod was gone before its status could be read; the exit code is the runner's word"
            self.fate = Ended(ContainerEnd(exit_code=last.exit_code, message=message))

    async def _read(self, *, follow: bool, whole: bool = False) -> "_Read":
        """One connection.

        Args:
            whole: from the start of the log; also after a connection that lacked frames.
        """
        from_start = whole or self._reading.incomplete or self._reading.since is None
        since = None if from_start else self._reading.since
        self._reading.connect(from_start=from_start)
        self.connections += 1
        pod, read, opened = self._pod, _Read(), asyncio.get_running_loop().time()
        with suppress(LogRefused, LogCut), self._while_forbidden("pods/log"):
            async with self._cluster.open_log(
                pod.namespace, pod.name, pod.container, follow=follow, since=since, idle=self._pace.idle
            ) as pieces:
                async for piece in pieces:
                    read.moved = await self._give(self._reading.feed(piece)) or read.moved
                    if self._reading.hole is not None:
                        await self._mend()
                    if self._reading.spent:
                        break
                    if self.last is not None:
                        await self._await_end(pieces)
                else:
                    read.clean = True
        await self._give(self._reading.disconnect())
        read.lasted = timedelta(seconds=asyncio.get_running_loop().time() - opened)
        return read

    async def _mend(self) -> None:
        """Close the holes before what was read last, as far as somebody in the container can tell what is missing."""
        while (hole := self._reading.hole) is not None:
            await self._mend_one(hole)

    async def _mend_one(self, hole: range) -> None:
        loop, pause = asyncio.get_running_loop(), _Pause(self._pace)
        began, left = loop.time(), hole
        while self.fate is None:
            answered = await self._ask_again(left)
            now = self._reading.hole
            if now is None or now.stop != hole.stop:
                log.info("log.gap_repaired", pod=self._pod.name, frames=len(hole))
                self.mended += len(hole)
                return
            moved, left = now.start > left.start, now
            began = loop.time() if moved else began
            patience = self._pace.mending if answered else self._pace.giving_up
            if answered is None or loop.time() - began >= patience.total_seconds() or await self._look() is not None:
                break
            await self._rest(pause.after(_Read(moved=moved)))
        self.mended += len(hole) - len(left)
        step = self._reading.give_up_hole()
        if step.gaps:
            log.warning("log.gap_recorded", pod=self._pod.name, frames=len(left))
        await self._give(step)

    async def _rescue_tail(self) -> None:
        """What a rotation took before a silence: no later frame tells that it is missing, so the runner is asked."""
        hole = self._reading.open_tail(TAIL) if self._again is not None else None
        if hole is None:
            return
        await self._ask_again(hole)
        rescued = self._reading.close_tail() - hole.start
        if rescued:
            log.info("log.tail_rescued", pod=self._pod.name, frames=rescued)
            self.mended += rescued

    async def _ask_again(self, hole: range) -> bool | None:
        """Whether the container answered; None when it may not be asked."""
        pod, command = self._pod, [*(self._again or ()), str(hole.start), str(hole.stop - 1)]
        limit = len(hole) * FRAME_LIMIT + FRAME_LIMIT
        self._reading.begin_mending()
        try:
            async with self._cluster.exec_output(
                pod.namespace, pod.name, pod.container, command, limit=limit, idle=ANSWER
            ) as pieces:
                async for piece in pieces:
                    await self._give(self._reading.mend(piece))
                    if (left := self._reading.hole) is None or left.stop != hole.stop:
                        return True
        except ExecFailed as failure:
            return failure.exit_code is not None
        except ClusterForbidden:
            return None
        return True

    async def _give(self, step: Step) -> bool:
        if not (step.lines or step.gaps):
            return False
        await self._buffer.put(Batch(step.lines, step.gaps, self._reading.cursor))
        return True

    async def _look(self) -> Fate | None:
        """The container's fate, None while it runs or nobody can tell."""
        with suppress(ClusterUnavailable), self._while_forbidden("pods"):
            pod = await self._read_pod()
            if pod is None:
                return self._judge(None, await self._read_job())
            fate = self._judge(pod, None, asked=False)
            if fate is None or pod.metadata.deletion_timestamp is None:
                return fate
            return self._judge(pod, await self._read_job())  # did it go with its Job?
        return None

    def _judge(self, pod: Pod | None, job: Job | None, *, asked: bool = True) -> Fate | None:
        now = datetime.now(UTC)
        diagnosis = diagnose(pod, job, container=self._pod.container, had_pod=True, asked=asked, now=now)
        if pod is not None and self._restarted(pod):
            return Failing(PodLost, "the agent container was started a second time")
        if isinstance(diagnosis, Running):
            self.doubt = diagnosis.doubt
        return diagnosis if isinstance(diagnosis, Ended | Failing) else None

    @contextmanager
    def _while_forbidden(self, resource: str) -> Iterator[None]:
        """Rides out refusals for a while: an API server that has just started refuses what it allows a moment later."""
        now = asyncio.get_running_loop().time()
        try:
            yield
        except ClusterForbidden:
            if now - self._forbidden.setdefault(resource, now) >= self._pace.giving_up.total_seconds():
                raise
        else:
            self._forbidden.pop(resource, None)

    async def _gone(self) -> bool:
        """Whether the API server says that there is no such pod. No answer is none."""
        with suppress(ClusterUnavailable), self._while_forbidden("pods"):
            return await self._read_pod() is None
        return False

    async def _read_pod(self) -> Pod | None:
        pod = await self._cluster.read_pod(self._pod.namespace, self._pod.name)
        if pod is None or pod.metadata.uid != self._pod.uid:
            return None
        self._leaving = pod.metadata.deletion_timestamp is not None
        return pod

    async def _read_job(self) -> Job | None:
        job = await self._cluster.read_job(self._job.namespace, self._job.name)
        return job if job is not None and job.metadata.uid == self._job.uid else None

    def _restarted(self, pod: Pod) -> bool:
        """Whether this is another instance of the container than the one that was followed so far."""
        status = pod.container(self._pod.container)
        seen = status.container_id if status is not None else ""
        self._instance = self._instance or seen
        return bool(seen) and seen != self._instance


@dataclass
class _Read:
    """What one connection was good for."""

    moved: bool = False
    clean: bool = False
    lasted: timedelta = timedelta()


class _Pause:
    """Pauses that grow while connections bring nothing and do not last."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._next = pace.first

    def after(self, read: _Read) -> timedelta:
        """The next pause, a short one if the connection was good for something."""
        if read.moved or read.lasted > self._pace.longest:
            self._next = self._pace.first
        return self.step()

    def step(self) -> timedelta:
        """The next pause."""
        now, self._next = self._next, min(self._next * 2, self._pace.longest)
        return now


class _Buffer:
    """Batches read ahead, bounded by their bytes; what has piled up is taken as one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Batch | None = None
        self._size = 0
        self._closed = False
        self._awaited = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    @property
    def stored(self) -> bool:
        """Everything was taken, and whoever took it has come back for more."""
        return self._held is None and self._awaited

    async def put(self, batch: Batch) -> None:
        """Add a batch; waits while too much is held."""
        while self._size > self._limit:
            self._emptied.clear()
            await self._emptied.wait()
        if self._held is None:
            self._held = batch
        else:
            self._held.lines += batch.lines
            self._held.gaps += batch.gaps
            self._held.cursor = batch.cursor
        self._size += batch.size
        self._filled.set()

    async def take(self, within: timedelta | None) -> Batch | None:
        """Everything held; an empty batch when nothing came in time, None when nothing will come any more."""
        if self._held is None and not self._closed:
            self._awaited = True
            if within is None:  # the usual case costs no clock
                await self._filled.wait()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(within.total_seconds()):
                        await self._filled.wait()
        taken, self._held, self._size = self._held, None, 0
        self._awaited = self._awaited and taken is None
        if not self._closed:
            self._filled.clear()
        self._emptied.set()
        return taken if taken is not None or self._closed else Batch()

    def wake(self) -> None:
        """Let go whoever waits."""
        self._filled.set()

    def close(self) -> None:
        """Nothing more will be put."""
        self._closed = True
        self._filled.set()
