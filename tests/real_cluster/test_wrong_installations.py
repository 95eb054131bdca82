"""Installations with one thing wrong, on a real cluster: a check of the Deployment says in one line what to do.

Needs what test_installation.py needs. Each is the overlay `trial` in a namespace of its own, whose volumes are empty.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from agent_runs.contracts.start import Finding
from agent_runs.doctor.deployment import deployment_findings
from agent_runs.kube.client import Cluster
from tests.real_cluster.installation import command, opened_beside
from tests.real_cluster.installed_images import InstalledImages
from tests.real_cluster.objects import api_request, created_object
from tests.support.overlays import built
from tests.transcript.postgres import Postgres

pytestmark = [pytest.mark.real_cluster, pytest.mark.installs, pytest.mark.timeout(1800)]

Manifest = dict[str, Any]
NAMESPACES = "/api/v1/namespaces"
NAMED_WITHIN = 150
"""Seconds until Kubernetes reports what is wrong; the back-off of an image's pull is a part of them."""
AT_A_TIME = 4


class Installed:
    """The objects of one installation, which a case changes before they are applied.

    Attributes:
        temporal, database: addresses that work.
    """

    def __init__(self, documents: list[Manifest], temporal: str, database: str, registry: str) -> None:
        self.documents = documents
        self.temporal = temporal
        self.database = database
        self.settings()["TEMPORAL_ADDRESS"] = temporal
        for name in ("workspaces", "transcripts"):
            self.volume(name, emptyDir={})
        self.container["image"] = registry + self.container["image"]
        self.container["resources"] = {"requests": {"cpu": "10m", "memory": "16Mi"}}

    def find(self, kind: str, name: str) -> Manifest:
        """An object by its kind and the beginning of its name."""
        return next(
            each for each in self.documents if each["kind"] == kind and each["metadata"]["name"].startswith(name)
        )

    def remove(self, kind: str, name: str) -> None:
        self.documents.remove(self.find(kind, name))

    def settings(self) -> dict[str, str]:
        settings: dict[str, str] = self.find("ConfigMap", "agent-runs-settings")["data"]
        return settings

    def keys(self) -> dict[str, str]:
        keys: dict[str, str] = self.find("Secret", "agent-runs-keys")["stringData"]
        return keys

    @property
    def pod(self) -> Manifest:
        pod: Manifest = self.find("Deployment", "agent-runs-worker")["spec"]["template"]["spec"]
        return pod

    @property
    def container(self) -> Manifest:
        container: Manifest = self.pod["containers"][0]
        return container

    def volume(self, name: str, **source: Any) -> None:
        """Give a volume another source."""
        self.pod["volumes"] = [each for each in self.pod["volumes"] if each["name"] != name] + [{"name": name} | source]

    def variable(self, name: str, **value: Any) -> None:
        """Give a variable another value."""
        variables = [each for each in self.container["env"] if each["name"] != name]
        self.container["env"] = [*variables, {"name": name} | value]

    def add(self, kind: str, name: str, **content: Any) -> None:
        self.documents.insert(0, {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} | content)


Change = Callable[[Installed], object]
CLAIM = {"persistentVolumeClaim": {"claimName": "agent-runs-workspaces"}}
DATABASE = {"valueFrom": {"secretKeyRef": {"name": "agent-runs-database", "key": "url"}}}
URL = "AGENT_RUNS_TRANSCRIPTS_URL"


def with_unbound_claim(installed: Installed) -> None:
    installed.volume("workspaces", **CLAIM)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
    installed.add("PersistentVolumeClaim", "agent-runs-workspaces", spec=spec)


def with_a_secret_without_url(installed: Installed) -> None:
    installed.variable(URL, **DATABASE)
    installed.add("Secret", "agent-runs-database", stringData={"uri": "postgresql://x"})


def with_a_volume_that_cannot_be_written(installed: Installed) -> None:
    for mount in installed.container["volumeMounts"]:
        mount["readOnly"] = True


@dataclass(frozen=True)
class Case:
    """One thing that is wrong, and what the finding must say of it and of its remedy."""

    change: Change
    cause: str
    remedy: str


