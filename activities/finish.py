"""Leaves nothing behind: the Job, its pods and its Secrets, once their work is judged."""

from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio import activity

from activities.create_job import reference
from cluster.objects import Pod
from cluster.ownership import belongs_to
from cluster.port import Cluster
from cluster.watching import looks
from contracts.messages import Finish, JobRef

LOOK: Final = timedelta(seconds=2)
"""Between heartbeats while pods end."""


@dataclass(frozen=True)
class Cleanup:
    """Deletes what one attempt made. Every deletion may be repeated; what is gone already is fine."""

    cluster: Cluster

    @activity.defn
    async def finish(self, order: Finish) -> bool:
        """Deletes Job, pods and Secrets, and waits until nothing of them runs. True when something was deleted.

        Without a `job` in the order it looks for one by the attempt's name and labels. With one, `create_job` has
        come to its end: both Secrets are ours and owned by the Job, so a prompt that is left goes with it.

        A retained Job stays with its log; its run Secret, which holds the run token, goes.

        Raises:
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        namespace = order.namespace or self.cluster.namespace
        reported = order.job is not None
        run_secret, prompt = order.attempt.run_secret_name, order.attempt.prompt_secret_name
        deleted = await self.cluster.delete_secret(namespace, run_secret, known_as_ours=reported)
        job = order.job or await self._unreported(order, namespace)
        if job and order.retain:
            return deleted
        if job:
            deleted |= await self._ended(job, order.grace)
        return deleted if reported else await self.cluster.delete_secret(namespace, prompt) or deleted

    async def _unreported(self, order: Finish, namespace: str) -> JobRef | None:
        """This attempt's Job, if `create_job` made one and could not say so: it failed or was cancelled after it."""
        job = await self.cluster.read_job(namespace, order.attempt.job_name)
        return reference(job) if job is not None and belongs_to(job.metadata, order.attempt) else None

    async def _ended(self, job: JobRef, grace: timedelta) -> bool:
        """Deletes the Job and waits until nothing of it runs: one agent never runs twice at a time.

        Its pods are looked at first: those that are over vanish with the Job at once, and then nobody could say.
        """
        told: set[str] = set()
        async with self.cluster.watch_pods(job) as states, aclosing(looks(states, LOOK)) as seen:
            pods = await anext(seen)
            deleted = await self.cluster.delete_job(job.namespace, job.name, job.uid)
            while (active := [pod for pod in pods or () if not over(pod)]) or pods is None:
                for pod in active:
                    if pod.metadata.uid not in told:
                        await self.cluster.delete_pod(job.namespace, pod.metadata.name, pod.metadata.uid, grace)
                        told.add(pod.metadata.uid)
                activity.heartbeat(f"waiting for {len(active)} pod(s) to end")
                pods = await anext(seen)
        return deleted


def over(pod: Pod) -> bool:
    """Each of its containers was seen to end. The phase alone does not say so: kubelets up to 1.21 set it early."""
    statuses = pod.status.container_statuses
    return bool(statuses) and all(status.state.terminated is not None for status in statuses)
