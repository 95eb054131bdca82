"""What state an attempt's pod is in, and what is wrong with it: `diagnose(pod, job, events)`, pure and total.

Some errors are final the moment they are seen; some pass by themselves (a registry that times out, a node that an
autoscaler is still starting, a Secret the kubelet has not seen yet) and get a timeout. `StartTimeouts` turns waiting
into failing when it has expired. Reasons that are not known here are reported as they are and never count as success,
and neither does an exit code that is missing.

Source: kubernetes.io, Pod Lifecycle, Jobs, and the reasons of kubelet 1.20 to 1.34; see docs/deviations.md.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from agent_runs.contracts.errors import (
    AgentCrashed,
    DiskLimitExceeded,
    ExitUnknown,
    ImagePullFailed,
    ImageRegistryThrottled,
    JobCreateFailed,
    JobDeletedExternally,
    OutOfMemory,
    PodLost,
    PodScheduleFailed,
    PodStartFailed,
    RunError,
    RunTimeout,
    WorkspaceNotRestored,
    WorkspaceUnreachable,
)
from agent_runs.contracts.outcome import ContainerEnd, Peaks
from agent_runs.contracts.pod import AGENT_CONTAINER, RESTORE_CONTAINER, RESTORE_RETRYABLE
from agent_runs.kube.failures import bounded
from agent_runs.kube.objects import ContainerStatus, Event, Job, Pod, Terminated, amount

NODE_SILENCE_TIMEOUT: Final = timedelta(minutes=2)
"""How long after its `deletionTimestamp` a pod may still exist before its node counts as lost."""

TRANSIENT_ERROR_TIMEOUT: Final = timedelta(seconds=30)
"""For what passes within seconds or never: a Secret just created, a failed pull whose cause is not reported yet."""
REGISTRY_TIMEOUT: Final = timedelta(minutes=2)
"""For a registry that is down, slow or throttling."""
VOLUME_TIMEOUT: Final = timedelta(minutes=3)
"""For volumes: the kubelet reports FailedMount after two minutes, and attaching a disk often needs a second attempt.
Also for a kubelet that cannot read Secrets."""

_PERMANENT_PULL_ERROR: Final = re.compile(
    r"not found|manifest unknown|no such image|does not exist|unauthori[sz]ed|authentication required|access denied"
    r"|denied|forbidden|invalid reference|no match for platform|no matching manifest|not present with pull policy",
    re.IGNORECASE,
)
_TRANSIENT_PULL_ERROR: Final = re.compile(
    r"timed? ?out|timeout|deadline exceeded|too ?many ?requests|connection (refused|reset)|(?-i:\bEOF\b)"
    r"|status(?: code)?:? 50[0-9]|50[0-9] (?:internal|bad gateway|service|gateway)|service unavailable|QPS exceeded"
    r"|no such host|temporary failure|TLS handshake|network is unreachable",
    re.IGNORECASE,
)
_UNREAD_SECRET: Final = re.compile(r"failed to sync (secret|configmap) cache")
"""The kubelet has not read the object within a second: it or the API server is slow. Seen on a busy cluster."""
_CAPACITY_MESSAGE: Final = re.compile(r"Insufficient |Too many pods")
"""Of the scheduler. Source: Kubernetes, plugin NodeResourcesFit, seen on a full node."""
_VOLUME_MESSAGE: Final = re.compile(r"pvc|persistentvolumeclaim|volume|bind|mount", re.IGNORECASE)
_PULL_REASONS: Final = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"}
_INVALID_IMAGE_REASONS: Final = {"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_VOLUME_REASONS: Final = {"MountVolumeFailed", "ContainerCannotMount"}
_CREATION_REASONS: Final = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PostStartHookError",
}
_STARTING_REASONS: Final = {"", "ContainerCreating", "PodInitializing", "Pending"}
_DISRUPTION_REASONS: Final = {
    "Evicted",
    "Preempting",
    "Preempted",
    "PreemptionByScheduler",
    "DeletionByTaintManager",
    "EvictionByEvictionAPI",
    "DeletionByPodGC",
    "TerminationByKubelet",
    "NodeLost",
    "NodeShutdown",
    "Shutdown",
    "Terminated",
    "NodeAffinity",
    "NodeName",
    "UnexpectedAdmissionError",
}
DELETED: Final = "Deleted"
"""Our reason for a pod that somebody deleted; Kubernetes sets none."""
JOB_DELETED: Final = "JobDeleted"
"""Our reason for a pod that was deleted because its Job was."""
DEADLINE: Final = "DeadlineExceeded"
DISRUPTED: Final = "DisruptionTarget"
"""Kubernetes removed the pod for a reason that is not known here; the message names it."""
_UNKNOWN_END_REASONS: Final = {"ContainerStatusUnknown", "Unknown"}
_SUCCESS_REASONS: Final = {"", "Completed"}
QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of a Job: the queue that admits it."""
_UNREAD_JOB: Final = Job()
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Waiting:
    """The agent container does not run yet, which need not be an error.

    Attributes:
        reason: text for people; two diagnoses with equal reasons have the same cause.
        scheduled: a node has taken the pod.
        since: when this phase (waiting for a node, or for the start) began, by the cluster's clock.
        error: what the waiting becomes when its timeout expires.
        timeout: how long this reason may last; None leaves it to the timeout of the phase.
        lacks_capacity: nodes or a quota have no place left; a pod that ends elsewhere makes one.
        queued: the Job is suspended; no timeout runs until it is admitted.
    """

    reason: str
    scheduled: bool = False
    since: datetime | None = None
    error: type[RunError] = PodScheduleFailed
    timeout: timedelta | None = None
    lacks_capacity: bool = False
    queued: bool = False


