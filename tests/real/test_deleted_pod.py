"""Somebody deletes the pod of a run on a real cluster. Needs KUBECONFIG and TEST_AGENT_IMAGE."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.create_job import reference
from cluster.client import KubernetesCluster
from contracts.identity import AttemptKey, RunKey
from contracts.messages import JobRef

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(400)]
GRACE = timedelta(seconds=30)  # what `kubectl delete pod` gives


@asynccontextmanager
async def demonstration(folder: Path, kubeconfig: str, image: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """What a run of half a minute tells while it goes on."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("agent-runs")), "demo", "--json", "--scenario", "slow-steps:30:1"),
        *("--kubeconfig", kubeconfig, "--image", image, "--state", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    assert process.stdout is not None
    stdout = process.stdout

    async def told() -> AsyncIterator[dict[str, Any]]:
        while raw := await stdout.readline():
            yield json.loads(raw)

    try:
        yield told()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def every_agent(cluster: KubernetesCluster, job: JobRef, found: set[str]) -> None:
    """Collects the ids of all pods of this Job in which an agent ever ran.

    Before Kubernetes 1.29 the Job makes another pod as soon as one is being deleted; no agent may start in it.
    """
    async with cluster.watch_pods(job) as states:
        async for pods in states:
            for pod in pods:
                agents = [one.state for one in pod.status.container_statuses]
                if any(state.running or state.terminated for state in agents):
                    found.add(pod.metadata.uid)


async def test_a_deleted_pod_is_named_keeps_its_output_and_gets_no_twin(tmp_path: Path) -> None:
    kubeconfig, image = os.environ.get("KUBECONFIG"), os.environ.get("TEST_AGENT_IMAGE")
    if not (kubeconfig and image):
        pytest.skip("KUBECONFIG and TEST_AGENT_IMAGE are not both set")
    seen: set[str] = set()
    async with (
        await KubernetesCluster.connect(kubeconfig, namespace="default", environ={}) as cluster,
        demonstration(tmp_path, kubeconfig, image) as told,
    ):
        run = await first(told, "run")
        said = 0
        while said < 4:
            said += (await first(told, "line"))["stream"] == "stdout"
        key = AttemptKey(run=RunKey(agent_id=run["agentId"], company_id="", run_id=run["runId"]))
        job = await cluster.read_job("default", key.job_name)
        assert job is not None
        collecting = asyncio.create_task(every_agent(cluster, reference(job), seen))
        (pod,) = await cluster.pods_of(reference(job))
        await cluster.delete_pod("default", pod.metadata.name, pod.metadata.uid, GRACE)
        async for entry in told:
            said += entry["type"] == "line" and entry["stream"] == "stdout" and entry["attempt"] == 1
            if entry["type"] == "outcome":
                outcome = entry["outcome"]
        collecting.cancel()
        assert await cluster.read_job("default", key.job_name) is None
    lost = outcome["attempts"][0]
    assert (lost["jobName"], lost["failureCode"]) == (key.job_name, "k8s_pod_lost")
    assert lost["receipt"]["lines"] == said
    assert lost["receipt"]["gaps"] == []
    assert seen == {pod.metadata.uid}


async def first(told: AsyncIterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The next thing of this kind."""
    async for entry in told:
        if entry["type"] == kind:
            return entry
    raise AssertionError(f"the demonstration ended without telling a {kind}")
