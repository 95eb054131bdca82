"""Removes what previous runs of an agent left before its next Job is created. Owner references and TTL mostly have."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio import activity

from agent_runs.contracts.identity import label_value
from agent_runs.contracts.messages import CleanUpPreviousRuns, DeletedObjects
from agent_runs.kube.objects import Job, Metadata, Pod
from agent_runs.kube.ownership import RUN
from agent_runs.kube.pod_state import has_ended
from agent_runs.kube.port import Cluster

ENDING_POLL_INTERVAL: Final = timedelta(seconds=1)
"""Between reads of pods that are ending; mostly there are none."""


@dataclass(frozen=True)
class CleanUpPreviousRunsActivity:
    """Temporal allows one open run per agent, so an object of the agent that belongs to another run is a leftover."""

    cluster: Cluster

    @activity.defn
    async def clean_up_previous_runs(self, input: CleanUpPreviousRuns) -> DeletedObjects:
        """Deletes Jobs and pods of previous runs, waits until none of the pods runs, and deletes their Secrets.

        A Job that has ended is kept: for debugging, or until its TTL.

        Raises:
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        namespace = input.namespace or self.cluster.namespace
        jobs = [job for job in await self.cluster.jobs_of_agent(namespace, input.run.agent_id) if may_run(job, input)]
        for job in jobs:
            await self.cluster.delete_job(namespace, job.metadata.name, job.metadata.uid)
        pods = await self._delete_pods(input, namespace)
        await self.cluster.delete_secrets_of_agent(namespace, input.run.agent_id, except_run=input.run.run_id)
        return DeletedObjects(jobs=tuple(job.metadata.name for job in jobs), pods=pods)

    async def _delete_pods(self, input: CleanUpPreviousRuns, namespace: str) -> tuple[str, ...]:
        """Deletes the pods that still run, waits for their end, and returns their names."""
        deleted: dict[str, str] = {}
        while running := await self._running_pods(input, namespace):
            for pod in running:
                if pod.metadata.uid not in deleted:
                    deleted[pod.metadata.uid] = pod.metadata.name
                    await self.cluster.delete_pod(namespace, pod.metadata.name, pod.metadata.uid, input.grace)
            activity.heartbeat(f"waiting for {len(running)} pod(s) of previous runs to end")
            await asyncio.sleep(ENDING_POLL_INTERVAL.total_seconds())
        return tuple(deleted.values())

    async def _running_pods(self, input: CleanUpPreviousRuns, namespace: str) -> list[Pod]:
        pods = await self.cluster.pods_of_agent(namespace, input.run.agent_id)
        return [pod for pod in pods if not of_this_run(pod.metadata, input) and not has_ended(pod)]


def may_run(job: Job, input: CleanUpPreviousRuns) -> bool:
    """Whether the Job is of another run, and may still have or get a running pod."""
    return not of_this_run(job.metadata, input) and not any(job.condition(kind) for kind in ("Complete", "Failed"))


def of_this_run(metadata: Metadata, input: CleanUpPreviousRuns) -> bool:
    """Whether an object of the agent belongs to this run: a retried activity may find objects of this run."""
    return metadata.labels.get(RUN) == label_value(input.run.run_id)
