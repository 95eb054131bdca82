"""What state an attempt's pod is in, and what is wrong with it: `diagnose(pod, job, events)`, pure and total.

Some trouble is final the moment it is seen; some passes by itself (a registry that times out, a node that an
autoscaler is still starting, a Secret the kubelet has not seen yet) and deserves patience first. `Patience` turns
waiting into failing when that is used up. Reasons nobody here knows are named as they are and never count as success,
and neither does an exit code that is missing.

Source: kubernetes.io, Pod Lifecycle, Jobs, and the reasons of kubelet 1.20 to 1.34; see docs/deviations.md.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from cluster.objects import ContainerStatus, Event, Job, Pod, Terminated
from contracts.errors import (
    AgentCrashed,
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
)
from contracts.messages import AwaitSchedule
from contracts.outcome import ContainerEnd

CONTAINER: Final = "opencode"
UNREACHABLE: Final = timedelta(minutes=2)
"""How long after its announced end a deleted pod may still be there before its node counts as lost."""

SETTLING: Final = timedelta(seconds=30)
"""For what passes within seconds or never: a Secret just created, a first failed pull whose cause is not yet told."""
REGISTRY: Final = timedelta(minutes=2)
"""For a registry that is down, slow or throttles."""
MOUNTING: Final = timedelta(minutes=3)
"""For volumes: the kubelet reports FailedMount after two minutes, and attaching a disk often needs a second try."""

_DEFINITE_PULL: Final = re.compile(
    r"not found|manifest unknown|no such image|does not exist|unauthori[sz]ed|authentication required|access denied"
    r"|denied|forbidden|invalid reference|no match for platform|no matching manifest|not present with pull policy",
    re.IGNORECASE,
)
_PASSING_PULL: Final = re.compile(
    r"timed? ?out|timeout|deadline exceeded|too ?many ?requests|connection (refused|reset)|(?-i:\bEOF\b)"
    r"|status(?: code)?:? 50[0-9]|50[0-9] (?:internal|bad gateway|service|gateway)|service unavailable|QPS exceeded"
    r"|no such host|temporary failure|TLS handshake|network is unreachable",
    re.IGNORECASE,
)
_VOLUME: Final = re.compile(r"pvc|persistentvolumeclaim|volume|bind|mount", re.IGNORECASE)
_PULLING: Final = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"}
_BAD_IMAGE: Final = {"InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_VOLUME_REASONS: Final = {"MountVolumeFailed", "ContainerCannotMount"}
_CREATING: Final = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError"}
_STARTING: Final = {"", "ContainerCreating", "PodInitializing", "Pending"}
_LOST: Final = {
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
"""Our word for a pod that somebody deleted; Kubernetes sets no reason then."""
JOB_DELETED: Final = "JobDeleted"
"""Our word for a pod that was deleted because its Job was."""
DEADLINE: Final = "DeadlineExceeded"
DISRUPTED: Final = "DisruptionTarget"
"""Kubernetes took the pod away for a reason that nobody here knows; the message names it."""
_UNKNOWN_END: Final = {"ContainerStatusUnknown", "Unknown"}
_HONEST_SUCCESS: Final = {"", "Completed"}
_NOT_ASKED: Final = Job()
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Waiting:
    """Nothing runs yet, and that may be all right.

    Attributes:
        why: for people; also says whether the trouble is still the same.
        scheduled: a node has taken the pod.
        since: when this phase (waiting for a node, or for the start) began, by the cluster's clock.
        error: what it becomes when patience ends.
        patience: how long this reason may last; None leaves it to the phase's own clock.
    """

    why: str
    scheduled: bool = False
    since: datetime | None = None
    error: type[RunError] = PodScheduleFailed
    patience: timedelta | None = None


@dataclass(frozen=True)
class Running:
    """The agent container runs. `doubt` names what speaks against it, such as a node that does not answer."""

    doubt: str | None = None


@dataclass(frozen=True)
class Ended:
    """The agent container ended. What that means is in `end`, and `why_it_ended` names what is not OpenCode's doing."""

    end: ContainerEnd


@dataclass(frozen=True)
class Failing:
    """It will not run, or is gone."""

    error: type[RunError]
    message: str

    def raised(self) -> RunError:
        """The failure, to raise."""
        return self.error(self.message)


Diagnosis: TypeAlias = Waiting | Running | Ended | Failing


