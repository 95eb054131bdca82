"""Waits until the agent's container runs, and names what keeps it from that."""

from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final

import structlog
from temporalio import activity

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable
from agent_runs.contracts.messages import AwaitSchedule, PodRef, StartProgress
from agent_runs.contracts.pod import SIDECAR_CONTAINER
from agent_runs.job.redactions import Redactions
from agent_runs.job.resting_pods import release_resting_pod
from agent_runs.kube.client import Cluster
from agent_runs.kube.diagnosis import (
    ContainerEnded,
    Diagnosis,
    Failing,
    Running,
    StartTimeouts,
    Waiting,
    diagnose,
    diagnose_sidecar,
)
from agent_runs.kube.objects import Event, Job, Pod
from agent_runs.kube.watch import snapshots
from agent_runs.metrics.definitions import SCHEDULING_WAIT, START_WAIT
from agent_runs.metrics.recorder import NOT_RECORDED, Recorder
from agent_runs.paperclip.redaction import Redaction

log: Final[Any] = structlog.get_logger()

SNAPSHOT_INTERVAL: Final = timedelta(seconds=1)
"""Between heartbeats, and between checks of the timeouts, while the pod itself does not change."""
FIRST_POLL_DELAY: Final = timedelta(seconds=2)
"""Before Job and events of a pod that has not started are read: most have started by then, and people see why it waits
within 5 s."""
CHANGED_REASON_POLL_INTERVAL: Final = timedelta(seconds=2)
"""Between reads of Job and events while the reason why the pod does not run changes."""
SAME_REASON_POLL_INTERVAL: Final = timedelta(seconds=30)
"""Between reads of Job and events while that reason stays the same."""


