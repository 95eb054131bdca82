"""What the worker must be permitted to do: the verbs of deploy/agents/rbac.yaml and deploy/base/rbac.yaml, and of
the component deploy/components/paperclip-introspection where it is used.

At its start one request lists what the worker may do (SelfSubjectRulesReview), and only what is not in the list is
asked one by one (SelfSubjectAccessReview). The latter is the authority, since a webhook may permit or deny what no list
shows; a check before a run asks it alone.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

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
DEPLOYMENT_RBAC_FILE: Final = "deploy/components/paperclip-introspection/rbac.yaml"
DEPLOYMENT_VERBS: Final[Verbs] = {"deployments.apps": ("list",)}
"""In the namespace of Paperclip's Deployment, if agents inherit from it."""


async def missing_permissions(cluster: Cluster, namespace: str, required: Verbs = REQUIRED_VERBS) -> Sequence[str]:
    """The permissions that the worker lacks in a namespace, such as `watch pods`; by default those for Jobs.

    Raises:
        ClusterUnavailable, ClusterForbidden: the API server does not answer the question.
    """
    rules = await cluster.rules(namespace) or ()
    unlisted = [each for each in _pairs(required) if not any(rule.permits(*each) for rule in rules)]
    return [f"{verb} {resource}" for verb, resource in await _denied(cluster, namespace, unlisted)]


async def permission_findings(
    cluster: Cluster, namespace: str, deployment_namespace: str | None = None
) -> Sequence[Finding]:
    """An error for each permission that the worker lacks, else that it has all.

    Args:
        namespace: of the agent's Jobs.
        deployment_namespace: of Paperclip's Deployment; None: agents inherit from the worker's own pod.

    Raises:
        ClusterUnavailable, ClusterForbidden: the API server does not answer the question.
    """
    required: list[tuple[str, Verbs, str]] = [(namespace, REQUIRED_VERBS, "deploy/agents/rbac.yaml")]
    if own := cluster.own_namespace:
        required.append((own, OWN_VERBS, "deploy/base/rbac.yaml"))
    if deployment_namespace:
        required.append((deployment_namespace, DEPLOYMENT_VERBS, DEPLOYMENT_RBAC_FILE))
    found: list[Sequence[Finding]] = await asyncio.gather(*(_findings_in(cluster, *each) for each in required))
    for verb, resource in await _denied(cluster, namespace, _pairs(CHECK_VERBS)):
        message = f"The worker may not {verb} {resource} in namespace {namespace}, so no pod was tried by dry run"
        hint = (
            f"Grant verb {verb} on resource {resource}: apply deploy/agents/rbac.yaml. Without it only a run finds "
            "what Pod Security or a quota refuses."
        )
        found.append([Finding(code="pod_untried", level="warn", message=message, hint=hint)])
    granted = f"The worker has all permissions that it needs in namespace {namespace}"
    return [each for one in found for each in one] or [Finding(code="permissions", level="info", message=granted)]


async def _findings_in(cluster: Cluster, namespace: str, verbs: Verbs, file: str) -> Sequence[Finding]:
    return [
        Finding(
            code="permission_denied",
            level="error",
            message=f"The worker may not {verb} {resource} in namespace {namespace}",
            hint=f"Grant verb {verb} on resource {resource} to the worker's ServiceAccount: apply {file} there.",
        )
        for verb, resource in await _denied(cluster, namespace, _pairs(verbs))
    ]


async def _denied(
    cluster: Cluster, namespace: str, permissions: Iterable[tuple[str, str]]
) -> Sequence[tuple[str, str]]:
    asked = list(permissions)
    answers = await asyncio.gather(*(cluster.allowed(verb, resource, namespace) for verb, resource in asked))
    return [each for each, allowed in zip(asked, answers, strict=True) if not allowed]


def _pairs(verbs: Verbs) -> Iterable[tuple[str, str]]:
    return ((verb, resource) for resource, each in verbs.items() for verb in each)
