"""Agents inherit from Paperclip's Deployment, found by its labels, and nothing of Paperclip's or the worker's own."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.introspect_pod import IntrospectPodActivity
from agent_runs.contracts.errors import PodIntrospectionFailed
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.messages import IntrospectPod, PodProfile
from agent_runs.contracts.request import RunConfig
from agent_runs.contracts.start import Finding
from agent_runs.doctor.permissions import permission_findings
from agent_runs.job.pod_profile import DeploymentChoice, Inheritance, PodOverrides, inherited_literals
from agent_runs.job.pod_source import inherited_pod
from agent_runs.kube.client import Cluster
from agent_runs.service import startup
from tests.real_cluster.objects import api_request, created_object
from tests.runs.system import System, open_system

LABELS = {"app.kubernetes.io/name": "paperclip"}
SELECTOR = "app.kubernetes.io/name=paperclip"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"


def secret_key(variable: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


PAPERCLIP: dict[str, Any] = {
    "name": "paperclip",
    "image": "paperclip:2026",
    "env": [
        {"name": "ANTHROPIC_BASE_URL", "value": "https://models.example"},
        {"name": "DATABASE_URL", "value": "postgres://canary"},
        {"name": "BETTER_AUTH_SECRET", "value": "canary"},
        {"name": "GOOGLE_CLIENT_SECRET", "value": "canary"},
        {"name": "PAPERCLIP_SECRETS_MASTER_KEY_FILE", "value": "/etc/paperclip/master.key"},
        {"name": "TEMPORAL_API_KEY", "value": "canary"},
        secret_key("OPENAI_API_KEY", "providers", "openai"),
        secret_key("PAPERCLIP_AGENT_JWT_SECRET", "paperclip", "jwt"),
        secret_key("INNOCENT", "paperclip", "jwt"),
    ],
    "envFrom": [{"secretRef": {"name": "providers"}}, {"secretRef": {"name": "paperclip-env"}}],
    "volumeMounts": [
        {"name": "data", "mountPath": "/paperclip"},
        {"name": "master", "mountPath": "/etc/paperclip"},
        {"name": "authorities", "mountPath": "/etc/authorities"},
        {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
    ],
}


def deployment(
    name: str, *beside: str, labels: dict[str, str] | None = None, container: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Paperclip's Deployment, with other containers beside its own."""
    containers = [*({"name": each, "image": f"{each}:1"} for each in beside), container or PAPERCLIP]
    secrets = {"master": "paperclip-master", "authorities": "authorities", "token": "paperclip-token-abc"}
    spec = {
        "containers": containers,
        "imagePullSecrets": [{"name": "registry"}],
        "dnsConfig": {"nameservers": ["10.0.0.10"]},
        "nodeSelector": {"pool": "paperclip"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "paperclip-data"}},
            *({"name": volume, "secret": {"secretName": secret}} for volume, secret in secrets.items()),
        ],
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": LABELS if labels is None else labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def without_placement(name: str) -> dict[str, Any]:
    """The same without what the embedded cluster has no node and no claim for."""
    whole = deployment(name)
    whole["spec"]["template"]["spec"] = {"containers": [{**PAPERCLIP, "volumeMounts": []}]}
    return whole


@pytest.fixture
async def system(temporal: Client, tmp_path: Path) -> AsyncIterator[System]:
    async with open_system(temporal, tmp_path) as opened:
        yield opened


def choice(**changes: Any) -> Inheritance:
    """Everything is inherited that may be, by pattern."""
    deployment = DeploymentChoice(SELECTOR, changes.pop("namespace", None), changes.pop("container", None))
    everything = {"variables": ("*",), "env_from": ("*",), "mounts": ("*",)}
    return Inheritance(**{**everything, "deployment": deployment, **changes})


async def profile(cluster: Cluster, inheritance: Inheritance) -> PodProfile:
    run = RunKey(agent_id="agent", company_id="company", run_id="run")
    introspection = IntrospectPodActivity(cluster, PodOverrides(), inheritance)
    input = IntrospectPod(run=run, config=RunConfig(model="fake/model"))
    return await ActivityEnvironment().run(introspection.introspect_pod, input)


