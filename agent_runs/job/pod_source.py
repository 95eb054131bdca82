"""Reads what agents' pods inherit from: the worker's own pod, or the pod template of Paperclip's Deployment.

The template says what the operator has declared, and needs one verb (`list deployments.apps`). Paperclip's pods would
have more that is not for agents (the token of their ServiceAccount, containers that a webhook adds), and during a
rollout they differ. What only pods have is not inherited: image pull secrets of Paperclip's ServiceAccount.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agent_runs.contracts.errors import PodIntrospectionFailed
from agent_runs.contracts.messages import PodProfile
from agent_runs.contracts.request import RunConfig
from agent_runs.job.pod_profile import DeploymentChoice, Inheritance, PodOverrides, agent_profile
from agent_runs.kube.client import Cluster


async def read_profile(
    cluster: Cluster, config: RunConfig, overrides: PodOverrides, inheritance: Inheritance
) -> PodProfile:
    """Return what the pod of an agent with this configuration inherits; no data volume for a workspace that is carried.

    Raises:
        InvalidRequest: nothing names an image for an agent other than OpenCode.
        PodIntrospectionFailed: as for `inherited_pod`, `agent_profile` and `check_secrets`.
        ClusterUnavailable: the API server refused or timed out.
        ClusterForbidden: the worker may not read its own pod, or list Deployments.
    """
    pod, worker = await inherited_pod(cluster, inheritance), await cluster.own_pod()
    profile = agent_profile(pod, config, overrides, inheritance, home=cluster.namespace, worker=worker)
    await check_secrets(cluster, profile, inheritance)
    return profile.model_copy(update={"data_claim": None}) if config.workspace == "carried" else profile


async def inherited_pod(cluster: Cluster, inheritance: Inheritance) -> Mapping[str, Any] | None:
    """Return the worker's own pod, None outside of one; or a `deployment_pod`, if the settings name a Deployment.

    Raises:
        PodIntrospectionFailed: the settings match no Deployment, or several, or not one container.
        ClusterUnavailable: the API server refused or timed out.
        ClusterForbidden: the worker may not read its own pod, or list Deployments.
    """
    choice = inheritance.deployment
    if choice is None:
        return await cluster.own_pod()
    namespace = deployment_namespace(cluster, choice)
    return deployment_pod(await cluster.deployments(namespace, choice.selector), choice, namespace)


def deployment_namespace(cluster: Cluster, choice: DeploymentChoice) -> str:
    return choice.namespace or cluster.own_namespace or cluster.namespace


def deployment_pod(
    deployments: Sequence[Mapping[str, Any]], choice: DeploymentChoice, namespace: str
) -> Mapping[str, Any]:
    """Return the pod template of the one Deployment, in the form of a pod with the one container that is asked.

    Raises:
        PodIntrospectionFailed: there is no Deployment, or several; or not one such container.
    """
    names = sorted(str(each["metadata"]["name"]) for each in deployments)
    if not names:
        raise PodIntrospectionFailed(
            f"no Deployment in namespace {namespace} has the labels {choice.selector}: correct "
            "AGENT_RUNS_INHERIT_DEPLOYMENT or AGENT_RUNS_INHERIT_NAMESPACE"
        )
    if len(names) > 1:
        raise PodIntrospectionFailed(
            f"{len(names)} Deployments in namespace {namespace} have the labels {choice.selector}: {_some(names)}. Add "
            "a label to AGENT_RUNS_INHERIT_DEPLOYMENT that only Paperclip's has"
        )
    spec = deployments[0].get("spec", {}).get("template", {}).get("spec", {})
    container = _container(spec.get("containers") or (), choice, f"Deployment {namespace}/{names[0]}")
    return {
        "kind": "Deployment",
        "metadata": {"name": names[0], "namespace": namespace},
        "spec": {**spec, "containers": [container]},
    }


def _container(containers: Sequence[Mapping[str, Any]], choice: DeploymentChoice, where: str) -> Mapping[str, Any]:
    names = [str(each.get("name")) for each in containers]
    if choice.container is None:
        if len(names) == 1:
            return containers[0]
        raise PodIntrospectionFailed(
            f"{where} has {len(names)} containers ({_some(names)}): set AGENT_RUNS_INHERIT_CONTAINER to Paperclip's"
        )
    if choice.container not in names:
        raise PodIntrospectionFailed(
            f"{where} has no container {choice.container}, only {_some(names)}: correct AGENT_RUNS_INHERIT_CONTAINER"
        )
    return containers[names.index(choice.container)]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


async def check_secrets(cluster: Cluster, profile: PodProfile, inheritance: Inheritance) -> None:
    """Check that the Secrets which an agent's variables refer to are in the namespace of its Job.

    A pod can refer to Secrets of its own namespace only. Those of Paperclip's Deployment are in Paperclip's.

    Raises:
        PodIntrospectionFailed: names those that are missing.
        ClusterUnavailable: the API server refused or timed out.
    """
    choice = inheritance.deployment
    if choice is None or deployment_namespace(cluster, choice) == profile.namespace:
        return
    wanted = inherited_secrets(profile)
    missing = [name for name in wanted if await cluster.read_secret_metadata(profile.namespace, name) is None]
    if missing:
        uses = "; ".join(f"{name} ({wanted[name]})" for name in missing[:5])
        raise PodIntrospectionFailed(
            f"agents inherit from {profile.source}, but a pod in namespace {profile.namespace} cannot refer to Secrets "
            f"of another namespace: {uses}. Create them in {profile.namespace} by the same name, or leave them out of "
            "AGENT_RUNS_INHERIT_ENV and AGENT_RUNS_INHERIT_ENV_FROM"
        )


def inherited_secrets(profile: PodProfile) -> dict[str, str]:
    """Return the Secrets that have to exist, each with what refers to it. Mounted ones may be missing."""
    found: dict[str, str] = {}
    for each in profile.env_references:
        reference = each.value_from.get("secretKeyRef", {})
        if name := _required(reference):
            found.setdefault(name, f"variable {each.name}")
    for source in profile.env_from:
        if name := _required(source.get("secretRef", {})):
            found.setdefault(name, "all of its keys")
    return found


def _required(reference: Mapping[str, Any]) -> str | None:
    name = reference.get("name")
    return name if isinstance(name, str) and not reference.get("optional") else None
