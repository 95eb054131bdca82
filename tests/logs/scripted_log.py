"""A log and a pod by a script: what each connection brings, and what each read of the status shows."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from agent_runs.contracts.messages import JobRef, PodRef
from agent_runs.kube.failures import ExecFailed, LogCut
from agent_runs.kube.objects import Job, Pod
from agent_runs.logs.follower import FollowTiming
from agent_runs.logs.source import REPLAY_COMMAND
from tests.kube.pods import container, job, pod, terminated
from tests.logs.kubelet import Log

JOB: Final = JobRef(namespace="n", name="agent-opencode-x", uid="job-uid")
POD: Final = PodRef(namespace="n", name="agent-opencode-x-1", uid="pod-uid")
QUICK: Final = FollowTiming(
    first_pause=timedelta(milliseconds=1),
    max_pause=timedelta(milliseconds=2),
    idle_timeout=timedelta(seconds=5),
    poll_interval=timedelta(milliseconds=1),
    unreadable_timeout=timedelta(milliseconds=20),
    backfill_timeout=timedelta(milliseconds=20),
    last_frame_delay=timedelta(milliseconds=1),
)
SIDECAR_RUNS: Final = container("sidecar", running={})
RUNNING: Final = pod(SIDECAR_RUNS, container(running={}), phase="Running")
ENDED: Final = pod(SIDECAR_RUNS, terminated(0, "Completed"), phase="Running")
"""The agent has ended; the sidecar lives on until its pod is deleted."""
BOTH_ENDED: Final = pod(terminated(0, "Completed", name="sidecar"), terminated(0, "Completed"), phase="Succeeded")
OPEN: Final = LogCut("idle for too long")
"""The end of a connection that brings nothing more and stays open."""


class ScriptedLog:
    """A scripted log and pod. Each entry of `connections` is one connection, the last one repeats.

    An entry is (upto, end): what of the log is there by then, and the error that ends the connection, if any. A
    followed log stays open after its last frame. Numbers in `watched` are seconds between two states.
    """

    def __init__(
        self, log: Log, connections: Sequence[tuple[int | None, Exception | None]], pods: Sequence[Any]
    ) -> None:
        self._log = log
        self._connections = list(connections)
        self._pods = list(pods)
        self.opened: list[tuple[bool, datetime | None]] = []
        self.opened_at: list[float] = []
        self.replays: list[tuple[int, int]] = []
        self.replayed_at: list[float] = []
        self.status_reads = 0
        self._idle_timeout = timedelta()
        self.job: Job | None = job()
        self.watched: list[list[Pod] | Exception | float] = []
        self.answers: list[bytes | Exception] = [ExecFailed("no container", status=500)]

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
        assert (namespace, pod, container) == ("n", POD.name, "sidecar")
        assert idle_timeout is not None
        assert not isinstance(since, timedelta)
        self.opened.append((follow, since))
        self.opened_at.append(asyncio.get_running_loop().time())
        upto, error = self._connections.pop(0) if len(self._connections) > 1 else self._connections[0]
        if error is not None and not isinstance(error, LogCut):
            raise error
        text = self._log.text(since, upto)
        if follow and error is None and self._log.has_last_frame(upto):
            error = OPEN
        self._idle_timeout = idle_timeout
        yield self._pieces(text, error)

    async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
        for at in range(0, len(text), 1000):
            yield text[at : at + 1000]
        if error is OPEN:
            await asyncio.sleep(self._idle_timeout.total_seconds())
        if error is not None:
            raise error

    @asynccontextmanager
    async def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle_timeout: timedelta
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod, container) == ("n", POD.name, "sidecar")
        assert limit > 0
        assert idle_timeout > timedelta()
        *command, first, last = argv
        assert command == list(REPLAY_COMMAND)
        self.replays.append((int(first), int(last)))
        self.replayed_at.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        text, error = (b"", answer) if isinstance(answer, Exception) else (answer, None)
        yield self._pieces(text, error)

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        assert (namespace, name) == ("n", POD.name)
        self.status_reads += 1
        state = self._pods.pop(0) if len(self._pods) > 1 else self._pods[0]
        if isinstance(state, Exception):
            raise state
        assert state is None or isinstance(state, Pod)
        return state

    async def read_job(self, namespace: str, name: str) -> Job | None:
        assert (namespace, name) == ("n", JOB.name)
        return self.job

    def watch_refusal(self, _namespace: str) -> str | None:
        return None

    @asynccontextmanager
    async def watch_pods(self, job: JobRef) -> AsyncIterator[AsyncIterator[list[Pod]]]:
        assert job.uid == JOB.uid
        yield self._states()

    async def _states(self) -> AsyncIterator[list[Pod]]:
        while self.watched:
            state = self.watched.pop(0)
            if isinstance(state, Exception):
                raise state
            if isinstance(state, list):
                yield state
            else:
                await asyncio.sleep(state)
        await asyncio.Event().wait()
