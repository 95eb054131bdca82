"""Checks the worker's Kubernetes permissions at its start: the verbs of deploy/agents/rbac.yaml.

One request lists what the worker may do (SelfSubjectRulesReview). Only what is not in the list is asked one by one
(SelfSubjectAccessReview), which is the authority: a webhook may permit what no list shows. Without a complete list
everything is asked one by one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from agent_runs.kube.port import Cluster

REQUIRED_VERBS: Final[Mapping[str, Sequence[str]]] = {
    "jobs.batch": ("create", "get", "list", "watch", "delete"),
    "pods": ("get", "list", "watch", "patch", "delete"),
    "pods/log": ("get",),
    "pods/exec": ("get", "create"),
    "secrets": ("create", "get", "update", "patch", "delete", "deletecollection"),
    "events": ("list",),
    "persistentvolumeclaims": ("create", "get"),
}
"""By resource, in the spelling of `Cluster.allowed`."""


async def missing_permissions(cluster: Cluster, namespace: str) -> Sequence[str]:
    """The permissions that the worker lacks in the namespace of the Jobs, such as `watch pods`.

    Raises:
        ClusterUnavailable, ClusterForbidden: the API server does not answer the question.
    """
    rules = await cluster.rules(namespace) or ()
    required = [(verb, resource) for resource, verbs in REQUIRED_VERBS.items() for verb in verbs]
    unlisted = [each for each in required if not any(rule.permits(*each) for rule in rules)]
    answers = await asyncio.gather(*(cluster.allowed(verb, resource, namespace) for verb, resource in unlisted))
    return [f"{verb} {resource}" for (verb, resource), allowed in zip(unlisted, answers, strict=True) if not allowed]
