"""How long an agent has made no progress: measured while its log is followed, and believed only when it is proven.

`AgentState` decides what counts as progress; other output does not end a silence. An agent is not silent while a tool
works, which its processes show (`agent_runs.logs.work`), nor while nobody can tell.

Three clocks take part. A line that arrives while the log is followed is as old as its arrival, by the event loop's
clock. What was in the log before, as after a worker take-over, and the container's start have only the stamps of the
node's clock, so their age is first estimated by this machine's clock, and then the node is asked for the lines of the
last N seconds by its own clock. A difference between the clocks may therefore delay the detection, by that difference
or by one limit per take-over at the most; it never makes an agent that writes look silent.

Lost contact is not silence either. The log is read once more, and must repeat the newest line that is known (or the
sidecar must have no newer one, where a rotation has moved that line away), and the container's status must say that it
runs. Whatever cannot be read now proves nothing.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable
from agent_runs.contracts.messages import PodRef
from agent_runs.contracts.pod import SIDECAR_CONTAINER
from agent_runs.kube.failures import ExecFailed, LogCut, LogRefused
from agent_runs.logs.frames import FRAME_LIMIT, Frame, FrameReader, Junk
from agent_runs.logs.log_resume import NewestFrame
from agent_runs.logs.source import REPLAY_COMMAND, WORK_COMMAND, Source
from agent_runs.logs.work import Work, process_names
from agent_runs.transcript.events import printable

LIVE_AFTER: Final = timedelta(seconds=10)
"""What arrives this long after a connection was opened was written just now; before that the log's past arrives."""
STAMP_MARGIN: Final = timedelta(seconds=1)
"""Before what was not observed is checked: a container's start has whole seconds, and its log begins later."""
FIRST_CHECK_AFTER: Final = timedelta(seconds=1)
"""After following starts: by then most of the log's past is read."""
MAX_CHECK_INTERVAL: Final = timedelta(seconds=30)
"""Between checks while silence cannot be proven. A quarter of the limit if that is less, but at least a second."""
WORKING_CHECK_INTERVAL: Final = timedelta(minutes=5)
"""Between checks while a tool works. A quarter of the limit if that is less, but at least a second."""
IDLE_TIMEOUT: Final = timedelta(seconds=15)
"""Time-out for each piece of a log or of a command's output."""
MAX_PROCESS_LIST: Final = 16 * 1024
"""Bytes of a list of processes."""
MAX_PROCESSES: Final = 20
"""Processes that are listed, each by at most 40 characters; never their arguments, which may hold secrets."""

WallClock: TypeAlias = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class SilenceLimits:
    """How long an agent may be silent; zero sets no limit.

    Attributes:
        first_output: from the container's start to the first output on stdout. Until then `silence` does not count.
        silence: without any progress on stdout or stderr.
        answered: the same once its work is done, if that is less.
    """

    first_output: timedelta = timedelta()
    silence: timedelta = timedelta()
    answered: timedelta = timedelta()

    @property
    def shortest(self) -> timedelta:
        """Of the limits after the first output; zero for none."""
        return min(filter(None, (self.silence, self.answered)), default=timedelta())


NO_LIMITS: Final = SilenceLimits()


@dataclass(frozen=True, order=True)
class LastOutput:
    """When the last output came.

    Attributes:
        at: by the event loop's clock, in seconds.
        observed: it arrived just then; otherwise its age was estimated by another machine's stamp.
    """

    at: float
    observed: bool = False

    @classmethod
    def stamped(cls, stamp: datetime | None, loop_time: float, now: datetime) -> "LastOutput":
        """Estimate by a stamp of the node's clock; now without one, or with one that lies ahead."""
        age = max((now - stamp).total_seconds(), 0) if stamp is not None else 0
        return cls(loop_time - age)


@dataclass
class SilenceClock:
    """For how long the agent has been silent, as far as the log was read. Pure: times are passed in.

    Attributes:
        started: when the container started.
        check_at: not before this is silence checked, by the event loop's clock.
        has_stdout: the agent has written to stdout.
        has_answered: its work is done.
    """

    limits: SilenceLimits
    started: LastOutput
    check_at: float
    has_stdout: bool = False
    has_answered: bool = False
    _last: LastOutput | None = None

    @property
    def awaits_first_output(self) -> bool:
        """Whether only the limit on the first output counts."""
        return bool(self.limits.first_output) and not self.has_stdout

    @property
    def limit(self) -> timedelta:
        """The limit that counts now; zero for none."""
        if self.awaits_first_output:
            return self.limits.first_output
        return self.limits.shortest if self.has_answered else self.limits.silence

    @property
    def since(self) -> LastOutput:
        """The last output that counts, or the container's start."""
        return self.started if self.awaits_first_output or self._last is None else max(self.started, self._last)

    def note(self, output: LastOutput) -> None:
        self._last = output if self._last is None else max(self._last, output)

    def remaining(self, loop_time: float) -> timedelta:
        """How long until the limit is exceeded if nothing more is written; zero or less: check it."""
        since = self.since
        margin = timedelta() if since.observed else STAMP_MARGIN
        due = max(since.at + (self.limit + margin).total_seconds(), self.check_at)
        return timedelta(seconds=due - loop_time)

    def postpone(self, loop_time: float, longest: timedelta = MAX_CHECK_INTERVAL) -> None:
        """Check again later: silence could not be proven now."""
        interval = max(min(self.limit / 4, longest), timedelta(seconds=1))
        self.check_at = loop_time + interval.total_seconds()