@dataclass(frozen=True)
class Running:
    """The agent container runs. `warning` names a sign of the contrary, such as a node that does not answer."""

    warning: str | None = None


@dataclass(frozen=True)
class ContainerEnded:
    """The agent container ended. `termination_cause` names the failure, unless the end was OpenCode's own exit."""

    end: ContainerEnd


@dataclass(frozen=True)
class Failing:
    """The agent container will not run, or its pod no longer exists."""

    error: type[RunError]
    message: str

    def as_error(self) -> RunError:
        return self.error(self.message)


Diagnosis: TypeAlias = Waiting | Running | ContainerEnded | Failing


def diagnose(
    pod: Pod | None,
    job: Job | None,
    events: Sequence[Event] = (),
    *,
    container: str = AGENT_CONTAINER,
    had_pod: bool = False,
    job_was_read: bool = True,
    now: datetime | None = None,
) -> Diagnosis:
    """What state the attempt is in.

    Args:
        pod: the attempt's pod, None when the Job has none.
        job: the attempt's Job, None when it does not exist (by the API server's own answer, not a proxy's).
        events: about the pod and the Job; without them some causes stay unknown.
        had_pod: a pod of this Job was seen before.
        job_was_read: False when the Job was not read, so that None does not mean that it does not exist.
        now: if given, a deleted pod whose node never answers counts as lost.
    """
    if pod is None:
        return _without_pod(job, events, had_pod=had_pod)
    status, outside = pod.container(container), _outside_reason(pod, job if job_was_read else _UNREAD_JOB)
    if status is not None and status.state.terminated is not None:
        return ContainerEnded(_end(status.state.terminated, pod, container, outside))
    if pod.status.phase in {"Succeeded", "Failed"}:
        return _ended_unseen(pod, status, outside)
    if now is not None and _is_node_silent(pod, now):
        return _disruption_failure(outside, f"pod {pod.metadata.name} was deleted and its node does not answer")
    if pod.status.reason == "NodeLost":
        return Failing(PodLost, _with_message(f"the node of pod {pod.metadata.name} is lost", pod.status.message))
    if status is not None and status.state.running is not None:
        return Running(_warning(pod, events))
    if pod.metadata.deletion_timestamp is not None:
        return _disruption_failure(
            outside, _with_message(f"pod {pod.metadata.name} was deleted before it started", _disruption_message(pod))
        )
    return _starting(pod, status, events)