def diagnose(
    pod: Pod | None,
    job: Job | None,
    events: Sequence[Event] = (),
    *,
    container: str = CONTAINER,
    had_pod: bool = False,
    asked: bool = True,
    now: datetime | None = None,
) -> Diagnosis:
    """What state the attempt is in.

    Args:
        pod: the attempt's pod, None when the Job has none.
        job: the attempt's Job, None when it is gone (the API server said so, not a proxy).
        events: about the pod and the Job; without them some causes stay unnamed.
        had_pod: a pod of this Job was seen before.
        asked: False when nobody asked for the Job of this pod, so that None does not mean that it is gone.
        now: lets a deleted pod whose node never answers be called lost.
    """
    if pod is None:
        return _without_pod(job, events, had_pod=had_pod)
    status, outside = pod.container(container), _disrupted(pod, job if asked else _NOT_ASKED)
    if status is not None and status.state.terminated is not None:
        return Ended(_end(status.state.terminated, pod, outside))
    if pod.status.phase in {"Succeeded", "Failed"}:
        return _ended_unseen(pod, status, outside)
    if now is not None and _overdue(pod, now):
        return _taken_away(outside, f"pod {pod.metadata.name} was deleted and its node does not answer")
    if pod.status.reason == "NodeLost":
        return Failing(PodLost, _told(f"the node of pod {pod.metadata.name} is lost", pod.status.message))
    if status is not None and status.state.running is not None:
        return Running(_doubt(pod, events))
    if pod.metadata.deletion_timestamp is not None:
        return _taken_away(outside, _told(f"pod {pod.metadata.name} was deleted before it started", _disruption(pod)))
    return _starting(pod, status, events)


def beside(pod: Pod, container: str, events: Sequence[Event] = ()) -> Diagnosis | None:
    """What keeps a container from starting for which the agent's own, which runs already, waits; None: nothing.

    How it ends does not count: a pod is judged by its agent's container.
    """
    status = pod.container(container)
    if status is None or status.state.running is not None or status.state.terminated is not None:
        return None
    return _container_trouble(pod, status, events, init=False) or _wait(pod, summary(pod))


# no pod


def _without_pod(job: Job | None, events: Sequence[Event], *, had_pod: bool) -> Diagnosis:
    if job is None or job.metadata.deletion_timestamp is not None:
        return Failing(JobDeletedExternally, "the Job was deleted by somebody else")
    failed = job.condition("Failed")
    if failed is not None:
        if failed.reason == DEADLINE:
            return Failing(RunTimeout, _told("Kubernetes ended the Job at its deadline", failed.message))
        return Failing(
            PodLost, _told(f"the Job failed and its pod is gone ({failed.reason or 'no reason'})", failed.message)
        )
    if job.condition("Complete") is not None:
        return Failing(ExitUnknown, "the Job is complete but its pod is gone, and its exit code with it")
    if had_pod:
        return Failing(PodLost, "the pod was deleted")
    refused = _latest(events, "FailedCreate")
    since = job.metadata.creation_timestamp
    if refused is None:
        return Waiting("Waiting for Job controller to create pod...", since=since)
    why = f"Kubernetes refuses the pod: {_bounded(refused.message)}"
    if "exceeded quota" in refused.message:
        return Waiting(why, since=since, error=JobCreateFailed)
    return Waiting(why, since=since, error=JobCreateFailed, patience=SETTLING)


# a pod that has not started


def _starting(pod: Pod, main: ContainerStatus | None, events: Sequence[Event]) -> Diagnosis:
    if not _scheduled(pod):
        return _unscheduled(pod)
    for status in pod.status.init_container_statuses:
        trouble = _container_trouble(pod, status, events, init=True)
        if trouble is not None:
            return trouble
    trouble = None if main is None else _container_trouble(pod, main, events, init=False)
    if trouble is not None:
        return trouble
    mount = _latest(events, "FailedMount", "FailedAttachVolume", "FailedMapVolume", uid=pod.metadata.uid)
    if mount is not None:
        return _wait(pod, f"Volume mount failed: {_bounded(mount.message)}", patience=MOUNTING)
    sandbox = _latest(events, "FailedCreatePodSandBox", uid=pod.metadata.uid)
    if sandbox is not None:
        return _wait(pod, f"Pod sandbox cannot be created: {_bounded(sandbox.message)}")
    return _wait(pod, summary(pod))


