"""Deletes the Job, pods and Secrets of an attempt, after its output is parsed."""

from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Final

from temporalio import activity

from agent_runs.contracts.messages import Finish, Finished, JobRef
from agent_runs.job.reference import job_ref
from agent_runs.kube.objects import Pod
from agent_runs.kube.ownership import belongs_to
from agent_runs.kube.pod_state import container_ended, container_started, has_ended
from agent_runs.kube.port import Cluster
from agent_runs.kube.watch import snapshots

ENDING_HEARTBEAT_INTERVAL: Final = timedelta(seconds=2)
"""Between heartbeats while pods end."""
SIDECAR_GRACE: Final = timedelta(seconds=10)
"""How long a pod's other containers may take to end by themselves after the agent has ended."""


@dataclass(frozen=True)
class FinishActivity:
    """Deletes what one attempt created. Every deletion may be repeated."""

    cluster: Cluster

    @activity.defn
    async def finish(self, input: Finish) -> Finished:
        """Deletes Job, pods and Secrets, and waits until no pod runs.

        Without a `job` in the input it looks for one by the attempt's name and labels. With one, `create_job` has
        succeeded: the Job owns its Secrets, so Kubernetes deletes them with it.

        A retained Job keeps its log; its agent is stopped, and the Secrets with its environment and token are deleted.

        Raises:
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        namespace = input.namespace or self.cluster.namespace
        attempt, job = input.attempt, input.job or await self._find_unreported_job(input, namespace)
        ended = await self._end_job(job, input) if job else Finished()
        deleted = ended.deleted
        if input.job is None or input.retain:
            deleted |= await self.cluster.delete_secret(namespace, attempt.run_secret_name)
            deleted |= await self.cluster.delete_secret(namespace, attempt.token_secret_name)
        if input.job is None:
            deleted |= await self.cluster.delete_secret(namespace, attempt.prompt_secret_name)
        return Finished(deleted=deleted, agent_started=ended.agent_started)

    async def _find_unreported_job(self, input: Finish, namespace: str) -> JobRef | None:
        """This attempt's Job, if `create_job` failed or was cancelled after it had created one."""
        job = await self.cluster.read_job(namespace, input.attempt.job_name)
        return job_ref(job) if job is not None and belongs_to(job.metadata, input.attempt) else None

    async def _end_job(self, job: JobRef, input: Finish) -> Finished:
        """Deletes the Job and waits until no pod of it runs: an agent never runs twice at a time.

        Its pods are read first, because those that have ended vanish with the Job, and with them whether the agent had
        started.
        """
        stopped: set[str] = set()
        agent_started, began = False, monotonic()
        async with (
            self.cluster.watch_pods(job) as states,
            aclosing(snapshots(states, ENDING_HEARTBEAT_INTERVAL)) as repeated,
        ):
            pods = await anext(repeated)
            deleted = False if input.retain else await self.cluster.delete_job(job.namespace, job.name, job.uid)
            agent_started |= any(container_started(pod, job.container) for pod in pods or ())
            while (active := [pod for pod in pods or () if not has_ended(pod)]) or pods is None:
                may_end_itself = monotonic() - began < SIDECAR_GRACE.total_seconds()
                for pod in active:
                    if pod.metadata.uid in stopped or (may_end_itself and container_ended(pod, job.container)):
                        continue
                    await self._stop_pod(pod, job.namespace, input)
                    stopped.add(pod.metadata.uid)
                activity.heartbeat(f"waiting for {len(active)} pod(s) to end")
                pods = await anext(repeated)
                agent_started |= any(container_started(pod, job.container) for pod in pods or ())
        return Finished(deleted=deleted, agent_started=agent_started)

    async def _stop_pod(self, pod: Pod, namespace: str, input: Finish) -> None:
        """SIGTERM and the grace; a retained pod keeps its log, unless it has been shown to ignore SIGTERM."""
        if input.retain and input.grace:
            await self.cluster.stop_pod(namespace, pod.metadata.name, pod.metadata.uid)
        else:
            await self.cluster.delete_pod(namespace, pod.metadata.name, pod.metadata.uid, input.grace)
