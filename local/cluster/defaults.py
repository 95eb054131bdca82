"""What the API server fills in when an object is created."""

from __future__ import annotations

import base64

from local.cluster.kinds import CLAIMS, JOBS, NAMESPACES, PODS, SECRETS, Kind, Object
from local.cluster.objects import containers


def fill_in(kind: Kind, body: Object) -> None:
    """Complete a new object in place; its metadata already has a uid to come, its status is the server's."""
    if kind is PODS:
        fill_in_pod_spec(body["spec"], restart="Always")
        body["status"] = {"phase": "Pending", "qosClass": _quality(body["spec"])}
    elif kind is JOBS:
        _fill_in_job(body)
    elif kind is SECRETS:
        body.setdefault("type", "Opaque")
        encode_strings(body)
    elif kind is NAMESPACES:
        body["spec"] = {"finalizers": ["kubernetes"]}
        body["status"] = {"phase": "Active"}
        body["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = body["metadata"]["name"]
    elif kind is CLAIMS:
        body["spec"].setdefault("volumeMode", "Filesystem")
        body["status"] = {"phase": "Pending"}


def encode_strings(secret: Object) -> None:
    """`stringData` is for writing only: it goes into `data`, in base64."""
    for key, text in (secret.pop("stringData", None) or {}).items():
        secret.setdefault("data", {})
        secret["data"][key] = base64.b64encode(str(text).encode()).decode()


def _fill_in_job(job: Object) -> None:
    spec, template = job["spec"], job["spec"]["template"]
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    job["status"] = {}
    fill_in_pod_spec(template["spec"], restart=None)


def select_own_pods(job: Object) -> None:
    """Give a Job the selector and pod labels made of its own uid."""
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    spec = job["spec"]
    if spec.get("manualSelector"):
        return
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {}) or {}
    spec["template"]["metadata"]["labels"] = labels
    labels |= {"controller-uid": uid, "job-name": name}
    labels |= {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}


def fill_in_pod_spec(spec: Object, restart: str | None) -> None:
    """Defaults of a pod spec, in a Pod or in a template."""
    if restart is not None:
        spec.setdefault("restartPolicy", restart)
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for _, container in containers(spec):
        tag = str(container.get("image", "")).rpartition("/")[2].partition(":")[2]
        container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("resources", {})
        for variable in container.get("env") or ():
            field = (variable.get("valueFrom") or {}).get("fieldRef")
            if field:
                field.setdefault("apiVersion", "v1")
    for volume in spec.get("volumes") or ():
        if not set(volume) - {"name"}:
            volume["emptyDir"] = {}
        for source in ("secret", "configMap", "downwardAPI", "projected"):
            if source in volume:
                volume[source].setdefault("defaultMode", 0o644)
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")


def _quality(spec: Object) -> str:
    resources = [container.get("resources") or {} for _, container in containers(spec)]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    guaranteed = all(
        (one.get("limits") or {}).keys() >= {"cpu", "memory"}
        and (one.get("requests") or one["limits"]) == one["limits"]
        for one in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"