def diagnose_sidecar(pod: Pod, container: str, events: Sequence[Event] = ()) -> Diagnosis | None:
    """Return what keeps a sidecar from starting while the agent container, which runs, waits for it; None: nothing.

    How the sidecar ends does not count: a pod is judged by its agent container.
    """
    status = pod.container(container)
    if status is None or status.state.running is not None or status.state.terminated is not None:
        return None
    return _diagnose_start(pod, status, events, init=False) or _wait(pod, summary(pod))


# no pod


def _without_pod(job: Job | None, events: Sequence[Event], *, had_pod: bool) -> Diagnosis:
    if job is None or job.metadata.deletion_timestamp is not None:
        return Failing(JobDeletedExternally, "the Job was deleted by somebody else")
    failed = job.failure
    if failed is not None:
        if failed.reason == DEADLINE:
            return Failing(RunTimeout, _with_message("Kubernetes ended the Job at its deadline", failed.message))
        return Failing(
            PodLost,
            _with_message(
                f"the Job failed and its pod no longer exists ({failed.reason or 'no reason'})", failed.message
            ),
        )
    if job.success is not None:
        return Failing(ExitUnknown, "the Job is complete but its pod no longer exists, so its exit code is lost")
    if had_pod:
        why = f": {_suspension(job)}" if job.spec.suspend else ""
        return Failing(PodLost, f"the pod was deleted{why}")
    if job.spec.suspend:
        return Waiting(_suspension(job), since=job.metadata.creation_timestamp, queued=True)
    refused = _latest(events, "FailedCreate")
    since = job.metadata.creation_timestamp
    if refused is None:
        return Waiting("Waiting for Job controller to create pod...", since=since)
    reason = f"Kubernetes refuses the pod: {bounded(refused.message)}"
    if "exceeded quota" in refused.message:
        return Waiting(reason, since=since, error=JobCreateFailed, lacks_capacity=True)
    return Waiting(reason, since=since, error=JobCreateFailed, timeout=TRANSIENT_ERROR_TIMEOUT)


def _suspension(job: Job) -> str:
    """Source: kueue.sigs.k8s.io, Run A Kubernetes Job: it suspends a Job of a queue until there is room for it."""
    queue, condition = job.metadata.labels.get(QUEUE), job.condition("Suspended")
    who = f"queue {queue} admits it" if queue else "an admission controller, such as a queue, admits it"
    return _with_message(f"the Job is suspended until {bounded(who)}", condition.message if condition else "")


# a pod that has not started


def _starting(pod: Pod, main: ContainerStatus | None, events: Sequence[Event]) -> Diagnosis:
    if not pod.spec.node_name:
        return _unscheduled(pod)
    for status in pod.status.init_container_statuses:
        failure = _diagnose_start(pod, status, events, init=True)
        if failure is not None:
            return failure
    failure = None if main is None else _diagnose_start(pod, main, events, init=False)
    if failure is not None:
        return failure
    mount = _latest(events, "FailedMount", "FailedAttachVolume", "FailedMapVolume", uid=pod.metadata.uid)
    if mount is not None:
        return _wait(pod, f"Volume mount failed: {bounded(mount.message)}", timeout=VOLUME_TIMEOUT)
    sandbox = _latest(events, "FailedCreatePodSandBox", uid=pod.metadata.uid)
    if sandbox is not None:
        return _wait(pod, f"Pod sandbox cannot be created: {bounded(sandbox.message)}")
    return _wait(pod, summary(pod))


def _unscheduled(pod: Pod) -> Diagnosis:
    condition = pod.condition("PodScheduled")
    since = pod.metadata.creation_timestamp
    if condition is None or not condition.reason:
        return Waiting("Waiting for pod to be scheduled", since=since)
    message = bounded(condition.message)
    if condition.reason == "SchedulingGated":
        return Waiting(_with_message("Pod is held back by a scheduling gate", message), since=since)
    kind = "PVC bind failed" if _VOLUME_MESSAGE.search(message) else "Pod unschedulable"
    lacks_capacity = _CAPACITY_MESSAGE.search(message) is not None
    return Waiting(f"{kind}: {message or condition.reason}", since=since, lacks_capacity=lacks_capacity)


