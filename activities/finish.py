"""Leaves nothing behind: the Job, its pods and its Secrets, once their work is judged."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio import activity

from activities.create_job import reference
from cluster.ownership import belongs_to
from cluster.port import Cluster
from contracts.messages import Finish, JobRef

LOOK: Final = timedelta(seconds=1)


@dataclass(frozen=True)
class Cleanup:
    """Deletes what one attempt made. Every deletion may be repeated; what is gone already is fine."""

    cluster: Cluster

    @activity.defn
    async def finish(self, order: Finish) -> bool:
        """Deletes Job, pods and Secrets, and waits until the pods are really gone. True when something was deleted.

        Without a `job` in the order it looks for one by the attempt's name and labels.

        A retained Job stays with its log; its run Secret, which holds the run token, goes.

        Raises:
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        namespace = order.namespace or self.cluster.namespace
        deleted = await self.cluster.delete_secret(namespace, order.attempt.run_secret_name)
        job = order.job or await self._unreported(order, namespace)
        if job and order.retain:
            return deleted
        if job:
            deleted |= await self.cluster.delete_job(namespace, job.name, job.uid)
            await self._gone(job, order.grace)
        return await self.cluster.delete_secret(namespace, order.attempt.prompt_secret_name) or deleted

    async def _unreported(self, order: Finish, namespace: str) -> JobRef | None:
        """This attempt's Job, if `create_job` made one and could not say so: it failed or was cancelled after it."""
        job = await self.cluster.read_job(namespace, order.attempt.job_name)
        return reference(job) if job is not None and belongs_to(job.metadata, order.attempt) else None

    async def _gone(self, job: JobRef, grace: timedelta) -> None:
        """The agent's slot is free only when its pods are gone: one agent never runs twice at a time."""
        for pod in await self.cluster.pods_of(job):
            await self.cluster.delete_pod(job.namespace, pod.metadata.name, pod.metadata.uid, grace)
        while pods := await self.cluster.pods_of(job):
            activity.heartbeat(f"waiting for {len(pods)} pod(s) to end")
            await asyncio.sleep(LOOK.total_seconds())
