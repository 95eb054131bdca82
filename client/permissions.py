"""What the worker may not do, before a run finds out: the verbs of deploy/base/rbac.yaml, asked one by one."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from cluster.port import Cluster

NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "jobs.batch": ("create", "get", "list", "watch", "delete"),
    "pods": ("get", "list", "watch", "patch", "delete"),
    "pods/log": ("get",),
    "pods/exec": ("get", "create"),
    "secrets": ("create", "get", "update", "patch", "delete", "deletecollection"),
    "events": ("list",),
    "persistentvolumeclaims": ("create", "get"),
}
"""Verbs by resource, spelt as `Cluster.allowed` takes it."""


async def missing(cluster: Cluster, namespace: str) -> Sequence[str]:
    """What the worker lacks in the namespace of the agents' Jobs, as `watch pods`; empty: nothing.

    Raises:
        ClusterUnavailable, ClusterForbidden: the API server does not say.
    """
    wanted = [(verb, resource) for resource, verbs in NEEDED.items() for verb in verbs]
    granted = await asyncio.gather(*(cluster.allowed(verb, resource, namespace) for verb, resource in wanted))
    return [f"{verb} {resource}" for (verb, resource), allowed in zip(wanted, granted, strict=True) if not allowed]
