"""The documents by which clients find out what this server serves."""

from __future__ import annotations

import platform

from local.cluster.kinds import KINDS, Object, groups, resources

VERSION = "v1.33.0"  # whose behaviour is imitated, where versions differ


def version() -> Object:
    """`/version`, complete: the generated Python client refuses one with fields missing."""
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


def _group(name: str, versions: set[str]) -> Object:
    entries = [{"groupVersion": f"{name}/{one}", "version": one} for one in sorted(versions)]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def document(path: str, host: str) -> Object | None:
    """The discovery document at `path`, if there is one there."""
    parts = path.strip("/").split("/")
    match parts:
        case ["version"]:
            return version()
        case ["api"]:
            address = [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}]
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": address}
        case ["apis"]:
            found = [_group(name, versions) for name, versions in sorted(groups().items())]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
        case ["apis", group] if group in groups():
            return {"kind": "APIGroup", "apiVersion": "v1"} | _group(group, groups()[group])
        case ["api", "v1"]:
            return _resource_list("", "v1")
        case ["apis", group, one] if one in groups().get(group, ()):
            return _resource_list(group, one)
        case ["openapi", "v3"]:
            return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}"} for name in _group_versions()}}
        case ["openapi", "v3", *rest] if "/".join(rest) in _group_versions():
            return _openapi("/".join(rest))
    return None


def _resource_list(group: str, one: str) -> Object:
    name = f"{group}/{one}" if group else one
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources(group, one)}


def _group_versions() -> list[str]:
    return ["api/v1", *(f"apis/{name}/{one}" for name, versions in groups().items() for one in versions)]


def _openapi(name: str) -> Object:
    """Just enough of OpenAPI for kubectl to leave validation to the server."""
    paths: Object = {}
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for kind in KINDS:
        prefix = f"apis/{kind.api_version}" if kind.group else "api/v1"
        if prefix == name:
            place = f"/{prefix}/namespaces/{{namespace}}/{kind.plural}/{{name}}"
            about = {"group": kind.group, "version": kind.version, "kind": kind.name}
            operation = {"parameters": [parameter], "responses": {}, "x-kubernetes-group-version-kind": about}
            paths[place] = {"patch": operation}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": VERSION}, "paths": paths}
