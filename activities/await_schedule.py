"""Waits until the agent's container runs, and names what keeps it from running."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio import activity

from cluster.diagnosis import Diagnosis, Ended, Failing, Patience, Running, Waiting, diagnose
from cluster.objects import Pod
from cluster.port import Cluster
from contracts.messages import AwaitSchedule, PodRef

LOOK: Final = timedelta(seconds=2)
"""Between looks at Job and events while the pod itself does not change."""


@dataclass(frozen=True)
class Scheduling:
    """Watches the Job's pod. A second try of this step starts with a fresh look: nothing is remembered."""

    cluster: Cluster

    @activity.defn
    async def await_schedule(self, order: AwaitSchedule) -> PodRef:
        """The pod, once its agent container runs or has already ended.

        Clocks are wall clocks by the cluster's own time stamps, so they go on while no worker is there. Heartbeats say
        what is being waited for.

        Raises:
            PodScheduleFailed: no node in time, or no start in time; the message is Kubernetes' own reason.
            ImagePullFailed: the image cannot be pulled.
            PodLost: the pod went away before the agent started. `JobDeletedExternally`: the Job did.
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        patience, had_pod = Patience.of(order, await self._began(order)), False
        async with self.cluster.watch_pods(order.job) as changes, aclosing(looks(changes)) as seen:
            async for pods in seen:
                pod = pods[-1] if pods else None
                had_pod = had_pod or pod is not None
                diagnosis = patience.judge(await self._diagnosis(order, pod, had_pod=had_pod), datetime.now(UTC))
                match diagnosis:
                    case Running() | Ended() if pod is not None:
                        await self._bar_twins(order)
                        return reference(order, pod)
                    case Failing():
                        raise diagnosis.raised()
                    case Waiting():
                        activity.heartbeat(diagnosis.why)
        raise AssertionError("a watch ends only by leaving it")

    async def _bar_twins(self, order: AwaitSchedule) -> None:
        """Takes the prompt away once the agent has it, so that no other pod of this Job can start another agent.

        Before Kubernetes 1.29 a Job whose pod somebody deletes makes a new one, whatever its backoffLimit says. That
        pod now waits for a Secret that is not there, until the Job is deleted. The running one needs it no more.
        """
        await self.cluster.delete_secret(order.job.namespace, order.attempt.prompt_secret_name)

    async def _began(self, order: AwaitSchedule) -> datetime:
        """The Job's creation by the cluster's clock; a Job that is gone is diagnosed, not waited for."""
        job = await self.cluster.read_job(order.job.namespace, order.job.name)
        return (job.metadata.creation_timestamp if job else None) or datetime.now(UTC)

    async def _diagnosis(self, order: AwaitSchedule, pod: Pod | None, *, had_pod: bool) -> Diagnosis:
        """First by the pod alone; Job and events are asked only while that does not settle it."""
        if pod is not None:
            by_pod = diagnose(pod, None, container=order.job.container, had_pod=had_pod)
            if isinstance(by_pod, Running | Ended):
                return by_pod
        job = await self.cluster.read_job(order.job.namespace, order.job.name)
        job = job if job is not None and job.metadata.uid == order.job.uid else None
        uids = [order.job.uid, *([pod.metadata.uid] if pod is not None else [])]
        events = await self.cluster.events_of(order.job.namespace, uids)
        return diagnose(pod, job, events, container=order.job.container, had_pod=had_pod, now=datetime.now(UTC))


async def looks(changes: AsyncIterator[list[Pod]]) -> AsyncGenerator[list[Pod], None]:
    """Every change, and what was last seen again after `LOOK` without one."""
    seen: list[Pod] = []
    change = asyncio.ensure_future(anext(changes))
    try:
        while True:
            await asyncio.wait({change}, timeout=LOOK.total_seconds())
            if change.done():
                seen = change.result()
                change = asyncio.ensure_future(anext(changes))
            yield seen
    finally:
        change.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await change  # the watch must not be closed while it is still being read


def reference(order: AwaitSchedule, pod: Pod) -> PodRef:
    """How later steps address this very pod."""
    return PodRef(
        namespace=order.job.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name or None,
        container=order.job.container,
    )
