"""Small functions on API objects: time stamps, names, owners, conditions."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from dev_stack.cluster.kinds import Object

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # the alphabet of generated names: no vowels, nothing that reads as a word
_NAME_LIMIT = 63


def stamp(moment: datetime | None = None) -> str:
    """RFC 3339 with whole seconds, as `metav1.Time` is written; by default of now."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_stamp(text: str) -> datetime:
    """The moment of an RFC 3339 stamp; always with a time zone."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def generated_name(prefix: str) -> str:
    """`prefix` with five random characters, shortened to 63 like the real server does."""
    suffix = "".join(random.choices(_SUFFIX, k=5))  # noqa: S311 - a name, not a secret
    return prefix[: _NAME_LIMIT - 5] + suffix


def owner_uids(body: Object) -> set[str]:
    return {owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()}


def deleting(body: Object) -> bool:
    return "deletionTimestamp" in body["metadata"]


def ended(pod: Object) -> bool:
    """Whether a pod's containers have all ended for good."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def condition(body: Object, name: str) -> Object:
    """The named condition of an object's status; empty when there is none."""
    conditions = body.get("status", {}).get("conditions") or ()
    return next((dict(one) for one in conditions if one["type"] == name), {})


def holds(body: Object, name: str) -> bool:
    """Whether the named condition is True."""
    return condition(body, name).get("status") == "True"


def set_condition(status: Object, name: str, value: str, reason: str = "", message: str = "") -> None:
    """Add or change a condition; its transition time changes only when its value does."""
    conditions = status.setdefault("conditions", [])
    old = next((one for one in conditions if one["type"] == name), None)
    since = old["lastTransitionTime"] if old is not None and old["status"] == value else stamp()
    new = {"type": name, "status": value, "lastProbeTime": None, "lastTransitionTime": since}
    new |= {key: text for key, text in (("reason", reason), ("message", message)) if text}
    if old is None:
        conditions.append(new)
    else:
        conditions[conditions.index(old)] = new
