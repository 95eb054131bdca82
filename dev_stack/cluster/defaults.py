"""What the API server fills in when an object is created."""

from __future__ import annotations

import base64

from dev_stack.cluster.kinds import CLAIMS, JOBS, NAMESPACES, PODS, SECRETS, Kind, Object


def fill_in(kind: Kind, body: Object) -> None:
    """Complete a new object in place; its metadata already has its uid."""
    if kind is PODS:
        _fill_in_pod_spec(body["spec"])
        body["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    elif kind is JOBS:
        _fill_in_job(body)
    elif kind is SECRETS:
        body.setdefault("type", "Opaque")
    elif kind is NAMESPACES:
        body["spec"] = {"finalizers": ["kubernetes"]}
        body["status"] = {"phase": "Active"}
    elif kind is CLAIMS:
        body["spec"].setdefault("volumeMode", "Filesystem")
        body["status"] = {"phase": "Pending"}


def encode_strings(secret: Object) -> None:
    """`stringData` is for writing only: it goes into `data`, in base64."""
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in secret.pop("stringData", {}).items()}
    if encoded:
        secret["data"] = {**(secret.get("data") or {}), **encoded}


def _fill_in_job(job: Object) -> None:
    """Also the selector and the pod labels that are made of the Job's own name and uid."""
    spec, uid, name = job["spec"], job["metadata"]["uid"], job["metadata"]["name"]
    defaults = {"completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False}
    job["spec"] = spec = defaults | spec
    job["status"] = {}
    meta = spec["template"].setdefault("metadata", {})
    own = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name}
    meta["labels"] = {**(meta.get("labels") or {}), "controller-uid": uid, "job-name": name, **own}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    _fill_in_pod_spec(spec["template"]["spec"])


def _fill_in_pod_spec(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        tag = container["image"].rpartition("/")[2].partition(":")[2]
        container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")
    for volume in spec.get("volumes") or ():
        if not set(volume) - {"name"}:
            volume["emptyDir"] = {}
        if "secret" in volume:
            volume["secret"].setdefault("defaultMode", 0o644)
