"""Small facts about API objects: time stamps, names, ownership, conditions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime

from local.cluster.kinds import Kind, Object

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # the alphabet of generated names: no vowels, nothing that reads as a word
_NAME_LIMIT = 63


def stamp(moment: datetime | None = None) -> str:
    """RFC 3339 with whole seconds, as `metav1.Time` is written."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_stamp(text: str) -> datetime:
    """The moment an RFC 3339 stamp names; always with a time zone."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def generated_name(prefix: str) -> str:
    """`prefix` with five random characters, shortened to 63 like the real server does."""
    suffix = "".join(random.choices(_SUFFIX, k=5))  # noqa: S311 - a name, not a secret
    return prefix[: _NAME_LIMIT - 5] + suffix


def reference(kind: Kind, body: Object) -> Object:
    """A controlling owner reference to `body`."""
    meta = body["metadata"]
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_uid(body: Object) -> str | None:
    """The uid of the owner that controls `body`."""
    for owner in body["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def deleting(body: Object) -> bool:
    """Whether deletion has begun."""
    return "deletionTimestamp" in body["metadata"]


def condition(body: Object, name: str) -> Object | None:
    """The named condition of an object's status."""
    for one in body.get("status", {}).get("conditions") or ():
        if one["type"] == name:
            return dict(one)
    return None


def set_condition(status: Object, name: str, value: str, reason: str = "", message: str = "") -> None:
    """Add or change a condition; its transition time moves only when its value does."""
    conditions = status.setdefault("conditions", [])
    fresh: Object = {"type": name, "status": value, "lastProbeTime": None, "lastTransitionTime": stamp()}
    if reason:
        fresh["reason"] = reason
    if message:
        fresh["message"] = message
    for index, old in enumerate(conditions):
        if old["type"] == name:
            if old["status"] == value:
                fresh["lastTransitionTime"] = old["lastTransitionTime"]
            conditions[index] = fresh
            return
    conditions.append(fresh)


def finished(job: Object) -> bool:
    """Whether a Job has a Complete or Failed condition."""
    return any((condition(job, name) or {}).get("status") == "True" for name in ("Complete", "Failed"))


def containers(pod_spec: Object) -> Iterator[tuple[str, Object]]:
    """Every container of a pod spec with the list it is in, init containers first."""
    for group in ("initContainers", "containers"):
        for one in pod_spec.get(group) or ():
            yield group, one
