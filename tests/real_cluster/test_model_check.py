"""The real OpenCode in the agents' image is asked for the model before a run's Job is made.

Needs KUBECONFIG and TEST_AGENT_IMAGE.
"""

import uuid
from pathlib import Path

import pytest

from agent_runs.client.attach import attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.kube.client import KubernetesCluster
from tests.real_cluster.objects import api_request
from tests.real_cluster.stack import open_real_system

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(900)]


async def jobs(cluster: KubernetesCluster) -> set[str]:
    items = (await api_request(cluster, "GET", f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"))["items"]
    return {each["metadata"]["name"] for each in items if "deletionTimestamp" not in each["metadata"]}


async def test_an_unknown_model_is_refused_with_opencodes_own_names_and_nothing_is_left(tmp_path: Path) -> None:
    async with open_real_system(tmp_path) as system:
        before = await jobs(system.cluster)
        wake = system.wake("text", str(uuid.uuid4()), model="anthropic/claude-haiku-45")
        ticket = await attach(system.stack.client, system.stack.settings, wake)
        outcome = await outcome_at_close(ticket.handle(system.stack.client))
        assert outcome.error_code == "model_unknown", outcome.error_message
        assert "the nearest are anthropic/claude-haiku-4-5" in (outcome.error_message or "")
        assert outcome.stop is not None
        assert not outcome.stop.agent_started
        assert await jobs(system.cluster) <= before