@dataclass(frozen=True)
class SilenceProof:
    """Proves that an agent is silent, by what node and API server say now."""

    cluster: Source
    pod: PodRef

    async def holds(self, clock: SilenceClock, newest: NewestFrame | None) -> bool:
        """Whether the agent runs and has written nothing for `clock.limit`; False if that cannot be learned now.

        Args:
            newest: the newest frame that was read.
        """
        first = clock.awaits_first_output
        with suppress(LogRefused, LogCut, ExecFailed, ClusterForbidden, ClusterUnavailable):
            return (
                await self._is_newest(newest, first_output=first)
                and (clock.since.observed or await self._none_within(clock.limit, first_output=first))
                and await self._runs()
            )
        return False

    async def _is_newest(self, newest: NewestFrame | None, *, first_output: bool) -> bool:
        """Whether the log still ends with the newest frame that is known; to the first output stderr does not count."""
        repeated = False
        async with aclosing(self._read(newest.written_at if newest else None)) as items:
            async for item in items:
                later = newest is None or newest.precedes(item)
                if is_message_of_kubelet(item) or (later and ends_silence(item, first_output=first_output)):
                    return False
                repeated = repeated or later or newest is None or newest.equals(item)
        return repeated or newest is None or await self._sidecar_has_nothing_after(newest)

    async def _none_within(self, limit: timedelta, *, first_output: bool) -> bool:
        """Whether the node's own clock says that the last output, or the container's start, is older than the limit."""
        async with aclosing(self._read(limit)) as items:
            async for item in items:
                is_start = isinstance(item, Frame) and item.stream == "hello"
                if is_message_of_kubelet(item) or is_start or ends_silence(item, first_output=first_output):
                    return False
        return True

    async def _sidecar_has_nothing_after(self, newest: NewestFrame) -> bool:
        """Whether the sidecar has no later frame: a rotation has moved the newest one to a file that is not read."""
        reader, following = FrameReader(), str(newest.number + 1)
        command = (*REPLAY_COMMAND, following, following)
        answer = await self._exec(SIDECAR_CONTAINER, command, FRAME_LIMIT * 2)
        return not any(isinstance(item, Frame) for item in reader.feed(answer))

    async def _runs(self) -> bool:
        """Whether the agent's container runs, as the pod itself says, and nobody is ending it."""
        pod = await self.cluster.read_pod(self.pod.namespace, self.pod.name)
        if pod is None or pod.metadata.uid != self.pod.uid or pod.metadata.deletion_timestamp is not None:
            return False
        status = pod.container(self.pod.container)
        return status is not None and status.state.running is not None

    async def processes(self) -> tuple[str, ...]:
        """The names of the processes in the agent's container; none if they cannot be read."""
        listing = b""
        with suppress(ExecFailed, ClusterForbidden):
            listing = await self._exec(self.pod.container, WORK_COMMAND, MAX_PROCESS_LIST)
        names = [printable(name.decode(errors="replace"), 40) for name in process_names(listing)]
        return tuple(name for name in names if name)[:MAX_PROCESSES]

    async def work(self) -> Work | None:
        """What the processes in the agent's container have done so far; None if that cannot be read."""
        with suppress(ExecFailed, ClusterForbidden, ClusterUnavailable):
            return Work.parse(await self._exec(self.pod.container, WORK_COMMAND, MAX_PROCESS_LIST))
        return None

    async def _read(self, since: datetime | timedelta | None) -> AsyncGenerator[Frame | Junk]:
        pod, reader = self.pod, FrameReader(timestamps=True)
        async with self.cluster.open_log(
            pod.namespace, pod.name, SIDECAR_CONTAINER, follow=False, since=since, idle_timeout=IDLE_TIMEOUT
        ) as pieces:
            async for piece in pieces:
                for item in reader.feed(piece):
                    yield item
        for rest in reader.close():
            yield rest

    async def _exec(self, container: str, command: tuple[str, ...], limit: int) -> bytes:
        pod = self.pod
        async with self.cluster.exec_output(
            pod.namespace, pod.name, container, command, limit=limit, idle_timeout=IDLE_TIMEOUT
        ) as pieces:
            return b"".join([piece async for piece in pieces])


def ends_silence(item: Frame | Junk, *, first_output: bool) -> bool:
    """Whether this ends the silence. What the sidecar writes to its own stderr is no output of the agent."""
    if isinstance(item, Junk):
        return False
    return item.stream in {"stdout", "last"} or (item.stream == "stderr" and not first_output)


def is_message_of_kubelet(item: Frame | Junk) -> bool:
    """Whether this was not written by the container: the log could not be read, whatever the answer's status."""
    return isinstance(item, Junk) and item.timestamp is None