def _diagnose_start(pod: Pod, status: ContainerStatus, events: Sequence[Event], *, init: bool) -> Diagnosis | None:
    ended = status.state.terminated
    if ended is not None and init and ended.exit_code != 0:
        return _failed_init(pod, status.name, ended, _outside_reason(pod, _UNREAD_JOB))
    waiting = status.state.waiting
    if waiting is None or waiting.reason in _STARTING_REASONS:
        return None
    cause = bounded(waiting.message) or waiting.reason
    title = f'Init container "{status.name}"' if init else f'Container "{status.name}"'
    if waiting.reason in _PULL_REASONS:
        return _pull(pod, status, events, init=init)
    if waiting.reason in _INVALID_IMAGE_REASONS:
        return Failing(ImagePullFailed, f"{_pull_title(status.name, init=init)}: {waiting.reason}: {cause}")
    if waiting.reason == "CrashLoopBackOff":
        return Failing(PodScheduleFailed, f"{title} crash loop: {cause}")
    if waiting.reason in _VOLUME_REASONS:
        return Failing(PodScheduleFailed, f'Volume mount failed for "{status.name}": {cause}')
    if waiting.reason in _CREATION_REASONS:
        timeout = VOLUME_TIMEOUT if _UNREAD_SECRET.search(cause) else TRANSIENT_ERROR_TIMEOUT
        return _wait(pod, f"{title} cannot be created: {waiting.reason}: {cause}", timeout=timeout)
    return _wait(pod, f"{title} waits for an unknown reason: {waiting.reason}: {cause}", timeout=VOLUME_TIMEOUT)


def _failed_init(pod: Pod, name: str, ended: Terminated, outside: str | None) -> Diagnosis:
    if ended.exit_code is None or ended.reason in _UNKNOWN_END_REASONS:
        return Failing(
            ExitUnknown, f'Init container "{name}" ended with an unknown exit code: {_termination_message(ended)}'
        )
    if outside is not None:
        return _disruption_failure(
            outside, _with_message(f"pod {pod.metadata.name} was ended while starting", _disruption_message(pod))
        )
    error: type[RunError] = PodScheduleFailed
    if name == RESTORE_CONTAINER:
        error = WorkspaceUnreachable if ended.exit_code == RESTORE_RETRYABLE else WorkspaceNotRestored
    return Failing(
        error, f'Init container "{name}" failed with exit code {ended.exit_code}: {_termination_message(ended)}'
    )


def _termination_message(ended: Terminated) -> str:
    return bounded(": ".join(part for part in (ended.reason, ended.message.strip()) if part) or "unknown")


def _pull(pod: Pod, status: ContainerStatus, events: Sequence[Event], *, init: bool) -> Diagnosis:
    """`ErrImagePull` and `ImagePullBackOff` alternate; before 1.31 only an event holds the registry's own message."""
    waiting = status.state.waiting
    event = _latest(events, "Failed", "FailedToPullImage", uid=pod.metadata.uid, about="pull")
    reason = "" if waiting is None else waiting.reason
    causes = [text for text in (waiting.message if waiting else "", event.message if event else "") if text]
    message = f"{_pull_title(status.name, init=init)}: {bounded(_most_specific(causes)) or reason}"
    all_causes = " ".join(causes)
    if _TRANSIENT_PULL_ERROR.search(all_causes):
        return _wait(pod, message, error=ImageRegistryThrottled, timeout=REGISTRY_TIMEOUT)
    if _PERMANENT_PULL_ERROR.search(all_causes) or reason != "ErrImagePull":
        return Failing(ImagePullFailed, message)
    return _wait(pod, message, error=ImagePullFailed, timeout=TRANSIENT_ERROR_TIMEOUT)


def _most_specific(causes: list[str]) -> str:
    """The text that names the registry's answer rather than only the kubelet's back-off."""
    return next((text for text in causes if not text.startswith("Back-off")), causes[0] if causes else "")