def _scheduled(pod: Pod) -> bool:
    condition = pod.condition("PodScheduled")
    return bool(pod.spec.node_name) or (condition is not None and condition.holds)


def _unscheduled(pod: Pod) -> Diagnosis:
    condition = pod.condition("PodScheduled")
    since = pod.metadata.creation_timestamp
    if condition is None or not condition.reason:
        return Waiting("Waiting for pod to be scheduled", since=since)
    message = _bounded(condition.message)
    if condition.reason == "SchedulingGated":
        return Waiting(_told("Pod is held back by a scheduling gate", message), since=since)
    kind = "PVC bind failed" if _VOLUME.search(message) else "Pod unschedulable"
    return Waiting(f"{kind}: {message or condition.reason}", since=since)


def _container_trouble(pod: Pod, status: ContainerStatus, events: Sequence[Event], *, init: bool) -> Diagnosis | None:
    ended = status.state.terminated
    if ended is not None and init and ended.exit_code != 0:
        return _failed_init(pod, status.name, ended, _disrupted(pod, _NOT_ASKED))
    waiting = status.state.waiting
    if waiting is None or waiting.reason in _STARTING:
        return None
    cause = _bounded(waiting.message) or waiting.reason
    named = f'Init container "{status.name}"' if init else f'Container "{status.name}"'
    if waiting.reason in _PULLING:
        return _pull(pod, status, events, init=init)
    if waiting.reason in _BAD_IMAGE:
        return Failing(ImagePullFailed, f"{_pull_title(status.name, init=init)}: {waiting.reason}: {cause}")
    if waiting.reason == "CrashLoopBackOff":
        return Failing(PodScheduleFailed, f"{named} crash loop: {cause}")
    if waiting.reason in _VOLUME_REASONS:
        return Failing(PodScheduleFailed, f'Volume mount failed for "{status.name}": {cause}')
    if waiting.reason in _CREATING:
        return _wait(pod, f"{named} cannot be created: {waiting.reason}: {cause}", patience=SETTLING)
    return _wait(pod, f"{named} waits for an unknown reason: {waiting.reason}: {cause}", patience=MOUNTING)


def _failed_init(pod: Pod, name: str, ended: Terminated, outside: str | None) -> Diagnosis:
    if ended.exit_code is None or ended.reason in _UNKNOWN_END:
        return Failing(ExitUnknown, f'Init container "{name}" ended with an unknown exit code: {_cause(ended)}')
    if outside is not None:
        return _taken_away(outside, _told(f"pod {pod.metadata.name} was ended while starting", _disruption(pod)))
    return Failing(
        PodScheduleFailed, f'Init container "{name}" failed with exit code {ended.exit_code}: {_cause(ended)}'
    )


def _cause(ended: Terminated) -> str:
    return _bounded(ended.reason or ended.message or "unknown")


def _pull(pod: Pod, status: ContainerStatus, events: Sequence[Event], *, init: bool) -> Diagnosis:
    """`ErrImagePull` and `ImagePullBackOff` take turns; before 1.31 only an event holds the registry's own words."""
    waiting = status.state.waiting
    words = "" if waiting is None else waiting.message
    told = _latest(events, "Failed", "FailedToPullImage", uid=pod.metadata.uid, about="pull")
    reason = "" if waiting is None else waiting.reason
    causes = [text for text in (words, told.message if told else "") if text]
    message = f"{_pull_title(status.name, init=init)}: {_bounded(_pick(causes)) or reason}"
    everything = " ".join(causes)
    if _PASSING_PULL.search(everything):
        return _wait(pod, message, error=ImageRegistryThrottled, patience=REGISTRY)
    if _DEFINITE_PULL.search(everything) or reason != "ErrImagePull":
        return Failing(ImagePullFailed, message)
    return _wait(pod, message, error=ImagePullFailed, patience=SETTLING)


def _pick(causes: list[str]) -> str:
    """The text that names the registry's answer rather than only the kubelet's back-off."""
    return next((text for text in causes if not text.startswith("Back-off")), causes[0] if causes else "")


def _pull_title(name: str, *, init: bool) -> str:
    return f'Init container "{name}" image pull failed' if init else f'Image pull failed for "{name}"'


