"""Creation, replacement and patches of objects, with everything that is checked about them."""

from __future__ import annotations

import base64
import copy
import json
import uuid
from typing import Any

from dev_stack.cluster.errors import ApiError, FieldErrors, already_exists, bad_request, conflict, not_found
from dev_stack.cluster.kinds import CLAIMS, JOBS, NAMESPACES, PODS, SECRETS, Kind, Object
from dev_stack.cluster.objects import generated_name, stamp
from dev_stack.cluster.requests import Target
from dev_stack.cluster.store import Store
from dev_stack.cluster.validation import check, check_change

_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion")
_OLD_VERSION = "the object has been modified; please apply your changes to the latest version and try again"


def read_body(kind: Kind, raw: bytes) -> Object:
    """Decode an object and see that it is of the kind the path names; 400 otherwise."""
    body = read_json(raw)
    if not isinstance(body, dict) or not isinstance(body.setdefault("metadata", {}), dict):
        raise bad_request("error decoding request body: an object with metadata is needed")
    found = (body.setdefault("apiVersion", kind.api_version), body.setdefault("kind", kind.name))
    if found != (kind.api_version, kind.name):
        raise bad_request(f"the data is of {found}, which is not the expected {kind.api_version}, {kind.name}")
    if kind in (PODS, JOBS):
        body.setdefault("spec", {})
    return body


def read_json(raw: bytes) -> Any:
    """Decode a body; 400 when it is no JSON."""
    try:
        return json.loads(raw)
    except ValueError as error:
        raise bad_request(f"error decoding request body: {error}") from None


def create(store: Store, target: Target, body: Object, *, stored: bool = True) -> Object:
    """Store a new object; 409 if its name is taken, 422 if it breaks a rule.

    Args:
        stored: False for a dry run, which judges the same and keeps nothing.
    """
    kind, meta = target.kind, body["metadata"]
    for field in _SERVER_OWNED:
        meta.pop(field, None)
    if kind.namespaced:
        namespace = meta.setdefault("namespace", target.namespace)
        if namespace != target.namespace:
            raise bad_request("the namespace of the object does not match the namespace of the request")
        if store.find(NAMESPACES, "", namespace) is None:
            raise not_found(NAMESPACES, namespace)
    if not meta.get("name") and isinstance(prefix := meta.get("generateName"), str):
        meta["name"] = generated_name(prefix)
    check(kind, _encoded(kind, body))
    meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
    _fill_in(kind, body)
    if stored:
        return store.add(kind, body)
    if store.find(kind, meta.get("namespace", ""), meta["name"]) is not None:
        raise already_exists(kind, meta["name"])
    return body


def replace(store: Store, target: Target, body: Object, before: Object) -> Object:
    """Store a changed object, its status apart; 409 when it was made from an old version, 422 for forbidden changes."""
    kind, meta, old = target.kind, body["metadata"], before["metadata"]
    if meta.get("name", target.name) != target.name:
        raise bad_request("the name of the object does not match the name on the URL")
    if meta.get("resourceVersion") not in (None, "", old["resourceVersion"]):
        raise conflict(kind, target.name, _OLD_VERSION)
    if meta.get("uid") not in (None, old["uid"]):
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old['uid']}"
        raise conflict(kind, target.name, why)
    for field in (*_SERVER_OWNED, "name", "namespace", "generateName"):
        meta.pop(field, None)
        if field in old:
            meta[field] = old[field]
    check_change(kind, _encoded(kind, body), before)
    if "status" in before:
        body["status"] = before["status"]
    return store.replace(kind, body)


def _encoded(kind: Kind, body: Object) -> Object:
    if kind is SECRETS and isinstance(body.get("stringData", {}), dict):
        try:
            _encode_strings(body)
        except AttributeError:
            raise bad_request(
                "Secret in version v1 cannot be handled: stringData has a value that is no text"
            ) from None
    return body


def _encode_strings(secret: Object) -> None:
    """`stringData` is for writing only: it goes into `data`, in base64."""
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in secret.pop("stringData", {}).items()}
    if encoded:
        secret["data"] = {**(secret.get("data") or {}), **encoded}


def _fill_in(kind: Kind, body: Object) -> None:
    """Complete a new object in place, as the API server does; its metadata already has its uid."""
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


def patched(kind: Kind, before: Object, raw: bytes, content_type: str) -> Object:
    """The object with a JSON patch or a merge patch applied; 415 for any other type of patch.

    Another name or uid in a patch is 422, while in a replacement it is 400 and 409.
    """
    patch, body = read_json(raw), copy.deepcopy(before)
    if content_type == "application/merge-patch+json":
        import json_merge_patch  # noqa: PLC0415 - no part of the cluster's start

        body = json_merge_patch.merge(body, patch)
    elif content_type == "application/json-patch+json":
        body = _json_patched(body, patch)
    else:
        message = f"the body of the request was in an unknown format: {content_type}"
        raise ApiError(415, "UnsupportedMediaType", message)
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise bad_request("error applying the patch: the result is no object with metadata")
    errors = FieldErrors(kind, before["metadata"]["name"])
    for field in ("name", "uid"):
        if body["metadata"].get(field) != before["metadata"][field]:
            errors.invalid(f"metadata.{field}", body["metadata"].get(field), "field is immutable")
    errors.raise_if_any()
    return body


def _json_patched(body: Object, patch: Any) -> Any:
    import jsonpatch  # noqa: PLC0415 - no part of the cluster's start

    try:
        return jsonpatch.apply_patch(body, patch)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError, KeyError) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise ApiError(422, "Invalid", message) from None