def _pull_title(name: str, *, init: bool) -> str:
    return f'Init container "{name}" image pull failed' if init else f'Image pull failed for "{name}"'


def _wait(
    pod: Pod, reason: str, *, error: type[RunError] = PodScheduleFailed, timeout: timedelta | None = None
) -> Waiting:
    condition = pod.condition("PodScheduled")
    since = condition.last_transition_time if condition is not None else None
    return Waiting(reason, scheduled=True, since=since or pod.status.start_time, error=error, timeout=timeout)


# a pod that runs or ended


def _warning(pod: Pod, events: Sequence[Event]) -> str | None:
    event = _latest(events, "NodeNotReady", uid=pod.metadata.uid)
    if event is not None:
        return f"its node is not ready: {bounded(event.message)}"
    return "it is being deleted" if pod.metadata.deletion_timestamp is not None else None


def _is_node_silent(pod: Pod, now: datetime) -> bool:
    """`deletionTimestamp` is when the grace ends, not when the deletion was requested."""
    end = pod.metadata.deletion_timestamp
    return end is not None and now.astimezone(UTC) - _aware(end) > NODE_SILENCE_TIMEOUT


def _end(ended: Terminated, pod: Pod, container: str, outside: str | None) -> ContainerEnd:
    code, reason, message = ended.exit_code, ended.reason, ended.message
    if reason in _UNKNOWN_END_REASONS or (code == 0 and reason not in _SUCCESS_REASONS):
        code = None
    if code != 0 and outside is not None and reason != "OOMKilled":
        reason, message = outside, _disruption_message(pod)
    return ContainerEnd(
        exit_code=code,
        signal=ended.signal or None,
        reason=bounded(reason) or None,
        message=bounded(message) or None,
        finished_at=ended.finished_at,
        peaks=_peaks(reason, _memory_limit(pod, container)),
    )


def _peaks(reason: str | None, limit: int | None) -> Peaks:
    """What the status tells of the memory: a container that was killed for its limit has reached it."""
    if reason == "OOMKilled" and limit is not None:
        return Peaks(memory=limit, memory_reached_limit=True, memory_limit=limit)
    return Peaks(memory_limit=limit)


def _memory_limit(pod: Pod, container: str) -> int | None:
    limits = next((each.resources.limits for each in pod.spec.containers if each.name == container), {})
    try:
        return int(amount(limits["memory"]))
    except (KeyError, ValueError):
        return None


def _ended_unseen(pod: Pod, status: ContainerStatus | None, outside: str | None) -> Diagnosis:
    """The pod has ended but its container's end was not reported. Kubelets up to 1.21 do so at a deadline or deletion.

    Before that a container may even be shown as waiting for its creation, long after it ran.
    """
    reason = outside or pod.status.reason
    if status is None and _is_disruption(reason):
        if limit := exceeded_disk_limit(reason, pod.status.message):
            return Failing(DiskLimitExceeded, f"pod {pod.metadata.name} was evicted: {limit}")
        return Failing(PodLost, _with_message(f"pod {pod.metadata.name}: {reason}", _disruption_message(pod)))
    for each in pod.status.init_container_statuses:
        ended = each.state.terminated
        if ended is not None and ended.exit_code != 0:
            return _failed_init(pod, each.name, ended, outside)
    message = pod.status.message or f"the pod is {pod.status.phase} and its container's end was not reported"
    return ContainerEnded(ContainerEnd(reason=bounded(reason) or "Unknown", message=bounded(message)))


def _outside_reason(pod: Pod, job: Job | None) -> str | None:
    """Kubernetes' reason for ending the pod from outside, or ours where it has none; None if nothing ended it."""
    if _is_disruption(pod.status.reason) or pod.status.reason == DEADLINE:
        return pod.status.reason
    condition = pod.condition(DISRUPTED)
    if condition is not None and condition.holds:
        return condition.reason if _is_disruption(condition.reason) else DISRUPTED
    return None if pod.metadata.deletion_timestamp is None else _deletion(job)


