"""Waits for the end of a Job that asks a question: its pod gives an answer and ends."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Final

from agent_runs.contracts.messages import JobRef
from agent_runs.kube.client import Cluster
from agent_runs.kube.diagnosis import Failing, Waiting, diagnose
from agent_runs.kube.objects import Pod
from agent_runs.kube.pod_state import has_ended
from agent_runs.kube.watch import snapshots

SNAPSHOTS: Final = timedelta(seconds=2)
ANSWER_LIMIT: Final = timedelta(minutes=2)
"""From the creation of such a Job to its end: as long as a large image may take to be pulled."""


async def ended_pod(cluster: Cluster, job: JobRef, progress: Callable[[], None] = lambda: None) -> Pod | Failing | str:
    """Return the Job's pod when all its containers have ended, else why they will not, or have not within the limit.

    Args:
        progress: called every few seconds.

    Raises:
        ClusterUnavailable: the API server refused or timed out.
    """
    reason = "no pod was created"
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(ANSWER_LIMIT.total_seconds()),
            cluster.watch_pods(job) as states,
            aclosing(snapshots(states, SNAPSHOTS)) as repeated,
        ):
            async for pods in repeated:
                progress()
                pod = pods[-1] if pods else None
                if pod is not None and has_ended(pod):
                    return pod
                uids = [job.uid, *([pod.metadata.uid] if pod else [])]
                events = await cluster.events_of(job.namespace, uids)
                diagnosis = diagnose(pod, await cluster.read_job(job.namespace, job.name), events)
                if isinstance(diagnosis, Failing):
                    return diagnosis
                reason = diagnosis.reason if isinstance(diagnosis, Waiting) else "its containers did not end"
    return reason
