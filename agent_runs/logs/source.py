"""What the follower of a log needs of the cluster: requests, commands in the agent's pod, the watch on the pod."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime, timedelta
from typing import Final, Protocol

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable
from agent_runs.contracts.messages import JobRef, PodRef
from agent_runs.contracts.pod import CONTROL_DIRECTORY, OUTPUT_DIRECTORY, RUNNER_FILE, SIDECAR_FILE
from agent_runs.kube.objects import Job, Pod

SIDECAR_COMMAND: Final = ("python3", "-I", "-S", SIDECAR_FILE)
REPLAY_COMMAND: Final = (*SIDECAR_COMMAND, "replay", CONTROL_DIRECTORY)
"""Repeats frames, in the sidecar's container; the numbers of the first and the last one are appended."""
ACKNOWLEDGE_COMMAND: Final = (*SIDECAR_COMMAND, "acknowledge", CONTROL_DIRECTORY)
"""Ends the sidecar, in its container, once its last frame is written."""
WORK_COMMAND: Final = ("sh", RUNNER_FILE, "--out", OUTPUT_DIRECTORY, "--work")
"""Lists the agent's processes, in the agent's container; see `agent_runs.logs.work`."""

FIRST_WATCH_PAUSE: Final = timedelta(seconds=1)
"""Before the watch is joined again after an error; doubles up to `MAX_WATCH_PAUSE`."""
MAX_WATCH_PAUSE: Final = timedelta(minutes=1)


class Source(Protocol):
    """The part of `Cluster` that a follower needs."""

    def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | timedelta | None,
        idle_timeout: timedelta | None,
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Do the same as `Cluster.open_log`, with timestamps."""
        ...

    def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle_timeout: timedelta
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    async def read_pod(self, namespace: str, name: str) -> Pod | None: ...

    def watch_pods(self, job: JobRef) -> AbstractAsyncContextManager[AsyncIterator[list[Pod]]]: ...

    async def read_job(self, namespace: str, name: str) -> Job | None: ...


class WatchedPod:
    """The latest state of a pod that the watch has shown. All runs share the watch, so that this costs no request.

    Args:
        on_change: is called with each state.
    """

    def __init__(self, cluster: Source, job: JobRef, pod: PodRef, on_change: Callable[[Pod | None], None]) -> None:
        self._cluster = cluster
        self._job = job
        self._uid = pod.uid
        self._on_change = on_change
        self._known = False
        self._pod: Pod | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        pause = FIRST_WATCH_PAUSE
        while True:
            with suppress(ClusterUnavailable, ClusterForbidden):
                async with self._cluster.watch_pods(self._job) as states:
                    async for pods in states:
                        pause = FIRST_WATCH_PAUSE
                        self._take([pod for pod in pods if pod.metadata.uid == self._uid])
            await asyncio.sleep(pause.total_seconds())
            pause = min(pause * 2, MAX_WATCH_PAUSE)

    async def shows(self, condition: Callable[[Pod | None], bool], max_wait: timedelta) -> bool:
        """Whether the pod meets the condition, now or in time; the condition gets None once it no longer exists."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(max_wait, timedelta()).total_seconds()):
                while not (self._known and condition(self._pod)):
                    self._changed.clear()
                    await self._changed.wait()
                return True
        return False

    def _take(self, ours: list[Pod]) -> None:
        self._known, self._pod = True, ours[0] if ours else None
        self._changed.set()
        self._on_change(self._pod)
