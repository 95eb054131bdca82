"""Pods, Jobs and events as the API server sends them."""

from typing import Any

import msgspec

from agent_runs.kube.objects import Event, Job, Pod, decode

NAME = "agent-opencode-x"
BEGAN = "2026-11-21T23:00:00Z"


def container(name: str = "opencode", *, last: dict[str, Any] | None = None, **state: dict[str, Any]) -> dict[str, Any]:
    """A container status; `state` is waiting=, running= or terminated=."""
    return {"name": name, "state": state, "lastState": last or {}, "restartCount": 0, "containerID": "containerd://1"}


def waiting(reason: str, message: str = "", name: str = "opencode") -> dict[str, Any]:
    return container(name, waiting={"reason": reason, "message": message})


def terminated(code: int | None, reason: str = "Error", name: str = "opencode", message: str = "") -> dict[str, Any]:
    return container(name, terminated={"exitCode": code, "reason": reason, "message": message})


def pod(
    *main: dict[str, Any],
    init: list[dict[str, Any]] | None = None,
    phase: str = "Pending",
    node: str = "node-1",
    condition: dict[str, Any] | None = None,
    deleted: str | None = None,
    **status: Any,
) -> Pod:
    """A pod on a node unless `node` is empty; `condition` is one besides PodScheduled."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": BEGAN}
    conditions = ([scheduled] if node else []) + ([condition] if condition else [])
    body = {
        "metadata": {"name": f"{NAME}-1", "uid": "pod-uid", "creationTimestamp": BEGAN, "deletionTimestamp": deleted},
        "spec": {"nodeName": node},
        "status": {
            "phase": phase,
            "conditions": conditions,
            "initContainerStatuses": init or [],
            "containerStatuses": list(main),
            **status,
        },
    }
    return decode(msgspec.json.encode(body), Pod)


def unschedulable(message: str) -> Pod:
    return pod(
        node="", condition={"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    )


def job(
    condition: str | None = None,
    reason: str = "",
    message: str = "",
    *,
    deleted: str | None = None,
    suspend: bool = False,
    labels: dict[str, str] | None = None,
) -> Job:
    conditions = [{"type": condition, "status": "True", "reason": reason, "message": message}] if condition else []
    meta: dict[str, Any] = {"name": NAME, "uid": "job-uid", "creationTimestamp": BEGAN, "deletionTimestamp": deleted}
    body = {"metadata": {**meta, "labels": labels or {}}, "spec": {"suspend": suspend}}
    return decode(msgspec.json.encode({**body, "status": {"conditions": conditions}}), Job)


def event(reason: str, message: str, uid: str = "pod-uid", when: str = BEGAN) -> Event:
    body = {"reason": reason, "message": message, "involvedObject": {"uid": uid}, "lastTimestamp": when}
    return decode(msgspec.json.encode(body), Event)
