"""A check before a run names what the worker lacks, on a real API server.

Needs KUBECONFIG, and for runs TEST_AGENT_IMAGE.
"""

import asyncio
import io
import json
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_runs.cli.display import JsonDisplay
from agent_runs.cli.doctor import doctor
from agent_runs.contracts.errors import RunError
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.start import Finding, HostTexts
from agent_runs.doctor.objects import CheckedAgent, Objects
from agent_runs.doctor.permissions import CHECK_VERBS, OWN_VERBS, REQUIRED_VERBS, permission_findings
from agent_runs.doctor.trial import _created, pod_findings
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.pod_profile import PodOverrides
from agent_runs.job.redactions import WorkerValues
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.preparation import split
from dev_stack.host_address import host_for_pods
from tests.real_cluster.objects import api_request, kubeconfig_of
from tests.real_cluster.requirements import cluster_and_image, skip_without
from tests.real_cluster.stack import open_real_system
from tests.support.agent_pods import SIDECAR_IMAGE

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(900)]

DEPLOY = Path(__file__).parents[2] / "deploy"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"
LOADED = 30
"""Seconds within which the API server's authorizer knows a new Role."""


def rules_of(file: str) -> list[dict[str, Any]]:
    """The rules of the Role in a file of deploy/."""
    [role] = [each for each in yaml.safe_load_all((DEPLOY / file).read_text()) if each["kind"] == "Role"]
    rules: list[dict[str, Any]] = role["rules"]
    return rules


AGENTS_RULES, OWN_RULES = rules_of("agents/rbac.yaml"), rules_of("base/rbac.yaml")


