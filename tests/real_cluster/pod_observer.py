"""Watches one agent's pods during a run, from the first to the last."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from agent_runs.contracts.errors import ClusterUnavailable
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Pod
from agent_runs.kube.ownership import ATTEMPT, agent_selector

CONTAINER = "opencode"
WATCH_LIFETIME = timedelta(minutes=9)


@dataclass
class PodObserver:
    """Every pod of the agent in its last state, also deleted ones.

    Attributes:
        pods: by uid, in the order of their appearance.
        deleted: the uids of pods that the API server no longer has.
        started: the uids of pods whose agent has started.
        alive: the uids of pods whose agent has started and was not reported to have ended. A disconnected node reports
            nothing, and one that evicts a pod deletes its container statuses.
        max_alive: the greatest number of agents alive at a time.
        early_jobs: the Jobs that had a pod while the agent of an earlier attempt was alive.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    alive: set[str] = field(default_factory=set)
    max_alive: int = 0
    early_jobs: set[str] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[Pod], bool]) -> Pod:
        """The first pod that meets the condition, as soon as there is one."""
        while True:
            self._changed.clear()
            pod = next((pod for pod in self.pods.values() if condition(pod)), None)
            if pod is not None:
                return pod
            await self._changed.wait()

    async def started_pod(self, attempt: int) -> Pod:
        """The attempt's pod, once its agent has started."""
        return await self.until(lambda pod: pod.metadata.uid in self.started and attempt_of(pod) == attempt)

    @property
    def jobs(self) -> list[str]:
        """The Jobs that had a pod, by name, one entry for each uid."""
        owners = [pod.metadata.owner_references[0] for pod in self.pods.values()]
        return [name for _, name in dict.fromkeys((owner.uid, owner.name) for owner in owners)]

    @property
    def agents(self) -> list[int]:
        """The attempts whose agent ever started, one entry for each pod."""
        return sorted(attempt_of(self.pods[uid]) for uid in self.started)

    def take(self, kind: str, pod: Pod) -> None:
        if kind not in {"ADDED", "MODIFIED", "DELETED"}:
            return
        uid = pod.metadata.uid
        self.pods[uid] = pod
        self._update(uid, pod)
        if kind == "DELETED":
            self.deleted.add(uid)
            self.alive.discard(uid)
        self.max_alive = max(self.max_alive, len(self.alive))
        if any(attempt_of(self.pods[other]) < attempt_of(pod) for other in self.alive):
            self.early_jobs.add(pod.metadata.owner_references[0].name)
        self._changed.set()

    def _update(self, uid: str, pod: Pod) -> None:
        """Read the container status; a pod deleted before its start may report an end without a start."""
        status = pod.container(CONTAINER)
        if status is None:
            return
        ended = status.state.terminated
        if status.state.running is not None:
            self.started.add(uid)
            self.alive.add(uid)
        elif ended is not None:
            self.alive.discard(uid)
            if ended.started_at is not None and ended.container_id:
                self.started.add(uid)


def attempt_of(pod: Pod) -> int:
    return int(pod.metadata.labels[ATTEMPT])


@asynccontextmanager
async def observe_pods(cluster: Cluster, namespace: str, agent_id: str) -> AsyncIterator[PodObserver]:
    """Watch from before the first pod on. A watch that breaks is resumed where it ended, so that no state is missed."""
    observer, labels = PodObserver(), agent_selector(agent_id)
    known, version = await cluster.list_pods(namespace, labels)
    assert known == []

    async def watch(version: str) -> None:
        while True:
            with suppress(ClusterUnavailable):
                events = cluster.pod_events(
                    namespace, labels, version, lifetime=WATCH_LIFETIME, idle_timeout=WATCH_LIFETIME
                )
                async for kind, pod in events:
                    version = pod.metadata.resource_version
                    observer.take(kind, pod)
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch(version))
    try:
        yield observer
    finally:
        watching.cancel()