def _wait(
    pod: Pod, why: str, *, error: type[RunError] = PodScheduleFailed, patience: timedelta | None = None
) -> Waiting:
    condition = pod.condition("PodScheduled")
    since = condition.last_transition_time if condition is not None else None
    return Waiting(why, scheduled=True, since=since or pod.status.start_time, error=error, patience=patience)


# a pod that runs or ended


def _doubt(pod: Pod, events: Sequence[Event]) -> str | None:
    event = _latest(events, "NodeNotReady", uid=pod.metadata.uid)
    if event is not None:
        return f"its node is not ready: {_bounded(event.message)}"
    return "it is being deleted" if pod.metadata.deletion_timestamp is not None else None


def _overdue(pod: Pod, now: datetime) -> bool:
    """`deletionTimestamp` is when the grace ends, not when the deletion was asked for."""
    end = pod.metadata.deletion_timestamp
    return end is not None and now.astimezone(UTC) - _aware(end) > UNREACHABLE


def _end(ended: Terminated, pod: Pod, outside: str | None) -> ContainerEnd:
    code, reason, message = ended.exit_code, ended.reason, ended.message
    if reason in _UNKNOWN_END or (code == 0 and reason not in _HONEST_SUCCESS):
        code = None
    if code != 0 and outside is not None and reason != "OOMKilled":
        reason, message = outside, _disruption(pod)
    return ContainerEnd(
        exit_code=code,
        signal=ended.signal or None,
        reason=_bounded(reason) or None,
        message=_bounded(message) or None,
        finished_at=ended.finished_at,
    )


def _ended_unseen(pod: Pod, status: ContainerStatus | None, outside: str | None) -> Diagnosis:
    """The pod is over but its container's end was never reported. Kubelets up to 1.21 do so at a deadline or deletion.

    Until then a container may even wait "for its creation" again, long after it ran.
    """
    reason = outside or pod.status.reason
    if status is None and _is_lost(reason):
        return Failing(PodLost, _told(f"pod {pod.metadata.name}: {reason}", _disruption(pod)))
    for each in pod.status.init_container_statuses:
        ended = each.state.terminated
        if ended is not None and ended.exit_code != 0:
            return _failed_init(pod, each.name, ended, outside)
    words = pod.status.message or f"the pod is {pod.status.phase} and its container's end was not reported"
    return Ended(ContainerEnd(reason=_bounded(reason) or "Unknown", message=_bounded(words)))


def _disrupted(pod: Pod, job: Job | None) -> str | None:
    """Who ended the pod from outside, in Kubernetes' word for it, else in ours."""
    if _is_lost(pod.status.reason) or pod.status.reason == DEADLINE:
        return pod.status.reason
    condition = pod.condition(DISRUPTED)
    if condition is not None and condition.holds:
        return condition.reason if _is_lost(condition.reason) else DISRUPTED
    return None if pod.metadata.deletion_timestamp is None else _deletion(job)


def _deletion(job: Job | None) -> str:
    """Why a pod is being deleted: its Job goes, or its Job's time is over, or somebody meant this very pod."""
    if job is None or job.metadata.deletion_timestamp is not None:
        return JOB_DELETED
    failed = job.condition("Failed")
    return DEADLINE if failed is not None and failed.reason == DEADLINE else DELETED


def _is_lost(reason: str) -> bool:
    """The kubelet refuses a pod for want of any resource as `OutOf<resource>`, also of devices nobody here knows."""
    return reason in _LOST or reason.startswith("OutOf")


def _taken_away(outside: str | None, message: str) -> Failing:
    error: type[RunError] = {JOB_DELETED: JobDeletedExternally, DEADLINE: RunTimeout}.get(outside or "", PodLost)
    return Failing(error, message)


def _disruption(pod: Pod) -> str:
    condition = pod.condition(DISRUPTED)
    if condition is None or not condition.holds:
        return _bounded(pod.status.message)
    told = condition.message if _is_lost(condition.reason) else _told(condition.reason, condition.message)
    return _bounded(pod.status.message or told)


