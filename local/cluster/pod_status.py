"""What the kubelet publishes about a pod: a pure function of what its containers are doing."""

from __future__ import annotations

from dataclasses import dataclass

from local.cluster.instances import Instance
from local.cluster.kinds import Object
from local.cluster.objects import set_condition, stamp


@dataclass
class Slot:
    """One container of a pod: what it waits for, its current run and the one before."""

    spec: Object
    init: bool
    waiting: str = ""  # reason
    waiting_message: str = ""
    current: Instance | None = None
    previous: Instance | None = None
    final: bool = False  # nothing more will happen here

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    @property
    def running(self) -> bool:
        """Whether a process runs now."""
        return self.current is not None and not self.current.finished.is_set()

    @property
    def exit_code(self) -> int | None:
        """Of the current run, once it has ended."""
        return self.current.end.code if self.current and self.current.end else None

    @property
    def shown(self) -> Instance | None:
        """The run that `state` tells of; none while it waits."""
        return None if self.waiting else self.current

    @property
    def last(self) -> Instance | None:
        """The run that `lastState` tells of."""
        return self.current if self.waiting else self.previous


@dataclass(frozen=True)
class Verdict:
    """Why the node ended a pod."""

    reason: str
    message: str


def phase_of(slots: list[Slot], verdict: Verdict | None) -> str:
    """Pending, Running, Succeeded or Failed."""
    inits, mains = [slot for slot in slots if slot.init], [slot for slot in slots if not slot.init]
    if all(slot.final for slot in mains):
        clean = verdict is None and all(slot.exit_code == 0 for slot in mains)
        return "Succeeded" if clean else "Failed"
    if any(slot.final and slot.exit_code != 0 for slot in inits):
        return "Failed"
    begun = [slot for slot in mains if slot.current is not None]
    return "Running" if len(begun) == len(mains) and begun else "Pending"


def status_of(pod: Object, slots: list[Slot], verdict: Verdict | None, address: str) -> Object:
    """The whole `status` of a pod on this node."""
    status: Object = {**pod.get("status", {})}
    status["conditions"] = [dict(one) for one in status.get("conditions") or ()]
    phase = phase_of(slots, verdict)
    status |= {"phase": phase, "hostIP": address, "hostIPs": [{"ip": address}]}
    if any(slot.current for slot in slots):
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    status.setdefault("startTime", stamp())
    if verdict is not None and phase == "Failed":
        status |= {"reason": verdict.reason, "message": verdict.message}
    _set_conditions(status, slots, phase)
    for field, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        told = [_container_status(slot, slots) for slot in slots if slot.init is init]
        if told:
            status[field] = told
    return status


def _set_conditions(status: Object, slots: list[Slot], phase: str) -> None:
    inits, mains = [slot for slot in slots if slot.init], [slot for slot in slots if not slot.init]
    undone = [slot.name for slot in inits if slot.exit_code != 0]
    unready = [slot.name for slot in mains if not (slot.running and not slot.waiting)]
    why, about = "", ""
    if phase == "Succeeded":
        why = "PodCompleted"
    elif phase == "Failed":
        why = "PodFailed"
    elif unready:
        why, about = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    ready = "False" if why else "True"
    if undone:
        message = f"containers with incomplete status: [{' '.join(undone)}]"
        set_condition(status, "Initialized", "False", "ContainersNotInitialized", message)
    else:
        set_condition(status, "Initialized", "True", "PodCompleted" if phase == "Succeeded" else "")
    set_condition(status, "Ready", ready, why, about)
    set_condition(status, "ContainersReady", ready, why, about)


def _container_status(slot: Slot, slots: list[Slot]) -> Object:
    image = slot.spec["image"]
    shown, last = slot.shown, slot.last
    state = _state(shown) if shown else {"waiting": waiting_state(slot, slots)}
    status: Object = {
        "name": slot.name,
        "state": state,
        "lastState": _state(last) if last and last.end else {},
        "ready": ("running" in state) if not slot.init else (slot.exit_code == 0),
        "restartCount": slot.current.number if slot.current else 0,
        "image": image,
        "imageID": f"embedded://{image}" if slot.current else "",
        "started": "running" in state,
    }
    known = slot.current
    if known is not None:
        status["containerID"] = f"embedded://{known.id}"
    return status


def waiting_state(slot: Slot, slots: list[Slot]) -> Object:
    """The `waiting` state of a container that has no run."""
    reason = slot.waiting
    if not reason:
        pending = any(one.init and one.exit_code != 0 for one in slots)
        reason = "PodInitializing" if slot.init or pending else "ContainerCreating"
        if slot.init and not any(one.current for one in slots):
            reason = "PodInitializing"
    return {"reason": reason} | ({"message": slot.waiting_message} if slot.waiting_message else {})


def _state(instance: Instance) -> Object:
    if instance.end is None:
        return {"running": {"startedAt": stamp(instance.began)}}
    end = instance.end
    terminated: Object = {
        "exitCode": end.code,
        "reason": end.reason,
        "startedAt": stamp(end.began),
        "finishedAt": stamp(end.ended),
        "containerID": f"embedded://{instance.id}",
    }
    if end.message:
        terminated["message"] = end.message
    return {"terminated": terminated}
