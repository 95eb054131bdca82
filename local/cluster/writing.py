"""What writing to the API does to objects: creation, replacement and patches, with everything that is checked."""

from __future__ import annotations

import copy
import json
import uuid
from typing import Any

from local.cluster.defaults import encode_strings, fill_in, select_own_pods
from local.cluster.kinds import JOBS, NAMESPACES, PODS, SECRETS, Kind, Object
from local.cluster.objects import deleting, generated_name, stamp
from local.cluster.patches import json_patch, merge, strategic_merge
from local.cluster.refusals import Problems, Refused, bad_request, conflict, not_found
from local.cluster.requests import Target
from local.cluster.store import Store
from local.cluster.validation import check, check_change, check_shape

_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
)
_ATTEMPTS = 5  # at another generated name


def read_body(kind: Kind, raw: bytes) -> Object:
    """Decode an object and see that it is of the kind the path names; 400 otherwise."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise bad_request(f"error decoding request body: {error}") from None
    if not isinstance(body, dict):
        raise bad_request("error decoding request body: an object is needed")
    given = (body.setdefault("apiVersion", kind.api_version), body.setdefault("kind", kind.name))
    if given != (kind.api_version, kind.name):
        message = f"the API version in the data ({given[0]}, Kind={given[1]}) does not match the expected API version"
        raise bad_request(f"{message} ({kind.api_version}, Kind={kind.name})")
    body.setdefault("metadata", {})
    check_shape(body)
    return body


def create(store: Store, target: Target, body: Object, *, dry_run: bool = False) -> Object:
    """Store a new object; 409 if its name is taken, 422 if it breaks a rule."""
    kind, meta = target.kind, body["metadata"]
    for field in (*_SERVER_OWNED, "resourceVersion", "selfLink"):
        meta.pop(field, None)
    _settle_namespace(store, target, meta)
    prefix = meta.get("generateName", "")
    generated = bool(prefix) and not meta.get("name")
    for attempt in range(_ATTEMPTS):
        if generated:
            meta["name"] = generated_name(prefix)
        fresh = copy.deepcopy(body)
        try:
            return _store_new(store, kind, fresh, dry_run=dry_run)
        except Refused as refusal:
            if not generated or refusal.reason != "AlreadyExists" or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")  # the loop returns or raises


def _settle_namespace(store: Store, target: Target, meta: Object) -> None:
    if not target.kind.namespaced:
        meta.pop("namespace", None)
        return
    namespace = meta.setdefault("namespace", target.namespace)
    if namespace != target.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    home = store.find(NAMESPACES, "", namespace)
    if home is None:
        raise not_found(NAMESPACES, namespace)
    if deleting(home):
        name = meta.get("name", "")
        message = (
            f'{target.kind.qualified} "{name}" is forbidden: unable to create new content in namespace {namespace} '
        )
        raise Refused(403, "Forbidden", message + "because it is being terminated", name=name, kind=target.kind.plural)


def _store_new(store: Store, kind: Kind, body: Object, *, dry_run: bool) -> Object:
    meta = body["metadata"]
    meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
    try:
        fill_in(kind, body)
        if kind is JOBS:
            select_own_pods(body)
    except (KeyError, TypeError, AttributeError):
        check(kind, body)  # names what is missing
        raise bad_request("error decoding request body: the object's shape is not the kind's") from None
    check(kind, body)
    if kind in (PODS, JOBS):
        meta["generation"] = 1
    if dry_run and store.find(kind, meta.get("namespace", ""), meta["name"]) is None:
        return body
    return store.add(kind, body)


def replace(store: Store, target: Target, body: Object, before: Object) -> Object:
    """Store a changed object; 409 when it was made from an old version, 422 for forbidden changes.

    Writing to the object leaves its status alone, writing to the status leaves all else alone.
    """
    kind, meta, old = target.kind, body["metadata"], before["metadata"]
    if meta.get("resourceVersion") not in (None, "", old["resourceVersion"]):
        raise conflict(kind, target.name)
    if meta.get("uid") not in (None, old["uid"]):
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old['uid']}"
        raise conflict(kind, target.name, why)
    for field in (*_SERVER_OWNED, "resourceVersion", "name", "namespace", "generateName"):
        meta.pop(field, None)
        if field in old:
            meta[field] = old[field]
    if target.subresource == "status":
        return store.replace(kind, {**before, "metadata": meta, "status": body.get("status", {})})
    if "status" in kind.subresources:
        body["status"] = before.get("status", {})
    if kind is SECRETS:
        encode_strings(body)
    if deleting(before):
        _refuse_new_finalizers(kind, body, before)
    check_change(kind, body, before)
    if "generation" in old and body.get("spec") != before.get("spec"):
        meta["generation"] = old["generation"] + 1
    return store.replace(kind, body)


def _refuse_new_finalizers(kind: Kind, body: Object, before: Object) -> None:
    known = set(before["metadata"].get("finalizers") or ())
    added = [one for one in body["metadata"].get("finalizers") or () if one not in known]
    if added:
        name = before["metadata"]["name"]
        message = (
            f'{kind.qualified_kind} "{name}" is invalid: metadata.finalizers: Forbidden: no new finalizers can be '
        )
        raise Refused(422, "Invalid", f"{message}added if the object is being deleted, found new finalizers {added}")


def patched(kind: Kind, body: Object, raw: bytes, content_type: str) -> Object:
    """The object with a patch applied; 415 for a type of patch that is not known.

    Another uid in a patch is 422, while in a replacement it is 409.
    """
    try:
        patch: Any = json.loads(raw)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {error}") from None
    base = copy.deepcopy(body)
    if content_type == "application/json-patch+json":
        result: Any = json_patch(base, patch)
    elif content_type == "application/merge-patch+json":
        result = merge(base, patch)
    elif content_type in ("application/strategic-merge-patch+json", "application/apply-patch+yaml"):
        result = strategic_merge(base, patch)
    else:
        message = f"the body of the request was in an unknown format: {content_type}"
        raise Refused(415, "UnsupportedMediaType", message)
    result = copy.deepcopy(result)
    check_shape(result)
    problems = Problems(kind, body["metadata"]["name"])
    for field in ("name", "uid"):
        if result["metadata"].get(field) != body["metadata"][field]:
            problems.invalid(f"metadata.{field}", result["metadata"].get(field), "field is immutable")
    problems.raise_if_any()
    return dict(result)