@dataclass(frozen=True)
class AwaitScheduleActivity:
    """Watches the Job's pod. Another activity attempt starts afresh: nothing is remembered."""

    cluster: Cluster
    redactions: Redactions
    metrics: Recorder = NOT_RECORDED

    @activity.defn
    async def await_schedule(self, input: AwaitSchedule) -> PodRef:
        """Returns the pod once its agent container runs or has ended.

        The time-outs are measured by the cluster's own timestamps, so they also run while no worker is there. None
        runs while the Job is suspended: how long a queue takes is not known.
        A pod for which no node, or no quota, has a place left gets that of a pod that only rests, the one that has
        rested longest; one at a time, until it has a node.

        Heartbeats carry a `StartProgress`. What Kubernetes says about the pod may quote what it was given, so known
        secrets of the run are hidden in it.

        Raises:
            PodScheduleFailed: no node took the pod in time; the message is Kubernetes' own reason.
            PodStartFailed: the container did not run in time.
            ImagePullFailed: the image cannot be pulled. `ImageRegistryThrottled`: the registry refuses for now.
            WorkspaceNotRestored: the carried workspace could not be put into the pod. `WorkspaceUnreachable`: not now.
            PodLost: the pod was deleted before the agent started. `JobDeletedExternally`: the Job was.
            TranscriptsUnavailable: this worker does not know the run's secrets; retried.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        monitor = PodStartMonitor(self.cluster, input)
        redaction: Redaction | None = None  # a pod that starts at once needs none
        async with (
            self.cluster.watch_pods(input.job) as states,
            aclosing(snapshots(states, SNAPSHOT_INTERVAL)) as repeated,
        ):
            async for pods in repeated:
                pod = pods[-1] if pods else None
                diagnosis = await monitor.diagnosis(pod)
                if isinstance(diagnosis, Running | ContainerEnded) and pod is not None:
                    await self._block_replacement_pods(input)
                    ref = pod_ref(input, pod)
                    if input.job.claimed is None:
                        record_waits(self.metrics, ref, pod)
                    return ref
                redaction = redaction or await self.redactions.current(input.job.joined)
                match diagnosis:
                    case Failing():
                        raise replace(diagnosis, message=redaction.hide(diagnosis.message)).as_error()
                    case Waiting():
                        reason, since = redaction.hide(diagnosis.reason), diagnosis.since
                        activity.heartbeat(StartProgress(reason=reason, since=since))
        raise AssertionError("a watch ends only by leaving it")

    async def _block_replacement_pods(self, input: AwaitSchedule) -> None:
        """Deletes the prompt Secret once the agent has it, so that no other pod of this Job can start an agent.

        Before Kubernetes 1.29 a Job whose pod is deleted creates a replacement pod, whatever its `backoffLimit`. That
        pod then waits for the missing Secret until the Job is deleted. The running pod no longer needs the Secret, and
        neither does its kubelet, because the volume is optional.
        """
        name = input.attempt.prompt_secret_name
        await self.cluster.delete_secret(input.job.namespace, name, known_as_ours=True)


class PodStartMonitor:
    """What keeps one pod from running. Its status is watched; Job and events are read only when it does not start.

    No failure is reported before they are read: an event may say that it will pass.
    """

    def __init__(self, cluster: Cluster, input: AwaitSchedule) -> None:
        self._cluster = cluster
        self._job_ref = input.job
        self._attempt = input.attempt.transcript
        self._timeouts = StartTimeouts(input.schedule_timeout, input.start_timeout, datetime.now(UTC))
        self._started = monotonic()
        self._had_pod = False
        self._job: Job | None = None
        self._events: list[Event] = []
        self._polled_at: float | None = None
        self._polled_reason = ""

    async def diagnosis(self, pod: Pod | None) -> Diagnosis:
        """Running or ended by the status alone; waiting; or a failure that Job and events confirm."""
        diagnosis = self._diagnose(pod)
        if isinstance(diagnosis, Running | ContainerEnded) or not self._is_poll_due(diagnosis):
            return diagnosis
        await self._poll(pod)
        diagnosis = self._diagnose(pod)
        released = isinstance(diagnosis, Waiting) and diagnosis.lacks_capacity and await self._release_resting_pod()
        self._polled_reason = "" if released else reason(diagnosis)
        return diagnosis

    async def _release_resting_pod(self) -> bool:
        with suppress(ClusterForbidden, ClusterUnavailable):
            released = await release_resting_pod(self._cluster, self._job_ref.namespace, self._attempt)
            if released is not None:
                log.info("resting_pod.released", job=released)
            return released is not None
        return False

    def _diagnose(self, pod: Pod | None) -> Diagnosis:
        now = datetime.now(UTC)
        self._note_creation(pod.metadata.creation_timestamp if pod else None)
        if pod is None and self._polled_at is None and not self._had_pod:
            return Waiting("Waiting for Job controller to create pod...")
        self._had_pod = self._had_pod or pod is not None
        diagnosis = diagnose(
            pod, self._job, self._events, container=self._job_ref.container, had_pod=self._had_pod, now=now
        )
        if isinstance(diagnosis, Running) and pod is not None:
            diagnosis = diagnose_sidecar(pod, SIDECAR_CONTAINER, self._events) or diagnosis
        return self._timeouts.apply(diagnosis, now)

    def _is_poll_due(self, diagnosis: Diagnosis) -> bool:
        if isinstance(diagnosis, Failing):
            return True
        now = monotonic()
        if self._polled_at is None:
            lacks_capacity = isinstance(diagnosis, Waiting) and diagnosis.lacks_capacity
            return lacks_capacity or now - self._started >= FIRST_POLL_DELAY.total_seconds()
        same = reason(diagnosis) == self._polled_reason
        interval = SAME_REASON_POLL_INTERVAL if same else CHANGED_REASON_POLL_INTERVAL
        return now - self._polled_at >= interval.total_seconds()

    async def _poll(self, pod: Pod | None) -> None:
        """Read the Job once, and whenever it has no pod; then the events of the pod, or of the Job without one.

        The events of a pod without a node do not matter: its status has the scheduler's message.
        """
        ref = self._job_ref
        if self._job is None or pod is None:
            job = await self._cluster.read_job(ref.namespace, ref.name)
            self._job = job if job is not None and job.metadata.uid == ref.uid else None
            if self._job is not None:  # a Job that was suspended starts when it is admitted
                self._note_creation(self._job.status.start_time or self._job.metadata.creation_timestamp)
        if pod is None or pod.spec.node_name:
            self._events = await self._cluster.events_of(ref.namespace, [pod.metadata.uid if pod else ref.uid])
        self._polled_at = monotonic()

    def _note_creation(self, created: datetime | None) -> None:
        """The schedule timeout begins with the creation of pod or Job, by the cluster's clock."""
        self._timeouts.began = min(self._timeouts.began, created or self._timeouts.began)


def reason(diagnosis: Diagnosis) -> str:
    """Why the pod does not run, to be compared."""
    return diagnosis.reason if isinstance(diagnosis, Waiting) else type(diagnosis).__name__


def pod_ref(input: AwaitSchedule, pod: Pod) -> PodRef:
    """Names this very pod for the activities that follow."""
    status = pod.container(input.job.container)
    begun = (status.state.running or status.state.terminated) if status is not None else None
    claimed = input.job.claimed
    return PodRef(
        namespace=input.job.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name or None,
        container=input.job.container,
        created_at=claimed.at if claimed else pod.metadata.creation_timestamp,
        started_at=claimed.at if claimed else begun.started_at if begun is not None else None,
    )


def record_waits(metrics: Recorder, ref: PodRef, pod: Pod) -> None:
    """Record how long the pod waited for a node and for its start, as far as its status says when these were."""
    scheduled = pod.condition("PodScheduled")
    at = scheduled.last_transition_time if scheduled is not None and scheduled.holds else None
    if at is not None and ref.created_at is not None:
        metrics.observe(SCHEDULING_WAIT, (at - ref.created_at).total_seconds())
    if at is not None and ref.started_at is not None:
        metrics.observe(START_WAIT, (ref.started_at - at).total_seconds())
