"""The rows `kubectl get` prints: `Table` answers for the kinds people look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from local.cluster.kinds import CLAIMS, CONFIG_MAPS, EVENTS, JOBS, NAMESPACES, NODES, PODS, SECRETS, Kind, Object
from local.cluster.objects import condition, deleting, parse_stamp

Cells = Callable[[Object], list[Any]]


def age(text: str | None) -> str:
    """`5s`, `3m20s`, `2d4h`: as kubectl writes durations."""
    return "<unknown>" if not text else duration(datetime.now(UTC) - parse_stamp(text))


def duration(span: timedelta) -> str:
    """A span as kubectl writes it."""
    seconds = max(0, int(span.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d"


def _pod(pod: Object) -> list[Any]:
    statuses = pod["status"].get("containerStatuses") or []
    ready = sum(one["ready"] for one in statuses)
    restarts = sum(one["restartCount"] for one in statuses)
    return [f"{ready}/{len(pod['spec']['containers'])}", pod_reason(pod), restarts]


def pod_reason(pod: Object) -> str:
    """The STATUS column of a pod."""
    status = pod["status"]
    reason = str(status.get("reason") or status.get("phase", "Unknown"))
    for index, one in enumerate(status.get("initContainerStatuses") or ()):
        state = one["state"]
        if state.get("terminated", {}).get("exitCode") == 0:
            continue
        if "terminated" in state:
            return f"Init:{state['terminated']['reason']}"
        waits = state.get("waiting", {}).get("reason", "PodInitializing")
        return f"Init:{waits}" if waits != "PodInitializing" else f"Init:{index}/{len(pod['spec']['initContainers'])}"
    for one in reversed(status.get("containerStatuses") or []):
        state = one["state"]
        found = state.get("waiting", {}).get("reason") or state.get("terminated", {}).get("reason")
        reason = found or reason
    return "Terminating" if deleting(pod) else reason


def _job(job: Object) -> list[Any]:
    status, spec = job["status"], job["spec"]
    state = "Running"
    for name in ("Complete", "Failed", "Suspended"):
        if (condition(job, name) or {}).get("status") == "True":
            state = name
    span = ""
    if "startTime" in status:
        end = parse_stamp(status["completionTime"]) if "completionTime" in status else datetime.now(UTC)
        span = duration(end - parse_stamp(status["startTime"]))
    return [state, f"{status.get('succeeded', 0)}/{spec.get('completions') or 1}", span]


def _event(event: Object) -> list[Any]:
    about = event["involvedObject"]
    place = f"{about['kind'].lower()}/{about['name']}"
    return [age(event.get("lastTimestamp")), event["type"], event["reason"], place, event["message"]]


def _node(node: Object) -> list[Any]:
    ready = (condition(node, "Ready") or {}).get("status") == "True"
    return ["Ready" if ready else "NotReady", "<none>", node["status"]["nodeInfo"]["kubeletVersion"]]


def _claim(claim: Object) -> list[Any]:
    status, spec = claim["status"], claim["spec"]
    modes = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
    access = ",".join(str(modes.get(mode, mode)) for mode in status.get("accessModes") or ())
    storage = status.get("capacity", {}).get("storage", "")
    return [status["phase"], spec.get("volumeName", ""), storage, access, spec.get("storageClassName", "")]


_COLUMNS: dict[Kind, tuple[tuple[str, ...], Cells]] = {
    PODS: (("Ready", "Status", "Restarts"), _pod),
    JOBS: (("Status", "Completions", "Duration"), _job),
    EVENTS: (("Last Seen", "Type", "Reason", "Object", "Message"), _event),
    NODES: (("Status", "Roles", "Version"), _node),
    CLAIMS: (("Status", "Volume", "Capacity", "Access Modes", "StorageClass"), _claim),
    NAMESPACES: (("Status",), lambda body: [body["status"]["phase"]]),
    SECRETS: (("Type", "Data"), lambda body: [body["type"], len(body.get("data") or {})]),
    CONFIG_MAPS: (("Data",), lambda body: [len(body.get("data") or {})]),
}


def table(kind: Kind, bodies: Iterable[Object], metadata: Object, include: str) -> Object:
    """A `meta.k8s.io/v1` Table; `include` is the query's includeObject: Metadata, Object or None."""
    names, cells = _COLUMNS.get(kind, ((), lambda _: []))
    heads = list(names) if kind is EVENTS else ["Name", *names, "Age"]
    rows = []
    for body in bodies:
        row = cells(body)
        if kind is not EVENTS:
            row = [body["metadata"]["name"], *row, age(body["metadata"].get("creationTimestamp"))]
        rows.append({"cells": row, "object": _included(body, include)})
    columns = [
        {
            "name": head,
            "type": "integer" if head == "Restarts" else "string",
            "format": "name" if head == "Name" else "",
            "description": head,
            "priority": 0,
        }
        for head in heads
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    }


def _included(body: Object, include: str) -> Object | None:
    if include == "None":
        return None
    if include == "Object":
        return body
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}
