"""Agents in a namespace with a quota, whose Pod Security Admission enforces the restricted profile.

Needs KUBECONFIG and TEST_AGENT_IMAGE.
"""

import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.real_cluster.objects import api_request, created_object
from tests.real_cluster.observed_runs import observed_run
from tests.real_cluster.stack import open_real_system

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(900)]

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
QUOTA = {"requests.cpu": "2", "requests.memory": "2Gi", "limits.cpu": "6", "limits.memory": "8Gi", "pods": "3"}


async def test_agents_run_under_a_quota_and_the_restricted_profile(tmp_path: Path) -> None:
    async with AsyncExitStack() as ends:
        system = await ends.enter_async_context(open_real_system(tmp_path))
        name = f"restricted-{uuid.uuid4().hex[:8]}"
        metadata: dict[str, Any] = {"metadata": {"name": name}}
        namespace = {"metadata": {"name": name, "labels": RESTRICTED}}
        await ends.enter_async_context(created_object(system.cluster, "/api/v1/namespaces", namespace))
        quota = {**metadata, "spec": {"hard": QUOTA}}
        await api_request(system.cluster, "POST", f"/api/v1/namespaces/{name}/resourcequotas", body=quota)
        root = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "root", "image": "busybox:1.36"}]}}
        with pytest.raises(AssertionError, match="violates PodSecurity"):
            await api_request(system.cluster, "POST", f"/api/v1/namespaces/{name}/pods", body=root)
        async with observed_run(system, 3, namespace=name, command="true") as run:
            await run.assert_guarantees(await run.outcome(), None)
            assert len(run.observer.pods) == 1
