"""What the kubelet publishes about a pod: a pure function of what its containers are doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dev_stack.cluster.containers import Container
from dev_stack.cluster.kinds import Object
from dev_stack.cluster.objects import set_condition, stamp

ADDRESS = "127.0.0.1"


@dataclass
class Slot:
    """One container of a pod; it runs once.

    Attributes:
        reason, message: why it waits.
    """

    spec: Object
    init: bool
    reason: str = ""
    message: str = ""
    container: Container | None = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def running(self) -> bool:
        return self.container is not None and self.container.running

    @property
    def succeeded(self) -> bool:
        """Whether it has ended with exit code 0."""
        end = self.container.end if self.container is not None else None
        return end is not None and end.code == 0


@dataclass(frozen=True)
class PodEnd:
    """Why the node ended a pod."""

    reason: str
    message: str


def phase_of(slots: Sequence[Slot], end: PodEnd | None, *, has_sandbox: bool) -> str:
    """Pending, Running, Succeeded or Failed; the last two only once the sandbox has ended, as on Kubernetes 1.37."""
    mains = [slot for slot in slots if not slot.init]
    if has_sandbox:
        return "Running" if all(slot.container for slot in mains) else "Pending"
    return "Succeeded" if end is None and all(slot.succeeded for slot in mains) else "Failed"


def status_of(pod: Object, slots: Sequence[Slot], end: PodEnd | None, *, has_sandbox: bool) -> Object:
    """The whole `status` of a pod on this node."""
    status: Object = {"startTime": stamp(), **pod["status"]}
    status["conditions"] = [dict(one) for one in status.get("conditions") or ()]
    phase = phase_of(slots, end, has_sandbox=has_sandbox)
    status |= {"phase": phase, "hostIP": ADDRESS, "podIP": ADDRESS}
    if end is not None and phase == "Failed":
        status |= {"reason": end.reason, "message": end.message}
    _set_conditions(status, slots, phase)
    for field, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        statuses = [_container_status(slot, slots) for slot in slots if slot.init is init]
        if statuses:
            status[field] = statuses
    return status


def _set_conditions(status: Object, slots: Sequence[Slot], phase: str) -> None:
    incomplete = [slot.name for slot in slots if slot.init and not slot.succeeded]
    unready = [slot.name for slot in slots if not slot.init and not slot.running]
    reason, message = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, ""), ""
    if unready and not reason:
        reason, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    if incomplete:
        text = f"containers with incomplete status: [{' '.join(incomplete)}]"
        set_condition(status, "Initialized", "False", "ContainersNotInitialized", text)
    else:
        set_condition(status, "Initialized", "True")
    for name in ("Ready", "ContainersReady"):
        set_condition(status, name, "False" if reason else "True", reason, message)


def _container_status(slot: Slot, slots: Sequence[Slot]) -> Object:
    state = {"waiting": waiting_state(slot, slots)} if slot.container is None else _state(slot.container)
    status: Object = {
        "name": slot.name,
        "state": state,
        "lastState": {},
        "ready": slot.succeeded if slot.init else slot.running,
        "restartCount": 0,
        "image": slot.spec["image"],
        "imageID": "",
        "started": slot.running,
    }
    return status if slot.container is None else {**status, "containerID": f"embedded://{slot.container.id}"}


def waiting_state(slot: Slot, slots: Sequence[Slot]) -> Object:
    """The `waiting` state of a container that was not started."""
    initializing = slot.init or any(one.init and not one.succeeded for one in slots)
    reason = slot.reason or ("PodInitializing" if initializing else "ContainerCreating")
    return {"reason": reason} | ({"message": slot.message} if slot.message else {})


def _state(container: Container) -> Object:
    end = container.end
    if end is None:
        return {"running": {"startedAt": stamp(container.began)}}
    terminated: Object = {
        "exitCode": end.code,
        "reason": end.reason,
        "startedAt": stamp(end.began),
        "finishedAt": stamp(end.ended),
        "containerID": f"embedded://{container.id}",
    }
    return {"terminated": terminated | ({"message": end.message} if end.message else {})}
