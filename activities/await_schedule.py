"""Waits until the agent's container runs, and names what keeps it from running."""

from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Final

from temporalio import activity

from cluster.diagnosis import Diagnosis, Ended, Failing, Patience, Running, Waiting, beside, diagnose
from cluster.manifest import PROXY_CONTAINER
from cluster.objects import Event, Job, Pod
from cluster.port import Cluster
from cluster.watching import looks
from contracts.messages import AwaitSchedule, PodRef

LOOK: Final = timedelta(seconds=2)
"""Between heartbeats, and between judgements of patience, while the pod itself does not change."""
STUCK: Final = timedelta(seconds=5)
"""A pod that has not started by then is asked about: most have."""
NEWS: Final = timedelta(seconds=2)
"""Between questions about a pod whose trouble changes."""
SAME: Final = timedelta(seconds=30)
"""Between questions about a pod whose trouble stays the same."""


@dataclass(frozen=True)
class Scheduling:
    """Watches the Job's pod. A second try of this step starts with a fresh look: nothing is remembered."""

    cluster: Cluster

    @activity.defn
    async def await_schedule(self, order: AwaitSchedule) -> PodRef:
        """The pod, once a node has taken it or, as the order says, its agent container runs or has already ended.

        Clocks are wall clocks by the cluster's own time stamps, so they go on while no worker is there. Heartbeats say
        what is being waited for.

        Raises:
            PodScheduleFailed: no node in time; the message is Kubernetes' own reason. `PodStartFailed`: no start.
            ImagePullFailed: the image cannot be pulled. `ImageRegistryThrottled`: not now.
            PodLost: the pod went away before the agent started. `JobDeletedExternally`: the Job did.
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        inquiry = Inquiry(self.cluster, order)
        async with self.cluster.watch_pods(order.job) as states, aclosing(looks(states, LOOK)) as seen:
            async for pods in seen:
                pod = pods[-1] if pods else None
                match diagnosis := await inquiry.diagnosis(pod):
                    case Running() | Ended() if pod is not None:
                        if order.until == "running":
                            await self._bar_twins(order)
                        return reference(order, pod)
                    case Failing():
                        raise diagnosis.raised()
                    case Waiting() if order.until == "scheduled" and pod is not None and pod.spec.node_name:
                        return reference(order, pod)
                    case Waiting():
                        activity.heartbeat(diagnosis.why)
        raise AssertionError("a watch ends only by leaving it")

    async def _bar_twins(self, order: AwaitSchedule) -> None:
        """Takes the prompt away once the agent has it, so that no other pod of this Job can start another agent.

        Before Kubernetes 1.29 a Job whose pod somebody deletes makes a new one, whatever its backoffLimit says. That
        pod now waits for a Secret that is not there, until the Job is deleted. The running one needs it no more; nor
        does its kubelet, since the volume is optional.
        """
        name = order.attempt.prompt_secret_name
        await self.cluster.delete_secret(order.job.namespace, name, known_as_ours=True)


class Inquiry:
    """What keeps one pod from running. Its status is watched; Job and events are asked only when it is stuck.

    No failure is named without asking: an event may say that it passes.
    """

    def __init__(self, cluster: Cluster, order: AwaitSchedule) -> None:
        self._cluster = cluster
        self._order = order
        self._patience = Patience.of(order, datetime.now(UTC))
        self._began = monotonic()
        self._had_pod = False
        self._job: Job | None = None
        self._events: list[Event] = []
        self._asked: tuple[float, str] | None = None  # when, and about which trouble

    async def diagnosis(self, pod: Pod | None) -> Diagnosis:
        """Running or ended by the status alone; waiting; or a failure that Job and events confirm."""
        diagnosis = self._judged(pod)
        if isinstance(diagnosis, Running | Ended) or not self._due(diagnosis):
            return diagnosis
        await self._ask(pod)
        diagnosis = self._judged(pod)
        self._asked = (monotonic(), trouble(diagnosis))
        return diagnosis

    def _judged(self, pod: Pod | None) -> Diagnosis:
        now = datetime.now(UTC)
        self._note_begin(pod.metadata.creation_timestamp if pod else None)
        if pod is None and self._asked is None and not self._had_pod:
            return Waiting("Waiting for Job controller to create pod...")
        self._had_pod = self._had_pod or pod is not None
        found = diagnose(
            pod, self._job, self._events, container=self._order.job.container, had_pod=self._had_pod, now=now
        )
        if isinstance(found, Running) and pod is not None and self._order.job.rotates:
            found = beside(pod, PROXY_CONTAINER, self._events) or found
        return self._patience.judge(found, now)

    def _due(self, diagnosis: Diagnosis) -> bool:
        if isinstance(diagnosis, Failing):
            return True
        now = monotonic()
        if self._asked is None:
            return now - self._began >= STUCK.total_seconds()
        at, about = self._asked
        return now - at >= (SAME if trouble(diagnosis) == about else NEWS).total_seconds()

    async def _ask(self, pod: Pod | None) -> None:
        """The Job once, and again whenever it has no pod; then the events of the one that is in trouble.

        A pod without a node has none that matter: its status says what the scheduler says.
        """
        order = self._order.job
        if self._job is None or pod is None:
            job = await self._cluster.read_job(order.namespace, order.name)
            self._job = job if job is not None and job.metadata.uid == order.uid else None
            self._note_begin(self._job.metadata.creation_timestamp if self._job else None)
        if pod is None or pod.spec.node_name:
            self._events = await self._cluster.events_of(order.namespace, [pod.metadata.uid if pod else order.uid])

    def _note_begin(self, created: datetime | None) -> None:
        """The patience for a node begins with the Job, by the cluster's clock."""
        self._patience.began = min(self._patience.began, created or self._patience.began)


def trouble(diagnosis: Diagnosis) -> str:
    """What it is that keeps the pod from running, to compare."""
    return diagnosis.why if isinstance(diagnosis, Waiting) else type(diagnosis).__name__


def reference(order: AwaitSchedule, pod: Pod) -> PodRef:
    """How later steps address this very pod."""
    return PodRef(
        namespace=order.job.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name or None,
        container=order.job.container,
    )
