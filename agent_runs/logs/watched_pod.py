"""What the shared watch shows of one pod, for whoever waits for a change of it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeAlias

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable
from agent_runs.contracts.messages import JobRef, PodRef
from agent_runs.kube.objects import Pod
from agent_runs.logs.source import Source

FIRST_PAUSE: Final = timedelta(seconds=1)
"""Before the watch is joined again after an error; doubles up to `MAX_PAUSE`."""
MAX_PAUSE: Final = timedelta(minutes=1)

Condition: TypeAlias = Callable[[Pod | None], bool]
"""Of a pod; None stands for one that no longer exists."""


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
        pause = FIRST_PAUSE
        while True:
            with suppress(ClusterUnavailable, ClusterForbidden):
                async with self._cluster.watch_pods(self._job) as states:
                    async for pods in states:
                        pause = FIRST_PAUSE
                        self._take([pod for pod in pods if pod.metadata.uid == self._uid])
            await asyncio.sleep(pause.total_seconds())
            pause = min(pause * 2, MAX_PAUSE)

    async def shows(self, condition: Condition, max_wait: timedelta) -> bool:
        """Whether the pod meets the condition, now or in time."""
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
