"""The documents by which kubectl and the Python client find out what is served."""

from __future__ import annotations

import platform

from dev_stack.cluster.kinds import KINDS, Object

VERSION = "v1.33.0"
"""Whose behaviour is imitated where versions differ."""
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def document(path: str) -> Object | None:
    """The discovery document at `path`, if there is one there."""
    match path.strip("/").split("/"):
        case ["version"]:
            return _version()
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            version = {"groupVersion": "batch/v1", "version": "v1"}
            batch = {"name": "batch", "versions": [version], "preferredVersion": version}
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [batch]}
        case ["api", "v1"]:
            return _resources("", "v1")
        case ["apis", "batch", "v1"]:
            return _resources("batch", "batch/v1")
    return None


def _version() -> Object:
    """Complete: the generated Python client refuses one with fields missing."""
    return {
        "major": "1",
        "minor": "33",
        "gitVersion": f"{VERSION}+embedded",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": f"python {platform.python_version()}",
        "platform": f"linux/{platform.machine()}",
    }


def _resources(group: str, version: str) -> Object:
    entries = [
        {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name}
        | {"verbs": _VERBS}
        for kind in KINDS
        if kind.group == group
    ]
    if not group:
        pod = {"singularName": "", "namespaced": True, "kind": "Pod", "verbs": ["get", "create"]}
        entries += [{"name": "pods/log", **pod}, {"name": "pods/exec", **pod}]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries}
