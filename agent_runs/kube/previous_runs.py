"""Removes what previous runs of an agent left. Owner references and TTL mostly have done so already."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from agent_runs.contracts.identity import RunKey, identity_label
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Job, Metadata, Pod, has_ended, work_ended
from agent_runs.kube.ownership import CLAIMED_BY, RESTS_SINCE, RUN

JOB_NAME: Final = "job-name"
"""Label of a Job's pods, in all versions of Kubernetes."""
ENDING_POLL_INTERVAL: Final = timedelta(seconds=1)
"""Between reads of pods that are ending; mostly there are none."""


async def remove_previous_runs(
    cluster: Cluster, namespace: str, run: RunKey, *, grace: timedelta, progress: Callable[[str], None]
) -> tuple[str, ...]:
    """Deletes Jobs and pods of the agent's previous runs, waits until none of the pods runs, and deletes their Secrets.

    Temporal allows one open run per agent, so an object of the agent that belongs to another run is a leftover. A Job
    that has ended is kept: for debugging, or until its TTL. May be repeated.

    Args:
        grace: how long a pod of a previous run may take to end after SIGTERM.
        progress: called once a second with a text that says what it waits for.

    Returns:
        The names of the pods that still ran, but for those whose server only rested.

    Raises:
        ClusterUnavailable: the API server refused or timed out.
    """
    resting: set[str] = set()
    jobs = [job for job in await cluster.jobs_of_agent(namespace, run.agent_id) if may_run(job, run)]
    pods = await _previous_pods(cluster, namespace, run) if jobs else []
    for job in jobs:
        if not _has_ended_by_itself(job, pods):
            if only_rests(job, run):
                resting.add(job.metadata.name)
            await cluster.delete_job(namespace, job.metadata.name, job.metadata.uid)
    deleted: set[str] = set()
    ended: list[str] = []
    while running := [pod for pod in await _previous_pods(cluster, namespace, run) if not has_ended(pod)]:
        for pod in running:
            if pod.metadata.uid not in deleted:
                deleted.add(pod.metadata.uid)
                ended += [pod.metadata.name] if pod.metadata.labels.get(JOB_NAME) not in resting else []
                await cluster.delete_pod(namespace, pod.metadata.name, pod.metadata.uid, grace)
        if all(map(work_ended, running)):
            break
        progress(f"waiting for {len(running)} pod(s) of previous runs to end")
        await asyncio.sleep(ENDING_POLL_INTERVAL.total_seconds())
    await cluster.delete_secrets_of_agent(namespace, run.agent_id, except_run=run.run_id)
    return tuple(ended)


async def _previous_pods(cluster: Cluster, namespace: str, run: RunKey) -> list[Pod]:
    pods = await cluster.pods_of_agent(namespace, run.agent_id)
    return [pod for pod in pods if not of_this_run(pod.metadata, run)]


def may_run(job: Job, run: RunKey) -> bool:
    """Whether the Job is of another run, and its own status allows that a pod of it runs or will run."""
    return not of_this_run(job.metadata, run) and job.success is None and job.failure is None


def _has_ended_by_itself(job: Job, pods: Iterable[Pod]) -> bool:
    """Whether the Job's pod has ended, so that it gets no other: its `backoffLimit` is 0.

    The Job's status shows it later: a pod's phase stays `Running` until its sandbox has ended, which took 1.2 s of the
    3.1 s of a Job. A pod that is being deleted may be replaced. Source: Kubernetes 1.37, observed.
    """
    own = [pod for pod in pods if pod.metadata.labels.get(JOB_NAME) == job.metadata.name]
    return bool(own) and all(has_ended(pod) and pod.metadata.deletion_timestamp is None for pod in own)


def only_rests(job: Job, run: RunKey) -> bool:
    """Whether the Job's server works for nobody: it rests, or this run has claimed it, in vain."""
    marks = job.metadata.annotations
    return RESTS_SINCE in marks or marks.get(CLAIMED_BY, "").startswith(f"{run.run_id}/")


def of_this_run(metadata: Metadata, run: RunKey) -> bool:
    """Whether an object of the agent belongs to this run: a retried activity may find objects of this run."""
    return metadata.labels.get(RUN) == identity_label(run.run_id)