IN_THE_OVERLAY = "Change the overlay accordingly"
CASES: dict[str, Case] = {
    "no keys": Case(
        lambda it: it.remove("Secret", "agent-runs-keys"), 'secret "agent-runs-keys" not found', "agent-runs keys"
    ),
    "a sealing key that is none": Case(
        lambda it: it.keys().update({"sealing-key.json": "{}"}), "AGENT_RUNS_SEALING_KEY_FILE", IN_THE_OVERLAY
    ),
    "no key for links": Case(
        lambda it: it.keys().pop("transcripts-key.json"), "AGENT_RUNS_TRANSCRIPTS_KEY_FILE", IN_THE_OVERLAY
    ),
    "no key of workspaces": Case(
        lambda it: it.keys().pop("workspace-key.json"), "AGENT_RUNS_WORKSPACE_KEY_FILE", IN_THE_OVERLAY
    ),
    "no settings": Case(
        lambda it: it.remove("ConfigMap", "agent-runs-settings"), 'configmap "agent-runs-settings', "docs/install.md"
    ),
    "no policy": Case(
        lambda it: it.remove("ConfigMap", "agent-runs-policy"), 'configmap "agent-runs-policy', "docs/install.md"
    ),
    "a wrong policy": Case(
        lambda it: it.find("ConfigMap", "agent-runs-policy").update(data={"policy.yaml": "namespaces: 7"}),
        "AGENT_RUNS_POLICY: ",
        IN_THE_OVERLAY,
    ),
    "an unknown setting": Case(
        lambda it: it.settings().update(AGENT_RUNS_IMAGES="agent"), "AGENT_RUNS_IMAGES: no such setting", IN_THE_OVERLAY
    ),
    "a wrong setting": Case(
        lambda it: it.settings().update(AGENT_RUNS_MAX_RUNS="many"), "AGENT_RUNS_MAX_RUNS: ", IN_THE_OVERLAY
    ),
    "Temporal elsewhere": Case(
        lambda it: it.settings().update(TEMPORAL_ADDRESS=f"{it.temporal.partition(':')[0]}:1"),
        "Temporal does not answer at ",
        IN_THE_OVERLAY,
    ),
    "no namespace in Temporal": Case(
        lambda it: it.settings().update(TEMPORAL_NAMESPACE="nowhere"), "nowhere", IN_THE_OVERLAY
    ),
    "no claim": Case(
        lambda it: it.volume("workspaces", **CLAIM),
        'persistentvolumeclaim "agent-runs-workspaces" not found',
        "Create the claim",
    ),
    "a claim without a volume": Case(with_unbound_claim, "unbound immediate PersistentVolumeClaims", "StorageClass"),
    "no image": Case(
        lambda it: it.container.update(image="no-such-registry.invalid/agent-runs-worker:0.1.0"),
        "no-such-registry.invalid",
        "./dev images",
    ),
    "an image that is never pulled": Case(
        lambda it: it.container.update(image="installed/none:1", imagePullPolicy="Never"),
        "installed/none:1",
        "./dev images",
    ),
    "no Secret of the database": Case(
        lambda it: it.variable(URL, **DATABASE), 'secret "agent-runs-database" not found', "postgresql://USER"
    ),
    "a Secret without the database's URL": Case(with_a_secret_without_url, "couldn't find key url", "Add the key"),
    "a wrong password": Case(
        lambda it: it.variable(URL, value=it.database.replace("right-password", "wrong-password")),
        'password authentication failed for user "runs"',
        IN_THE_OVERLAY,
    ),
    "a database elsewhere": Case(
        lambda it: it.variable(URL, value="postgresql://ada:canary@127.0.0.1:1/runs"),
        f"{URL}: postgresql+asyncpg://ada:***@127.0.0.1:1/runs",
        IN_THE_OVERLAY,
    ),
    "a volume that cannot be written": Case(
        with_a_volume_that_cannot_be_written, "unable to open database file", IN_THE_OVERLAY
    ),
    "no ServiceAccount": Case(
        lambda it: it.remove("ServiceAccount", "agent-runs-worker"),
        'serviceaccount "agent-runs-worker" not found',
        "kubectl apply -k",
    ),
    "a quota without room": Case(
        lambda it: it.add("ResourceQuota", "none", spec={"hard": {"pods": "0"}}),
        "exceeded quota: none",
        "Raise the quota",
    ),
    "a node that does not exist": Case(
        lambda it: it.pod.update(nodeSelector={"gpu": "yes"}), "0/1 nodes are available", "Add a node"
    ),
    "no certificate": Case(
        lambda it: it.volume("workspaces", secret={"secretName": "agent-runs-temporal-tls"}),
        'secret "agent-runs-temporal-tls" not found',
        "tls.crt",
    ),
    "no Deployment": Case(
        lambda it: it.remove("Deployment", "agent-runs-worker"), "has no Deployment", "kubectl apply -k"
    ),
}


@pytest.fixture(scope="module")
async def findings(
    images: InstalledImages,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Mapping[str, list[Finding]]]:
    """What is found for each case; they are installed side by side, because most of the time is waiting."""
    folder = tmp_path_factory.mktemp("wrong")
    async with AsyncExitStack() as ends:
        host, temporal, _ = await ends.enter_async_context(opened_beside(folder))
        postgres = Postgres(host)
        ends.callback(postgres.remove)
        postgres.start()
        database = await postgres.remote_url("runs", "right-password")
        cluster = await ends.enter_async_context(await Cluster.connect(os.environ["KUBECONFIG"], environ={}))
        turns = asyncio.Semaphore(AT_A_TIME)

        async def found(case: Case) -> list[Finding]:
            async with turns:
                return await found_in(cluster, case, temporal, database, images.prefix)

        yield dict(zip(CASES, await asyncio.gather(*map(found, CASES.values())), strict=True))


async def found_in(cluster: Cluster, case: Case, temporal: str, database: str, registry: str) -> list[Finding]:
    """Install it with one thing wrong, and wait until something is found to be wrong."""
    namespace = f"wrong-{uuid.uuid4().hex[:8]}"
    keys = yaml.safe_load_all(await command("agent-runs", "keys", "--namespace", namespace))
    installed = Installed([*yaml.safe_load_all(built("trial")), *keys], temporal, database, registry)
    case.change(installed)
    for each in installed.documents:
        each["metadata"]["namespace"] = namespace
        for subject in each.get("subjects", ()):
            subject["namespace"] = namespace
    async with created_object(cluster, NAMESPACES, {"metadata": {"name": namespace}}):
        await command("kubectl", "apply", "-f", "-", text=yaml.safe_dump_all(installed.documents))
        found: list[Finding] = []
        for _ in range(NAMED_WITHIN):
            found = list(await deployment_findings(cluster, namespace))
            if any(case.cause in each.message for each in found):
                break
            await asyncio.sleep(1)  # events have no event
        await api_request(cluster, "DELETE", f"/apis/apps/v1/namespaces/{namespace}/deployments")
        return found


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_one_finding_with_its_remedy(findings: Mapping[str, list[Finding]], name: str) -> None:
    case = CASES[name]
    [finding] = [each for each in findings[name] if case.cause in each.message]
    assert (finding.level, finding.hint is not None and case.remedy in finding.hint) == ("error", True), finding
    assert "\n" not in finding.message
    assert "password:" not in finding.message
    assert "wrong-password" not in finding.message
