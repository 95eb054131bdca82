"""What the worker must be permitted to do: the verbs of the Roles in deploy/, each asked by a SelfSubjectAccessReview.

No list that the API server could make of them is the authority: a webhook may permit or deny what it does not show.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from agent_runs.contracts.start import Finding
from agent_runs.kube.client import Cluster

Verbs = Mapping[str, Sequence[str]]
"""By resource, in the spelling of `Cluster.allowed`."""

REQUIRED_VERBS: Final[Verbs] = {
    "jobs.batch": ("create", "get", "list", "watch", "patch", "delete"),
    "pods": ("get", "list", "watch", "patch", "delete"),
    "pods/log": ("get",),
    "pods/exec": ("get", "create"),
    "secrets": ("create", "get", "update", "patch", "delete", "deletecollection"),
    "events": ("list",),
    "persistentvolumeclaims": ("create", "get"),
}
"""In the namespace of the Jobs."""
CHECK_VERBS: Final[Verbs] = {"pods": ("create",)}
"""In the namespace of the Jobs, for a check alone: it tries the pod that the Job's controller would create."""
OWN_VERBS: Final[Verbs] = {"pods": ("get",)}
"""In the worker's own namespace."""
DEPLOYMENT_VERBS: Final[Verbs] = {"deployments.apps": ("list",)}
"""In the namespace of Paperclip's Deployment, if agents inherit from it."""


class Grant(NamedTuple):
    """What the worker needs in a namespace, and the file of deploy/ whose Role grants it."""

    namespace: str
    verbs: Verbs
    file: str


def needed_grants(cluster: Cluster, namespace: str, deployment_namespace: str | None) -> Sequence[Grant]:
    """What the worker needs for agents.

    Args:
        namespace: of the agents' Jobs.
        deployment_namespace: of Paperclip's Deployment; None: agents inherit from the worker's own pod.
    """
    grants = [Grant(namespace, REQUIRED_VERBS, "deploy/agents/rbac.yaml")]
    if own := cluster.own_namespace:
        grants.append(Grant(own, OWN_VERBS, "deploy/base/rbac.yaml"))
    if deployment_namespace:
        file = "deploy/components/paperclip-introspection/rbac.yaml"
        grants.append(Grant(deployment_namespace, DEPLOYMENT_VERBS, file))
    return grants


async def missing_permissions(
    cluster: Cluster, namespace: str, verbs: Verbs = REQUIRED_VERBS
) -> Sequence[tuple[str, str]]:
    """The verb and the resource of each permission that the worker lacks in a namespace.

    Raises:
        ClusterUnavailable, ClusterForbidden: the API server does not answer the question.
    """
    asked = [(verb, resource) for resource, each in verbs.items() for verb in each]
    answers = await asyncio.gather(*(cluster.allowed(verb, resource, namespace) for verb, resource in asked))
    return [each for each, allowed in zip(asked, answers, strict=True) if not allowed]


async def permission_findings(
    cluster: Cluster, namespace: str, deployment_namespace: str | None = None
) -> Sequence[Finding]:
    """An error for each permission of `needed_grants` that the worker lacks, else that it has all.

    Raises:
        ClusterUnavailable, ClusterForbidden: the API server does not answer the question.
    """
    grants = needed_grants(cluster, namespace, deployment_namespace)
    denied = await asyncio.gather(*(missing_permissions(cluster, each.namespace, each.verbs) for each in grants))
    found = [*_errors(grants, denied), *await _warnings(cluster, namespace)]
    granted = f"The worker has all permissions that it needs in namespace {namespace}"
    return found or [Finding(code="permissions", level="info", message=granted)]


def _errors(grants: Sequence[Grant], denied: Sequence[Sequence[tuple[str, str]]]) -> Iterable[Finding]:
    for grant, missing in zip(grants, denied, strict=True):
        for verb, resource in missing:
            message = f"The worker may not {verb} {resource} in namespace {grant.namespace}"
            hint = f"Grant verb {verb} on resource {resource} to the worker's ServiceAccount: apply {grant.file} there."
            yield Finding.error("permission_denied", message, hint)


async def _warnings(cluster: Cluster, namespace: str) -> Sequence[Finding]:
    return [
        Finding(
            code="pod_untried",
            level="warn",
            message=f"The worker may not {verb} {resource} in namespace {namespace}, so no pod was tried by dry run",
            hint=(
                f"Grant verb {verb} on resource {resource}: apply deploy/agents/rbac.yaml. Without it only a run finds "
                "what Pod Security or a quota refuses."
            ),
        )
        for verb, resource in await missing_permissions(cluster, namespace, CHECK_VERBS)
    ]