async def test_a_run_has_what_its_operator_lists_of_paperclips_deployment(system: System) -> None:
    system.settings = system.settings.model_copy(
        update={"inherit_deployment": SELECTOR, "inherit_env": ("ANTHROPIC_*", "*_SECRET", "DATABASE_*")}
    )
    raw = system.agent("env >&2; exit 7")
    await api_request(system.kubernetes, "POST", DEPLOYMENTS.format("default"), body=without_placement("paperclip"))
    async with system.worker():
        await system.outcome(raw)
    lines = [line.data.decode() for line in await system.lines(raw)]
    printed = {line.partition("=")[0] for line in lines}
    assert "ANTHROPIC_BASE_URL" in printed
    assert printed.isdisjoint({"DATABASE_URL", "BETTER_AUTH_SECRET", "TEMPORAL_API_KEY"})
    assert not any("canary" in line for line in lines)


async def test_the_profile_is_that_of_the_pod_template_and_the_job_stays_in_its_own_namespace(system: System) -> None:
    await api_request(system.kubernetes, "POST", "/api/v1/namespaces", body={"metadata": {"name": "paperclip"}})
    inheritance = choice(variables=("ANTHROPIC_*",), env_from=(), namespace="paperclip")
    async with created_object(system.kubernetes, DEPLOYMENTS.format("paperclip"), deployment("paperclip")):
        found = await profile(system.kubernetes, inheritance)
        assert await startup.data_claim(system.kubernetes, None, inheritance) == "paperclip-data"
    assert (found.namespace, found.image, found.data_claim) == ("default", "paperclip:2026", "paperclip-data")
    assert (found.image_pull_secrets, found.dns_config) == (("registry",), {"nameservers": ["10.0.0.10"]})
    assert found.node_selector == {"pool": "paperclip"}
    assert found.tolerations == ({"key": "gpu", "operator": "Exists"},)
    assert found.source == "Deployment paperclip/paperclip"


async def test_patterns_find_nothing_that_is_paperclips_own_and_exact_names_do(system: System) -> None:
    async with created_object(system.kubernetes, DEPLOYMENTS.format("default"), deployment("paperclip")):
        found = await profile(system.kubernetes, choice())
        pod = await inherited_pod(system.kubernetes, choice())
        assert pod is not None
        assert inherited_literals(pod, choice()) == {"ANTHROPIC_BASE_URL": "https://models.example"}
        listed = choice(variables=("DATABASE_URL", "PAPERCLIP_AGENT_JWT_SECRET"), env_from=("providers",))
        assert inherited_literals(pod, listed) == {"DATABASE_URL": "postgres://canary"}
        chosen = await profile(system.kubernetes, listed)
    assert [each.name for each in found.env_references] == ["OPENAI_API_KEY"]
    assert found.env_from == ()
    assert [each.secret_name for each in found.secret_mounts] == ["authorities"]
    assert [each.name for each in chosen.env_references] == ["PAPERCLIP_AGENT_JWT_SECRET"]
    assert chosen.env_from == ({"secretRef": {"name": "providers"}},)


