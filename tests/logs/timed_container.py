"""An agent that writes its lines at given moments of virtual time, and its sidecar's log as a kubelet serves it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from agent_runs.contracts.errors import ClusterUnavailable
from agent_runs.contracts.messages import JobRef, PodRef
from agent_runs.kube.failures import ExecFailed, LogCut, LogUnavailable
from agent_runs.kube.objects import Job, Pod
from agent_runs.logs.source import REPLAY_COMMAND, WORK_COMMAND
from tests.kube.pods import container, job, pod
from tests.logs.kubelet import framed
from tests.logs.scripted_log import ENDED, JOB, SIDECAR_RUNS

BEGIN: Final = datetime(2026, 11, 22, tzinfo=UTC)
"""The worker's wall clock at time 0."""

Period = tuple[float, float]


def now() -> float:
    return asyncio.get_running_loop().time()


def worker_clock() -> datetime:
    """The worker's wall clock."""
    return BEGIN + timedelta(seconds=now())


@dataclass
class TimedContainer:
    """Starts at time 0. Its sidecar lives on after the last frame.

    Attributes:
        outputs: when each line is written, and to which stream.
        ends_at: when it ends.
        node_ahead: how far the node's clock is ahead of the worker's.
        outages: when the API server and the node do not answer.
        stalls: when a followed log brings nothing, as on a connection that nobody noticed to be broken.
        rotations: when the log's file is replaced by an empty one.
        unreadable: when the kubelet answers a read with an error text.
        texts: what the lines are, if that matters.
        work: what the runner lists of the processes at a moment; None: it does not know the command.
        ends_unseen: its status still says that it runs, although its end is near (`deletionTimestamp`).
    """

    outputs: Sequence[tuple[float, str]] = ()
    ends_at: float = float("inf")
    node_ahead: timedelta = timedelta()
    outages: Sequence[Period] = ()
    stalls: Sequence[Period] = ()
    rotations: Sequence[float] = ()
    unreadable: Sequence[Period] = ()
    deleted: bool = False
    texts: Sequence[bytes] = ()
    work: Callable[[float], bytes | None] = lambda _: None
    opened: list[tuple[bool, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        texts = self.texts or [b"line %d" % number for number in range(len(self.outputs))]
        lines = [(stream, text + b"\n") for (_, stream), text in zip(self.outputs, texts, strict=True)]
        self.frames = framed(lines, b'{"exit_code":0}')
        self.times = [0, *(at for at, _ in self.outputs), self.ends_at]
        assert len(self.frames) == len(self.times)

    @property
    def pod_ref(self) -> PodRef:
        return PodRef(namespace="n", name="agent-opencode-x-1", uid="pod-uid", started_at=BEGIN + self.node_ahead)

    def node_time(self, at: float) -> datetime:
        return BEGIN + self.node_ahead + timedelta(seconds=at)

    @asynccontextmanager
    async def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | timedelta | None,
        idle_timeout: timedelta | None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod, container) == ("n", self.pod_ref.name, "sidecar")
        assert idle_timeout is not None
        self.opened.append((follow, since))
        if is_in(self.outages, now()):
            raise LogUnavailable(0, "refused", "")
        begin = (
            self.node_time(now()) - since if isinstance(since, timedelta) else since and since.replace(microsecond=0)
        )
        yield self._pieces(begin, idle_timeout.total_seconds(), follow=follow)

    async def _pieces(self, since: datetime | None, idle: float, *, follow: bool) -> AsyncIterator[bytes]:
        at, heard = self._oldest(), now()
        while True:
            if is_in(self.outages, now()):
                raise LogCut("the node does not answer")
            if not follow and is_in(self.unreadable, now()):
                yield b"unable to retrieve container logs for containerd://1"
                return
            text = b""
            while not (follow and is_in(self.stalls, now())) and at < len(self.times) and self.times[at] <= now():
                text += self._stamped(at, since)
                at += 1
            if text:
                heard = now()
                yield text
            if not follow:
                return
            if now() >= heard + idle:
                raise LogCut("TimeoutError")
            await asyncio.sleep(self._next(at, heard + idle) - now())

    def _next(self, at: int, idle: float) -> float:
        """When something can happen next."""
        edges = [edge for period in (*self.outages, *self.stalls) for edge in period]
        return min(moment for moment in (idle, *edges, *self.times[at : at + 1]) if moment > now())

    def _oldest(self) -> int:
        """The first line that the log's newest file has."""
        rotated = max((at for at in self.rotations if at <= now()), default=-1)
        return next((index for index, at in enumerate(self.times) if at > rotated), len(self.times))

    def _stamped(self, index: int, since: datetime | None) -> bytes:
        written = self.node_time(self.times[index])
        if since is not None and written < since:
            return b""
        return written.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode() + self.frames[index]

    @asynccontextmanager
    async def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle_timeout: timedelta
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod) == ("n", self.pod_ref.name)
        assert container == ("opencode" if tuple(argv) == WORK_COMMAND else "sidecar")
        assert limit > 0
        assert idle_timeout > timedelta()
        if is_in(self.outages, now()):
            raise ExecFailed("refused")
        if tuple(argv) == WORK_COMMAND and self.work(now()) is None:
            raise ExecFailed("exit code 64")
        yield self._answer(tuple(argv))

    async def _answer(self, argv: tuple[str, ...]) -> AsyncIterator[bytes]:
        if argv == WORK_COMMAND:
            yield self.work(now()) or b""
        elif argv[:-2] == REPLAY_COMMAND:
            numbers = range(int(argv[-2]), int(argv[-1]) + 1)
            yield b"".join(self.frames[n - 1] for n in numbers if n <= len(self.times) and self.times[n - 1] <= now())

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        assert (namespace, name) == ("n", self.pod_ref.name)
        if is_in(self.outages, now()):
            raise ClusterUnavailable("refused")
        if now() >= self.ends_at:
            return ENDED
        deleted = "2999-01-01T00:00:00Z" if self.deleted else None
        return pod(SIDECAR_RUNS, container(running={}), phase="Running", deleted=deleted)

    async def read_job(self, namespace: str, name: str) -> Job | None:
        assert (namespace, name) == ("n", JOB.name)
        return job()

    def watch_refusal(self, _namespace: str) -> str | None:
        return None

    @asynccontextmanager
    async def watch_pods(self, job: JobRef) -> AsyncIterator[AsyncIterator[list[Pod]]]:
        assert job == JOB
        yield self._states()

    async def _states(self) -> AsyncIterator[list[Pod]]:
        if self.ends_at < float("inf"):
            await asyncio.sleep(max(self.ends_at - now(), 0))
            yield [ENDED]
        await asyncio.Event().wait()


def is_in(periods: Sequence[Period], moment: float) -> bool:
    return any(begin <= moment < end for begin, end in periods)
