"""Leaves nothing behind: the Job, its pods and its Secrets, once their work is judged."""

from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Final

from temporalio import activity

from activities.create_job import reference
from cluster.objects import Pod
from cluster.ownership import belongs_to
from cluster.port import Cluster
from cluster.watching import looks
from contracts.messages import Finish, Finished, JobRef

LOOK: Final = timedelta(seconds=2)
"""Between heartbeats while pods end."""


BESIDE: Final = timedelta(seconds=10)
"""For what runs beside an agent to end after it, before it is told to."""


@dataclass(frozen=True)
class Cleanup:
    """Deletes what one attempt made. Every deletion may be repeated; what is gone already is fine."""

    cluster: Cluster

    @activity.defn
    async def finish(self, order: Finish) -> Finished:
        """Deletes Job, pods and Secrets, and waits until nothing of them runs.

        Without a `job` in the order it looks for one by the attempt's name and labels. With one, `create_job` has
        come to its end: its Secrets are owned by the Job and go with it.

        A retained Job stays with its log; its agent is stopped, and the Secrets with its environment and token go.

        Raises:
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        namespace = order.namespace or self.cluster.namespace
        attempt, job = order.attempt, order.job or await self._unreported(order, namespace)
        found = await self._ended(job, order) if job else Finished()
        deleted = found.deleted
        if order.job is None or order.retain:
            deleted |= await self.cluster.delete_secret(namespace, attempt.run_secret_name)
            deleted |= await self.cluster.delete_secret(namespace, attempt.token_secret_name)
        if order.job is None:
            deleted |= await self.cluster.delete_secret(namespace, attempt.prompt_secret_name)
        return Finished(deleted=deleted, agent_started=found.agent_started)

    async def _unreported(self, order: Finish, namespace: str) -> JobRef | None:
        """This attempt's Job, if `create_job` made one and could not say so: it failed or was cancelled after it."""
        job = await self.cluster.read_job(namespace, order.attempt.job_name)
        return reference(job) if job is not None and belongs_to(job.metadata, order.attempt) else None

    async def _ended(self, job: JobRef, order: Finish) -> Finished:
        """Deletes the Job and waits until nothing of it runs: one agent never runs twice at a time.

        Its pods are looked at first: those that are over vanish with the Job at once, and then nobody could say.
        """
        told: set[str] = set()
        started, began = False, monotonic()
        async with self.cluster.watch_pods(job) as states, aclosing(looks(states, LOOK)) as seen:
            pods = await anext(seen)
            deleted = False if order.retain else await self.cluster.delete_job(job.namespace, job.name, job.uid)
            started |= any(begun(pod, job.container) for pod in pods or ())
            while (active := [pod for pod in pods or () if not over(pod)]) or pods is None:
                for pod in active:
                    patient = ended(pod, job.container) and monotonic() - began < BESIDE.total_seconds()
                    if pod.metadata.uid not in told and not patient:
                        await self._end(pod, job.namespace, order)
                        told.add(pod.metadata.uid)
                activity.heartbeat(f"waiting for {len(active)} pod(s) to end")
                pods = await anext(seen)
                started |= any(begun(pod, job.container) for pod in pods or ())
        return Finished(deleted=deleted, agent_started=started)

    async def _end(self, pod: Pod, namespace: str, order: Finish) -> None:
        """SIGTERM and the grace; a retained pod keeps its log, unless it has shown that it ignores SIGTERM."""
        if order.retain and order.grace:
            await self.cluster.stop_pod(namespace, pod.metadata.name, pod.metadata.uid)
        else:
            await self.cluster.delete_pod(namespace, pod.metadata.name, pod.metadata.uid, order.grace)


def begun(pod: Pod, container: str) -> bool:
    """Its agent runs or has run."""
    status = pod.container(container)
    return status is not None and (status.state.running is not None or status.state.terminated is not None)


def ended(pod: Pod, container: str) -> bool:
    """Its agent has run; what runs beside it ends by itself."""
    status = pod.container(container)
    return status is not None and status.state.terminated is not None


def over(pod: Pod) -> bool:
    """Each of its containers was seen to end. The phase alone does not say so: kubelets up to 1.21 set it early."""
    statuses = pod.status.container_statuses
    return bool(statuses) and all(status.state.terminated is not None for status in statuses)
