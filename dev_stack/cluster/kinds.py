"""The kinds of object this cluster knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One resource of the API: its path, its names, and the fields besides the name that field selectors may use."""

    plural: str
    name: str
    group: str = ""
    namespaced: bool = True
    fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """`v1`, `batch/v1`."""
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def qualified(self) -> str:
        """`pods`, `jobs.batch`: how error messages name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """`Pod`, `Job.batch`: how validation messages name the kind."""
        return f"{self.name}.{self.group}" if self.group else self.name


NAMESPACES = Kind("namespaces", "Namespace", namespaced=False)
NODES = Kind("nodes", "Node", namespaced=False)
PODS = Kind("pods", "Pod", fields=("spec.nodeName", "status.phase"))
SECRETS = Kind("secrets", "Secret")
CONFIG_MAPS = Kind("configmaps", "ConfigMap")
CLAIMS = Kind("persistentvolumeclaims", "PersistentVolumeClaim")
JOBS = Kind("jobs", "Job", group="batch")
DEPLOYMENTS = Kind("deployments", "Deployment", group="apps")
"""Stored and listed; nothing makes pods of them."""
EVENTS = Kind(
    "events",
    "Event",
    fields=("involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason", "type"),
)

KINDS = (NAMESPACES, NODES, PODS, SECRETS, CONFIG_MAPS, CLAIMS, JOBS, DEPLOYMENTS, EVENTS)
BY_PATH = {(kind.group, kind.plural): kind for kind in KINDS}
