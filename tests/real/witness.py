"""What the API server tells of one agent's pods, from the first to the last, while a run goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from cluster.client import KubernetesCluster
from cluster.objects import Pod
from cluster.ownership import ATTEMPT, agent_selector
from contracts.errors import ClusterUnavailable

CONTAINER = "opencode"
LASTING = timedelta(minutes=9)


@dataclass
class Witness:
    """Every pod of the agent in its last state, also those that are gone.

    Attributes:
        pods: by uid, in the order of their appearance.
        gone: the uids of those that the API no longer has.
        ran: the uids of those whose agent has begun.
        alive: the uids of those whose agent has begun, and nobody has said that it ended. A node that is away says
            nothing, and one that evicts a pod forgets its containers.
        most: how many were alive at a time.
        hasty: the Jobs that had a pod while the agent of another attempt was alive.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    alive: set[str] = field(default_factory=set)
    most: int = 0
    hasty: set[str] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, ready: Callable[[Pod], bool]) -> Pod:
        """The first pod that is so, as soon as one is."""
        while True:
            self._news.clear()
            found = next((pod for pod in self.pods.values() if ready(pod)), None)
            if found is not None:
                return found
            await self._news.wait()

    async def begun(self, attempt: int) -> Pod:
        """The attempt's pod, once its agent has begun."""
        return await self.until(lambda pod: pod.metadata.uid in self.ran and attempt_of(pod) == attempt)

    @property
    def jobs(self) -> list[str]:
        """The Jobs that had a pod, by name, one entry for each uid."""
        owners = [pod.metadata.owner_references[0] for pod in self.pods.values()]
        return [name for _, name in dict.fromkeys((owner.uid, owner.name) for owner in owners)]

    @property
    def agents(self) -> list[int]:
        """The attempts whose agent ever began, one entry for each pod."""
        return sorted(attempt_of(self.pods[uid]) for uid in self.ran)

    def take(self, kind: str, pod: Pod) -> None:
        """One event of the watch."""
        if kind not in {"ADDED", "MODIFIED", "DELETED"}:
            return
        uid = pod.metadata.uid
        self.pods[uid] = pod
        self._judge(uid, pod)
        if kind == "DELETED":
            self.gone.add(uid)
            self.alive.discard(uid)
        self.most = max(self.most, len(self.alive))
        if any(attempt_of(self.pods[other]) < attempt_of(pod) for other in self.alive):
            self.hasty.add(pod.metadata.owner_references[0].name)
        self._news.set()

    def _judge(self, uid: str, pod: Pod) -> None:
        """A pod that was deleted before it started may say that a container ended which never began."""
        status = pod.container(CONTAINER)
        if status is None:
            return
        ended = status.state.terminated
        if status.state.running is not None:
            self.ran.add(uid)
            self.alive.add(uid)
        elif ended is not None:
            self.alive.discard(uid)
            if ended.started_at is not None and ended.container_id:
                self.ran.add(uid)


def attempt_of(pod: Pod) -> int:
    return int(pod.metadata.labels[ATTEMPT])


@asynccontextmanager
async def witnessing(cluster: KubernetesCluster, namespace: str, agent_id: str) -> AsyncIterator[Witness]:
    """Watches from before the first pod on. A watch that breaks goes on where it was, so that no state is missed."""
    witness, labels = Witness(), agent_selector(agent_id)
    known, version = await cluster.list_pods(namespace, labels)
    assert known == []

    async def watch(version: str) -> None:
        while True:
            with suppress(ClusterUnavailable):
                events = cluster.pod_events(namespace, labels, version, lasting=LASTING, idle=LASTING)
                async for kind, pod in events:
                    version = pod.metadata.resource_version
                    witness.take(kind, pod)
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch(version))
    try:
        yield witness
    finally:
        watching.cancel()
