"""Ends whatever earlier runs of an agent left: the first step of its next run, and a leak guard beside owner references
and the TTL."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio import activity

from activities.finish import over
from cluster.objects import Job, Metadata, Pod
from cluster.ownership import RUN
from cluster.port import Cluster
from contracts.identity import label_value
from contracts.messages import Leftovers, ReapLeftovers

LOOK: Final = timedelta(seconds=1)
"""Between looks at pods that are ending; there are none, mostly."""


@dataclass(frozen=True)
class Reaping:
    """Temporal lets only one run of an agent be open, so an object of the agent that is another run's is a leftover."""

    cluster: Cluster

    @activity.defn
    async def reap_leftovers(self, order: ReapLeftovers) -> Leftovers:
        """Ends Jobs and pods of earlier runs, waits until nothing of them runs, and deletes their Secrets.

        A Job that is over stays: it was kept for debugging, or its TTL takes it.

        Raises:
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        namespace = order.namespace or self.cluster.namespace
        jobs = [job for job in await self.cluster.jobs_of_agent(namespace, order.run.agent_id) if goes_on(job, order)]
        for job in jobs:
            await self.cluster.delete_job(namespace, job.metadata.name, job.metadata.uid)
        pods = await self._ended(order, namespace)
        await self.cluster.delete_secrets_of_agent(namespace, order.run.agent_id, but_of_run=order.run.run_id)
        return Leftovers(jobs=tuple(job.metadata.name for job in jobs), pods=pods)

    async def _ended(self, order: ReapLeftovers, namespace: str) -> tuple[str, ...]:
        """The names of pods that still ran; none of them does any longer."""
        told: dict[str, str] = {}
        while running := await self._running(order, namespace):
            for pod in running:
                if pod.metadata.uid not in told:
                    told[pod.metadata.uid] = pod.metadata.name
                    await self.cluster.delete_pod(namespace, pod.metadata.name, pod.metadata.uid, order.grace)
            activity.heartbeat(f"waiting for {len(running)} pod(s) of earlier runs to end")
            await asyncio.sleep(LOOK.total_seconds())
        return tuple(told.values())

    async def _running(self, order: ReapLeftovers, namespace: str) -> list[Pod]:
        pods = await self.cluster.pods_of_agent(namespace, order.run.agent_id)
        return [pod for pod in pods if not mine(pod.metadata, order) and not over(pod)]


def goes_on(job: Job, order: ReapLeftovers) -> bool:
    """Whether another run's Job may still have, or get, a pod that runs."""
    return not mine(job.metadata, order) and not any(job.condition(kind) for kind in ("Complete", "Failed"))


def mine(metadata: Metadata, order: ReapLeftovers) -> bool:
    """Whether an object of the agent belongs to this very run: a repeated step finds what the run has made since."""
    return metadata.labels.get(RUN) == label_value(order.run.run_id)
