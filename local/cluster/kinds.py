"""The kinds of object this cluster knows, as its discovery documents describe them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One resource of the API: where it lives and what may be selected or shown of it."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """`v1`, `batch/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`pods`, `jobs.batch`: how error messages name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """`Pod`, `Job.batch`: how validation messages name the kind."""
        return f"{self.name}.{self.group}" if self.group else self.name


_EVENT_FIELDS = (
    *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")),
    "involvedObject.resourceVersion",
    "reason",
    "type",
    "reportingComponent",
    "source",
)

NAMESPACES = Kind("", "v1", "namespaces", "Namespace", False, ("ns",), ("status",), ("status.phase",))
NODES = Kind("", "v1", "nodes", "Node", False, ("no",), ("status",), ("spec.unschedulable",))
PODS = Kind(
    "",
    "v1",
    "pods",
    "Pod",
    short=("po",),
    subresources=("exec", "log", "status"),
    fields=("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"),
    categories=("all",),
)
SECRETS = Kind("", "v1", "secrets", "Secret", fields=("type",))
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap", short=("cm",))
EVENTS = Kind("", "v1", "events", "Event", short=("ev",), fields=_EVENT_FIELDS)
CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",), subresources=("status",))
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",))
JOBS = Kind(
    "batch",
    "v1",
    "jobs",
    "Job",
    subresources=("status",),
    fields=("status.successful",),
    categories=("all",),
)
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")

KINDS = (NAMESPACES, NODES, PODS, SECRETS, CONFIG_MAPS, EVENTS, CLAIMS, SERVICE_ACCOUNTS, JOBS, LEASES)
BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
_PART_VERBS = {"exec": ["create", "get"], "log": ["get"]}
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]

# Reviews are answered, never stored: group, version, plural, kind.
REVIEWS = (
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    ("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    ("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview"),
)


def groups() -> dict[str, set[str]]:
    """Every API group besides the core one, with its versions."""
    found: dict[str, set[str]] = {}
    for kind in KINDS:
        if kind.group:
            found.setdefault(kind.group, set()).add(kind.version)
    for group, version, _, _ in REVIEWS:
        found.setdefault(group, set()).add(version)
    return found


def resources(group: str, version: str) -> list[Object]:
    """The `APIResource` entries of one group and version; empty if there is no such group."""
    entries: list[Object] = []
    for kind in KINDS:
        if (kind.group, kind.version) != (group, version):
            continue
        entry = {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced}
        entry |= {"kind": kind.name, "verbs": VERBS}
        if kind.short:
            entry["shortNames"] = list(kind.short)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        entries.append(entry)
        entries.extend(
            {
                "name": f"{kind.plural}/{subresource}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.name,
                "verbs": _PART_VERBS.get(subresource, ["get", "patch", "update"]),
            }
            for subresource in kind.subresources
        )
    entries.extend(
        {"name": plural, "singularName": name.lower(), "namespaced": False, "kind": name, "verbs": ["create"]}
        for review_group, review_version, plural, name in REVIEWS
        if (review_group, review_version) == (group, version)
    )
    return entries