def permissions_of(rules: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Verb and resource of each permission, as findings name them."""
    return [
        (verb, f"{resource}.{group}" if group else resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def without(rules: Sequence[dict[str, Any]], verb: str, resource: str) -> list[dict[str, Any]]:
    plural = resource.partition(".")[0]
    return [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb or rule["resources"] != [plural]]}
        for rule in rules
    ]


@dataclass(frozen=True)
class Workers:
    """Identities with Roles of their own, each a ServiceAccount in a namespace of this test."""

    admin: Cluster
    namespace: str
    folder: Path

    async def kubeconfig(self, rules: Sequence[dict[str, Any]]) -> Path:
        """The kubeconfig of a new ServiceAccount to which these rules are granted."""
        name, kind = f"worker-{uuid.uuid4().hex[:8]}", {"name": "x", "namespace": self.namespace}
        metadata, group = kind | {"name": name}, "rbac.authorization.k8s.io"
        core = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        await api_request(self.admin, "POST", core, body={"metadata": metadata})
        rules = [rule for rule in rules if rule["verbs"]]
        await api_request(
            self.admin, "POST", f"{RBAC}/{self.namespace}/roles", body={"metadata": metadata, "rules": rules}
        )
        binding = {
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        }
        await api_request(self.admin, "POST", f"{RBAC}/{self.namespace}/rolebindings", body=binding)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        answer = await api_request(self.admin, "POST", f"{core}/{name}/token", body=request)
        file = self.folder / f"{name}.kubeconfig"
        file.write_text(kubeconfig_of(answer["status"]["token"]))
        return file

    @asynccontextmanager
    async def worker(
        self, rules: Sequence[dict[str, Any]], environ: dict[str, str] | None = None
    ) -> AsyncIterator[Cluster]:
        """A worker's client with this identity."""
        file = await self.kubeconfig(rules)
        async with await Cluster.connect(str(file), namespace=self.namespace, environ=environ or {}) as cluster:
            yield cluster


@pytest.fixture(scope="module")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Workers]:
    skip_without("KUBECONFIG")
    async with await Cluster.connect(os.environ["KUBECONFIG"], environ={}) as admin:
        namespace = f"doctor-{uuid.uuid4().hex[:8]}"
        await api_request(admin, "POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
        try:
            yield Workers(admin, namespace, tmp_path_factory.mktemp("workers"))
        finally:
            await api_request(admin, "DELETE", f"/api/v1/namespaces/{namespace}")


async def denied(cluster: Cluster, namespace: str, expected: list[str]) -> list[str]:
    """The denials that are found, as soon as the authorizer knows the Role, else the last ones."""
    found: list[str] = []
    for _ in range(LOADED * 10):
        findings = await permission_findings(cluster, namespace)
        found = [each.message.partition(", so ")[0] for each in findings if each.level != "info"]
        if found == expected:
            break
        await asyncio.sleep(0.1)
    return found


def test_what_is_checked_is_what_the_roles_grant() -> None:
    checked = {
        (verb, resource) for each in (REQUIRED_VERBS, CHECK_VERBS) for resource, verbs in each.items() for verb in verbs
    }
    assert checked == set(permissions_of(AGENTS_RULES))
    assert {(verb, resource) for resource, verbs in OWN_VERBS.items() for verb in verbs} == set(
        permissions_of(OWN_RULES)
    )


async def test_a_worker_with_the_shipped_role_lacks_nothing(workers: Workers) -> None:
    async with workers.worker(AGENTS_RULES) as cluster:
        assert await denied(cluster, workers.namespace, []) == []


@pytest.mark.parametrize(("verb", "resource"), permissions_of(AGENTS_RULES))
async def test_each_missing_verb_is_named_with_its_resource_and_nothing_else(
    workers: Workers, verb: str, resource: str
) -> None:
    async with workers.worker(without(AGENTS_RULES, verb, resource)) as cluster:
        expected = [f"The worker may not {verb} {resource} in namespace {workers.namespace}"]
        assert await denied(cluster, workers.namespace, expected) == expected
        [finding] = await permission_findings(cluster, workers.namespace)
        needed = verb in REQUIRED_VERBS[resource]
        assert (finding.code, finding.level) == (("permission_denied", "error") if needed else ("pod_untried", "warn"))
        assert f"verb {verb} on resource {resource}" in (finding.hint or "")


async def test_a_worker_that_may_not_read_its_own_pod_is_named(workers: Workers) -> None:
    own = {"POD_NAME": "worker-0", "POD_NAMESPACE": "default"}
    async with workers.worker(AGENTS_RULES, own) as cluster:
        expected = ["The worker may not get pods in namespace default"]
        assert await denied(cluster, workers.namespace, expected) == expected


@pytest.fixture
async def home(workers: Workers) -> AsyncIterator[str]:
    """A namespace of one test, in which pods can be created."""
    name = f"doctor-{uuid.uuid4().hex[:8]}"
    await api_request(workers.admin, "POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    container = {"name": "main", "image": "busybox:1.36"}
    pod = {"metadata": {"name": "any", "namespace": name}, "spec": {"containers": [container]}}
    for _ in range(LOADED * 10):  # controllers make the namespace's ServiceAccount, and before 1.24 then its token
        with suppress(RunError):
            await workers.admin.dry_run({"apiVersion": "v1", "kind": "Pod", **pod})
            break
        await asyncio.sleep(0.1)
    yield name
    await api_request(workers.admin, "DELETE", f"/api/v1/namespaces/{name}")


async def tried(workers: Workers, namespace: str, **config: Any) -> list[Finding]:
    """What a dry run of the objects of an agent's run finds."""
    claim = config.pop("claim", None)
    objects = Objects(workers.admin, AgentPodSettings(), PodOverrides(image="agent:1", data_claim=claim))
    return list(await objects.findings(checked(namespace, **config)))


def checked(namespace: str, **config: Any) -> CheckedAgent:
    """An agent with this configuration, its Jobs in this namespace."""
    run = {"runId": "check", "authToken": "t", "agent": {"id": "check", "companyId": "acme"}}
    prepared = split({**run, "config": {"model": "fake/x", "namespace": namespace} | config}, HostTexts())
    key = RunKey(agent_id="check", company_id="acme", run_id=str(uuid.uuid4()))
    return CheckedAgent(key, prepared, WorkerValues())


async def test_the_objects_of_a_run_are_accepted_and_none_is_created(workers: Workers, home: str) -> None:
    assert [(each.code, each.level) for each in await tried(workers, home)] == [("run_objects", "info")]
    for path in (f"/apis/batch/v1/namespaces/{home}/jobs", f"/api/v1/namespaces/{home}/pods"):
        assert (await api_request(workers.admin, "GET", path))["items"] == []


async def test_a_quota_that_leaves_no_room_for_the_pod_is_named(workers: Workers, home: str) -> None:
    quota = {"metadata": {"name": "none-left"}, "spec": {"hard": {"pods": "0"}}}
    path = f"/api/v1/namespaces/{home}/resourcequotas"
    await api_request(workers.admin, "POST", path, body=quota)
    for _ in range(LOADED * 10):
        if "hard" in (await api_request(workers.admin, "GET", f"{path}/none-left")).get("status", {}):
            break
        await asyncio.sleep(0.1)
    [finding] = await tried(workers, home)
    assert (finding.code, finding.level) == ("k8s_job_create_failed", "error")
    assert "cannot create pods: 403 Forbidden" in finding.message
    assert "exceeded quota: none-left" in finding.message


async def test_a_missing_service_account_is_named(workers: Workers, home: str) -> None:
    [finding] = await tried(workers, home, serviceAccountName="nobody")
    assert 'serviceaccount "nobody" not found' in finding.message


async def test_a_missing_namespace_is_named(workers: Workers) -> None:
    found = await tried(workers, "nowhere-at-all")
    assert found
    assert all('namespaces "nowhere-at-all" not found' in each.message for each in found)


async def test_a_data_volume_without_its_claim_is_named(workers: Workers, home: str) -> None:
    [finding] = await tried(workers, home, claim="paperclip-data")
    assert (finding.code, finding.level) == ("data_claim_missing", "error")
    assert f"paperclip-data, the data volume, does not exist in namespace {home}" in finding.message


async def test_a_missing_storage_class_is_named_where_the_worker_may_read_them(workers: Workers, home: str) -> None:
    own = {"agentDbMode": "dedicated_pvc", "agentDbStorageClass": "nowhere"}
    [missing] = await tried(workers, home, **own)
    assert (missing.code, missing.level) == ("storage_class_missing", "error")
    assert missing.message == "StorageClass nowhere, for the agent's own volume, does not exist"
    name = f"fast-{uuid.uuid4().hex[:8]}"
    path = "/apis/storage.k8s.io/v1/storageclasses"
    fast = {"metadata": {"name": name}, "provisioner": "example.com/none"}
    await api_request(workers.admin, "POST", path, body=fast)
    try:
        [fine] = await tried(workers, home, **own | {"agentDbStorageClass": name})
        assert fine.code == "run_objects"
    finally:
        await api_request(workers.admin, "DELETE", f"{path}/{name}")
    async with workers.worker(AGENTS_RULES) as worker:
        objects = Objects(worker, AgentPodSettings(sidecar_image="python:3"), PodOverrides("busybox:1.36"))
        found = await objects.findings(checked(workers.namespace, **own))
    assert ("storage_class_unchecked", "info") in [(each.code, each.level) for each in found]


async def outcome_without(
    workers: Workers, verb: str, resource: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Outcome:
    """How a run ends whose worker lacks one permission."""
    kubeconfig, _ = cluster_and_image()
    monkeypatch.setenv("KUBECONFIG", str(await workers.kubeconfig(without(AGENTS_RULES, verb, resource))))
    monkeypatch.setenv("AGENT_RUNS_NAMESPACE", workers.namespace)
    async with open_real_system(folder, model_host=await host_for_pods(Path(kubeconfig))) as system:
        return await system.outcome(system.wake("text", str(uuid.uuid4())))


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        *(("create", "secrets"), ("patch", "secrets"), ("deletecollection", "secrets")),
        *(("create", "jobs.batch"), ("list", "pods")),
    ],
)
async def test_a_run_without_a_verb_that_it_needs_fails_and_names_the_verb_and_its_resource(
    workers: Workers, verb: str, resource: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = (await outcome_without(workers, verb, resource, tmp_path, monkeypatch)).failure
    assert failure is not None
    assert failure.code == "k8s_forbidden"
    assert f"cannot {verb} {resource}" in failure.message


async def test_a_run_that_may_not_read_logs_gets_all_output_from_its_sidecar_and_names_the_verb(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = await outcome_without(workers, "get", "pods/log", tmp_path, monkeypatch)
    assert (outcome.failure, outcome.receipt and outcome.receipt.state) == (None, "verified")
    assert any("cannot get pods/log" in note for note in (outcome.result_json or {})["notes"])


async def test_a_run_that_may_not_watch_pods_lists_them_succeeds_and_names_the_verb(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = await outcome_without(workers, "watch", "pods", tmp_path, monkeypatch)
    assert (outcome.failure, outcome.receipt and outcome.receipt.state) == (None, "verified")
    assert any("cannot watch pods" in note for note in (outcome.result_json or {})["notes"])


async def test_a_pod_that_is_tried_names_opencode_an_unknown_model_and_addresses_that_are_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RUNS_WORKSPACE_STORE", f"file://{tmp_path}/workspaces")
    monkeypatch.setenv("AGENT_RUNS_WORKSPACE_URL", "http://127.0.0.1:1")
    async with open_real_system(tmp_path) as system:
        settings = system.stack.settings
        monkeypatch.setenv("TEMPORAL_ADDRESS", settings.temporal.address)
        monkeypatch.setenv("AGENT_RUNS_TASK_QUEUE", settings.task_queue)
        monkeypatch.setenv("AGENT_RUNS_SEALING_KEY_FILE", str(settings.sealing_key_file))
        elsewhere = {"paperclipApiUrl": "http://127.0.0.1:1", "workspace": "carried"}
        known = await tried_pod(tmp_path, model="fake/scenario/text", **elsewhere)
        assert known["opencode"]["message"].endswith("ran OpenCode 1.18.33")
        assert known["model"]["level"] == "info"
        for code in ("paperclip_unreachable", "workspaces_unreachable"):
            assert "Connection refused" in known[code]["message"]
        assert "AGENT_RUNS_WORKSPACE_URL" in known["workspaces_unreachable"]["hint"]
        assert known["workspace_store"]["level"] == "info"
        unknown = await tried_pod(tmp_path, model="fake/nothing", paperclipApiUrl="http://127.0.0.1:1")
        assert "does not list the model fake/nothing" in unknown["model_unknown"]["message"]
        assert "similar ones are fake/" in unknown["model_unknown"]["hint"]
        missing = await tried_pod(tmp_path, model="fake/x", image="installed/none:1", imagePullPolicy="Never")
        assert "installed/none:1" in missing["k8s_image_pull_failed"]["message"]
        assert await system.cluster.jobs_of_agent("default", "check") == []


async def tried_pod(folder: Path, **config: Any) -> dict[str, dict[str, Any]]:
    """What `agent-runs doctor --pod` finds, by its code."""
    file = folder / "agent.json"
    file.write_text(json.dumps({"workspace": "ephemeral", **config}))
    output = io.StringIO()
    await doctor(file, "acme", None, JsonDisplay(output), pod=True)
    return {each["code"]: each for each in map(json.loads, output.getvalue().splitlines())}


async def test_a_trial_whose_worker_was_killed_goes_on_with_its_job_and_leaves_nothing(
    workers: Workers, home: str
) -> None:
    _, image = cluster_and_image()
    settings = AgentPodSettings(sidecar_image=os.environ.get(SIDECAR_IMAGE))
    objects = Objects(workers.admin, settings, PodOverrides(image=image))
    agent = checked(home)
    left_behind = await _created(workers.admin, await objects.planned(agent), "")  # by the one that was killed
    found = {each.code: each for each in await pod_findings(objects, agent, lambda: None)}
    assert found["opencode"].message.endswith("ran OpenCode 1.18.33")
    assert await jobs_of(workers, home) in ([], [left_behind.uid])
    async with asyncio.timeout(60):
        while await jobs_of(workers, home) or await secrets_in(workers, home):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.2)


async def jobs_of(workers: Workers, namespace: str) -> list[str]:
    listed = await api_request(workers.admin, "GET", f"/apis/batch/v1/namespaces/{namespace}/jobs")
    return [each["metadata"]["uid"] for each in listed["items"]]


async def secrets_in(workers: Workers, namespace: str) -> list[str]:
    """The names of all Secrets but those of ServiceAccounts."""
    listed = await api_request(workers.admin, "GET", f"/api/v1/namespaces/{namespace}/secrets")
    return [each["metadata"]["name"] for each in listed["items"] if each["type"] == "Opaque"]