def _deletion(job: Job | None) -> str:
    """Why a pod is being deleted: its Job is, or the Job's deadline has passed, or somebody deleted this very pod."""
    if job is None or job.metadata.deletion_timestamp is not None:
        return JOB_DELETED
    failed = job.failure
    return DEADLINE if failed is not None and failed.reason == DEADLINE else DELETED


def _is_disruption(reason: str) -> bool:
    """The kubelet refuses a pod that lacks a resource as `OutOf<resource>`, which may also name an unknown device."""
    return reason in _DISRUPTION_REASONS or reason.startswith("OutOf")


def _disruption_failure(outside: str | None, message: str) -> Failing:
    error: type[RunError] = {JOB_DELETED: JobDeletedExternally, DEADLINE: RunTimeout}.get(outside or "", PodLost)
    return Failing(error, message)


def _disruption_message(pod: Pod) -> str:
    condition = pod.condition(DISRUPTED)
    if condition is None or not condition.holds:
        return bounded(pod.status.message)
    known = _is_disruption(condition.reason)
    message = condition.message if known else _with_message(condition.reason, condition.message)
    return bounded(pod.status.message or message)


def termination_cause(end: ContainerEnd) -> Failing | None:
    """Return what ended the container, if it was neither OpenCode's own exit nor a stop that was requested.

    None: OpenCode exited by itself, with whatever code, and its output decides.
    """
    message = end.message or ""
    if end.reason == "OOMKilled":
        return Failing(OutOfMemory, f"Pod exited: OOMKilled (exit {end.exit_code}){end.peaks.memory_advice}")
    if end.reason == DEADLINE:
        return Failing(RunTimeout, _with_message("Kubernetes ended the pod at its deadline", message))
    if end.reason == DELETED:
        return Failing(PodLost, _with_message("the pod was deleted while the agent ran", message))
    if end.reason == JOB_DELETED:
        return Failing(JobDeletedExternally, _with_message("the Job was deleted while the agent ran", message))
    if limit := exceeded_disk_limit(end.reason or "", message):
        return Failing(DiskLimitExceeded, f"the pod was evicted: {limit}")
    if _is_disruption(end.reason or "") or end.reason == DISRUPTED:
        return Failing(PodLost, _with_message(f"the pod was ended from outside: {end.reason}", message))
    if end.reason in {"ContainerCannotRun", "StartError", "ContainerCannotMount"}:
        return Failing(PodScheduleFailed, _with_message(f"the container could not start: {end.reason}", message))
    if end.exit_code is None:
        return Failing(
            ExitUnknown, _with_message(f"the exit code is unknown: {end.reason or 'no reason given'}", message)
        )
    if end.exit_code > 128 or end.signal:
        number = end.signal or end.exit_code - 128
        return Failing(
            AgentCrashed,
            _with_message(
                f"Pod exited: {end.reason or 'by a signal'} (exit {end.exit_code}, signal {number})", message
            ),
        )
    return None


def silent_node(pod: Pod) -> tuple[str, datetime | None] | None:
    """Return that the pod's node does not answer, and since when Kubernetes knows; None: nothing shows it.

    Its kubelet alone reports containers, and takes both conditions back when one of them is not ready. Only the
    controller of nodes takes back the pod's alone. Source: kubernetes.io, Pod Conditions; 1.37, observed.
    """
    ready, containers = pod.condition("Ready"), pod.condition("ContainersReady")
    if ready is None or ready.holds or containers is None or not containers.holds:
        return None
    return (
        f"node {pod.spec.node_name} does not answer. The run goes on by itself once it does; otherwise Kubernetes "
        "gives the pod up after some minutes, and the next attempt follows"
    ), ready.last_transition_time


# texts


def summary(pod: Pod) -> str:
    """Return one line about the pod as the existing adapters print it: phase, and the state of each container."""
    parts = [f"init/{each.name}: {_container_state(each)}" for each in pod.status.init_container_statuses]
    parts += [f"{each.name}: {_container_state(each)}" for each in pod.status.container_statuses]
    return ", ".join([f"phase={pod.status.phase or 'Unknown'}", *parts])