async def test_what_is_the_workers_own_is_not_inherited_from_paperclip_either(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = secret_key("AGENT_RUNS_TRANSCRIPTS_URL", "providers", "openai")
    container = {"name": "worker", "image": "worker:1", "env": [setting]}

    async def own_pod() -> dict[str, Any]:
        return {"metadata": {"name": "worker-0", "namespace": "default"}, "spec": {"containers": [container]}}

    monkeypatch.setattr(system.kubernetes, "own_pod", own_pod)
    async with created_object(system.kubernetes, DEPLOYMENTS.format("default"), deployment("paperclip")):
        found = await profile(system.kubernetes, choice(env_from=("providers",)))
    assert (found.env_references, found.env_from) == ((), ())
    assert found.source == "Deployment default/paperclip"


@pytest.mark.parametrize(
    ("deployments", "container", "message"),
    [
        ([], None, "no Deployment in namespace default has the labels app.kubernetes.io/name=paperclip: correct"),
        ([deployment("other", labels={"app": "other"})], None, "no Deployment in namespace default"),
        (
            [deployment("one"), deployment("two")],
            None,
            "2 Deployments in namespace default .*: one, two. Add a label",
        ),
        ([deployment("one", "logs")], None, r"has 2 containers \(logs, paperclip\): set AGENT_RUNS_INHERIT_CONTAINER"),
        ([deployment("one", "logs")], "server", "has no container server, only logs, paperclip: correct"),
    ],
)
async def test_what_was_not_found_is_named_with_the_setting(
    system: System, deployments: list[dict[str, Any]], container: str | None, message: str
) -> None:
    for each in deployments:
        await api_request(system.kubernetes, "POST", DEPLOYMENTS.format("default"), body=each)
    with pytest.raises(PodIntrospectionFailed, match=message):
        await profile(system.kubernetes, choice(container=container))


async def test_one_of_several_containers_can_be_named(system: System) -> None:
    async with created_object(system.kubernetes, DEPLOYMENTS.format("default"), deployment("one", "logs")):
        assert (await profile(system.kubernetes, choice(container="logs"))).image == "logs:1"


async def test_secrets_that_are_not_in_the_jobs_namespace_are_named_and_no_job_is_created(system: System) -> None:
    await api_request(system.kubernetes, "POST", "/api/v1/namespaces", body={"metadata": {"name": "paperclip"}})
    system.settings = system.settings.model_copy(
        update={"inherit_deployment": SELECTOR, "inherit_namespace": "paperclip", "inherit_env": ("OPENAI_*",)}
    )
    await api_request(system.kubernetes, "POST", DEPLOYMENTS.format("paperclip"), body=without_placement("paperclip"))
    async with system.worker():
        before = len(system.changes)
        outcome = await system.outcome(system.agent("exit 0"))
        assert outcome.error_code == "k8s_introspection_failed"
        assert "cannot refer to Secrets of another namespace: providers (variable OPENAI_API_KEY)" in (
            outcome.error_message or ""
        )
        assert not any("/jobs" in path for path in system.changes[before:])
        secret = {"metadata": {"name": "providers"}, "stringData": {"openai": "canary"}}
        await api_request(system.kubernetes, "POST", "/api/v1/namespaces/default/secrets", body=secret)
        outcome = await system.outcome(system.agent("exit 7"))
        assert outcome.error_code != "k8s_introspection_failed"


async def test_the_permission_is_checked_where_paperclip_is_and_only_if_it_is_needed(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str]] = []

    async def allowed(verb: str, resource: str, namespace: str) -> bool:
        asked.append((verb, resource, namespace))
        return resource != "deployments.apps"

    monkeypatch.setattr(system.kubernetes, "allowed", allowed)

    async def denied(deployment_namespace: str | None) -> list[Finding]:
        found = await permission_findings(system.kubernetes, "agents", deployment_namespace)
        return [each for each in found if each.level != "info"]

    assert await denied(None) == []
    assert not any(resource == "deployments.apps" for _, resource, _ in asked)
    [finding] = await denied("paperclip")
    assert finding.message == "The worker may not list deployments.apps in namespace paperclip"
    assert "deploy/components/paperclip-introspection/rbac.yaml" in (finding.hint or "")


async def test_a_worker_that_may_not_list_deployments_logs_it_at_its_start(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def allowed(*asked: str) -> bool:
        return "deployments.apps" not in asked

    monkeypatch.setattr(Cluster, "allowed", allowed)
    chosen = {"inherit_deployment": SELECTOR, "inherit_namespace": "paperclip"}
    settings = system.settings.model_copy(update={"kubeconfig": system.embedded.kubeconfig_path})
    for update, denied in ((chosen, [("paperclip", ["list deployments.apps"])]), ({}, [])):
        with capture_logs() as logs:
            cluster = await startup.connect_kubernetes(settings.model_copy(update=update))
            await cluster.close()
        found = [each for each in logs if each["event"] == "worker.permissions_denied"]
        assert [(each["namespace"], each["missing"]) for each in found] == denied