def why_it_ended(end: ContainerEnd) -> Failing | None:
    """What ended the container, when it was neither OpenCode's own exit nor a stop we asked for.

    None leaves the judgement to OpenCode's output: it exited by itself, with whatever code.
    """
    told = end.message or ""
    if end.reason == "OOMKilled":
        return Failing(OutOfMemory, f"Pod exited: OOMKilled (exit {end.exit_code})")
    if end.reason == DEADLINE:
        return Failing(RunTimeout, _told("Kubernetes ended the pod at its deadline", told))
    if end.reason == DELETED:
        return Failing(PodLost, _told("the pod was deleted while the agent ran", told))
    if end.reason == JOB_DELETED:
        return Failing(JobDeletedExternally, _told("the Job was deleted while the agent ran", told))
    if _is_lost(end.reason or "") or end.reason == DISRUPTED:
        return Failing(PodLost, _told(f"the pod was ended from outside: {end.reason}", told))
    if end.reason in {"ContainerCannotRun", "StartError", "ContainerCannotMount"}:
        return Failing(PodScheduleFailed, _told(f"the container could not start: {end.reason}", told))
    if end.exit_code is None:
        return Failing(ExitUnknown, _told(f"the exit code is unknown: {end.reason or 'no reason given'}", told))
    if end.exit_code > 128 or end.signal:
        number = end.signal or end.exit_code - 128
        return Failing(
            AgentCrashed,
            _told(f"Pod exited: {end.reason or 'by a signal'} (exit {end.exit_code}, signal {number})", told),
        )
    return None


# words


def summary(pod: Pod) -> str:
    """One line about the pod as the peers print it: phase, and the state of each container."""
    parts = [f"init/{each.name}: {_state(each)}" for each in pod.status.init_container_statuses]
    parts += [f"{each.name}: {_state(each)}" for each in pod.status.container_statuses]
    return ", ".join([f"phase={pod.status.phase or 'Unknown'}", *parts])


def _state(status: ContainerStatus) -> str:
    if status.state.terminated is not None:
        return f"done (exit {status.state.terminated.exit_code})"
    if status.state.running is not None:
        return "running"
    reason = status.state.waiting.reason if status.state.waiting is not None else ""
    return f"waiting ({reason or 'no reason'})"


def _latest(events: Iterable[Event], *reasons: str, uid: str | None = None, about: str = "") -> Event | None:
    found = [
        event
        for event in events
        if event.reason in reasons
        and about in event.message
        and (not uid or not event.involved_object.uid or event.involved_object.uid == uid)
    ]
    return max(found, key=lambda event: _aware(event.when or _LONG_AGO), default=None)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _told(what: str, message: str) -> str:
    return f"{what}: {_bounded(message)}" if message else what


def _bounded(text: str) -> str:
    return " ".join(text.split())[:500]


# patience


@dataclass
class Patience:
    """Turns waiting into failing when it has lasted too long. One for each wait; not safe to share.

    The two phases have clocks of their own, by the cluster's timestamps, so they go on after a restart of the worker;
    a single reason's shorter patience begins when it is first seen here.
    """

    schedule: timedelta
    start: timedelta
    began: datetime
    _reasons: dict[str, datetime] = field(default_factory=dict)

    @classmethod
    def of(cls, order: AwaitSchedule, began: datetime) -> "Patience":
        """Patience as the workflow orders it; `began` is the Job's creation."""
        return cls(schedule=order.patience, start=order.start_patience, began=began)

    def judge(self, diagnosis: Diagnosis, now: datetime) -> Diagnosis:
        """The diagnosis, or the failure that its waiting has become."""
        if not isinstance(diagnosis, Waiting):
            return diagnosis
        first = self._reasons.setdefault(_kind(diagnosis.why), now)
        if diagnosis.patience is not None and now - first >= diagnosis.patience:
            return Failing(diagnosis.error, diagnosis.why)
        if diagnosis.scheduled:
            since = _aware(diagnosis.since or first)
            if now - (since if since <= now else first) >= self.start:  # the cluster's clock may be ahead of ours
                error = PodStartFailed if diagnosis.error is PodScheduleFailed else diagnosis.error
                return Failing(error, self._timed_out(diagnosis))
        elif now - self.began >= self.schedule:
            return Failing(diagnosis.error, self._timed_out(diagnosis))
        return diagnosis

    def _timed_out(self, waiting: Waiting) -> str:
        if waiting.scheduled:
            seconds = int(self.start.total_seconds())
            return f"Timed out waiting for pod containers to start ({seconds}s): {waiting.why}"
        seconds = int(self.schedule.total_seconds())
        return f"Timed out waiting for pod to be scheduled ({seconds}s): {waiting.why}"


def _kind(why: str) -> str:
    """The trouble without its varying details."""
    return why.partition(":")[0]