def _container_state(status: ContainerStatus) -> str:
    if status.state.terminated is not None:
        return f"done (exit {status.state.terminated.exit_code})"
    if status.state.running is not None:
        return "running"
    reason = status.state.waiting.reason if status.state.waiting is not None else ""
    return f"waiting ({reason or 'no reason'})"


def _latest(events: Iterable[Event], *reasons: str, uid: str | None = None, about: str = "") -> Event | None:
    matches = [
        event
        for event in events
        if event.reason in reasons
        and about in event.message
        and (not uid or not event.involved_object.uid or event.involved_object.uid == uid)
    ]
    return max(matches, key=lambda event: _aware(event.when or _LONG_AGO), default=None)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _with_message(what: str, message: str) -> str:
    return f"{what}: {bounded(message)}" if message else what


# timeouts


@dataclass
class StartTimeouts:
    """Turns waiting into failing when it has lasted too long. One for each wait; not safe to share.

    The timeouts of the two phases run by the cluster's timestamps, so a restart of the worker does not reset them; a
    single reason's shorter timeout begins when the reason is first seen here.

    Attributes:
        schedule: from `began` until a node has taken the pod.
        start: from then until the agent container runs.
        began: the Job's creation, or its admission by a queue.
    """

    schedule: timedelta
    start: timedelta
    began: datetime
    _first_seen: dict[str, datetime] = field(default_factory=dict)

    def apply(self, diagnosis: Diagnosis, now: datetime) -> Diagnosis:
        """Return the diagnosis, or the failure that its waiting has become."""
        if not isinstance(diagnosis, Waiting):
            return diagnosis
        if diagnosis.queued:
            self.began = now
            return diagnosis
        first = self._first_seen.setdefault(_without_details(diagnosis.reason), now)
        if diagnosis.timeout is not None and now - first >= diagnosis.timeout:
            return Failing(diagnosis.error, diagnosis.reason)
        if diagnosis.scheduled:
            since = min(_aware(diagnosis.since or first), first)  # the cluster's clock may be ahead of ours
            if now - since >= self.start:
                error = PodStartFailed if diagnosis.error is PodScheduleFailed else diagnosis.error
                return Failing(error, self._timed_out(diagnosis))
        elif now - self.began >= self.schedule:
            return Failing(diagnosis.error, self._timed_out(diagnosis))
        return diagnosis

    def _timed_out(self, waiting: Waiting) -> str:
        if waiting.scheduled:
            seconds = int(self.start.total_seconds())
            return f"Timed out waiting for pod containers to start ({seconds}s): {waiting.reason}"
        seconds = int(self.schedule.total_seconds())
        return f"Timed out waiting for pod to be scheduled ({seconds}s): {waiting.reason}"


def _without_details(reason: str) -> str:
    return reason.partition(":")[0]


EVICTED: Final = frozenset({"Evicted", "TerminationByKubelet"})
"""The pod's reason, and that of its condition `DisruptionTarget`, which is set before."""
_LIMITS: Final = (
    re.compile(r'Usage of EmptyDir (?P<what>volume "[^"]{1,253}") exceeds the limit "(?P<limit>[^"]{1,40})"'),
    re.compile(r'(?P<what>Container \S{1,253}) exceeded its local ephemeral storage limit "(?P<limit>[^"]{1,40})"'),
    re.compile(
        r"(?P<what>Pod) ephemeral local storage usage exceeds the total limit of containers (?P<limit>\S{1,40}?)\.( |$)"
    ),
)


def exceeded_disk_limit(reason: str, message: str) -> str | None:
    """`volume "output" used more disk than its limit of 1Gi (1073741824 bytes)`; None for any other eviction.

    A node that is low on disk evicts pods that keep to their limits, too: that is no fault of theirs.
    """
    if reason not in EVICTED:
        return None
    match = next(filter(None, (pattern.search(message) for pattern in _LIMITS)), None)
    if match is None:
        return None
    limit = match["limit"]
    try:
        size = f" ({int(amount(limit))} bytes)"
    except ValueError:
        size = ""
    what = match["what"][0].lower() + match["what"][1:]
    return f"{what} used more disk than its limit of {limit}{size}"
