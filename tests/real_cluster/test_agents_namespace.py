"""A worker with the permissions of the shipped overlay runs agents in a namespace of their own.

Needs KUBECONFIG and TEST_AGENT_IMAGE. Its network plugin enforces no NetworkPolicy.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from agent_runs.doctor.permissions import REQUIRED_VERBS, missing_permissions
from agent_runs.kube.client import Cluster
from dev_stack.host_address import host_for_pods
from tests.real_cluster.installation import command
from tests.real_cluster.objects import api_request, kubeconfig_of
from tests.real_cluster.requirements import cluster_and_image
from tests.real_cluster.stack import open_real_system
from tests.support.overlays import FOLDER, PRODUCTION, built

pytestmark = [pytest.mark.real_cluster, pytest.mark.installs, pytest.mark.timeout(900)]

WORKER, AGENTS = "paperclip", "paperclip-agents"
NOT_NEEDED = {"Deployment", "PodDisruptionBudget", "PersistentVolumeClaim"}
"""Kinds that are not applied: the worker runs beside the cluster, with its transcripts in a file."""


@pytest.fixture
async def workers_kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    """The overlay is applied; the worker's identity in it."""
    kubeconfig, _ = cluster_and_image()
    documents = [each for each in yaml.safe_load_all(built(PRODUCTION)) if each["kind"] not in NOT_NEEDED]
    own = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": WORKER}}
    agents = yaml.safe_load((FOLDER / PRODUCTION / "namespace.yaml").read_text())
    async with AsyncExitStack() as ends:
        cluster = await ends.enter_async_context(await Cluster.connect(kubeconfig, environ={}))
        for namespace in (WORKER, AGENTS):
            ends.push_async_callback(api_request, cluster, "DELETE", f"/api/v1/namespaces/{namespace}")
        await command(
            "kubectl", "apply", "--validate=false", "-f", "-", text=yaml.safe_dump_all([own, agents, *documents])
        )
        path = f"/api/v1/namespaces/{WORKER}/serviceaccounts/agent-runs-worker/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        answer = await api_request(cluster, "POST", path, body=request)
        file = tmp_path / "worker.kubeconfig"
        file.write_text(kubeconfig_of(answer["status"]["token"]))
        yield file


async def test_a_worker_with_the_overlays_permissions_runs_an_agent_in_the_agents_namespace(
    workers_kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig, _ = cluster_and_image()
    async with await Cluster.connect(str(workers_kubeconfig), environ={}) as cluster:
        assert await missing_permissions(cluster, AGENTS) == []
        needed = {(verb, resource) for resource, verbs in REQUIRED_VERBS.items() for verb in verbs}
        assert set(await missing_permissions(cluster, WORKER)) == needed - {("get", "pods")}
        assert set(await missing_permissions(cluster, "kube-system")) == needed
    monkeypatch.setenv("KUBECONFIG", str(workers_kubeconfig))
    monkeypatch.setenv("AGENT_RUNS_NAMESPACE", AGENTS)
    host = await host_for_pods(Path(kubeconfig))
    async with open_real_system(tmp_path, model_host=host) as system:
        outcome = await system.outcome(system.wake("text", str(uuid.uuid4())))
    assert (outcome.error_code, outcome.receipt and outcome.receipt.state) == (None, "verified")
