"""The pod of a run on a real cluster is deleted. Needs KUBECONFIG and TEST_AGENT_IMAGE."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import JobRef
from agent_runs.kube.client import Cluster
from agent_runs.kube.ownership import job_ref
from tests.real_cluster.requirements import cluster_and_image

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(900)]
GRACE = timedelta(seconds=30)  # what `kubectl delete pod` gives


@asynccontextmanager
async def demonstration(folder: Path, kubeconfig: str, image: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The JSON entries that the demonstration prints of a run of half a minute."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dev_stack", "demo", "--json", "--scenario", "slow-steps:30:1"),
        *("--kubeconfig", kubeconfig, "--image", image, "--state", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    assert process.stdout is not None
    stdout = process.stdout

    async def entries() -> AsyncIterator[dict[str, Any]]:
        while raw := await stdout.readline():
            yield json.loads(raw)

    try:
        yield entries()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def collect_agent_pods(cluster: Cluster, job: JobRef, uids: set[str]) -> None:
    """Collect the uids of all pods of this Job in which an agent ever ran.

    Before Kubernetes 1.29 a Job creates a replacement pod as soon as one is being deleted; no agent may start in it.
    """
    async with cluster.watch_pods(job) as states:
        async for pods in states:
            for pod in pods:
                agents = [one.state for one in pod.status.container_statuses]
                if any(state.running or state.terminated for state in agents):
                    uids.add(pod.metadata.uid)


async def test_a_deleted_pod_is_a_named_failure_keeps_its_output_and_gets_no_replacement(tmp_path: Path) -> None:
    kubeconfig, image = cluster_and_image()
    uids: set[str] = set()
    async with (
        await Cluster.connect(kubeconfig, namespace="default", environ={}) as cluster,
        demonstration(tmp_path, kubeconfig, image) as entries,
    ):
        run = await next_entry(entries, "run")
        line_count = 0
        while line_count < 4:
            line_count += (await next_entry(entries, "line"))["stream"] == "stdout"
        key = AttemptKey(run=RunKey(agent_id=run["agentId"], company_id="", run_id=run["runId"]))
        job = await cluster.read_job("default", key.job_name)
        assert job is not None
        collecting = asyncio.create_task(collect_agent_pods(cluster, job_ref(job), uids))
        (pod,) = await cluster.pods_of(job_ref(job))
        await cluster.delete_pod("default", pod.metadata.name, pod.metadata.uid, GRACE)
        async for entry in entries:
            line_count += entry["type"] == "line" and entry["stream"] == "stdout" and entry["attempt"] == 1
            if entry["type"] == "outcome":
                outcome = entry["outcome"]
        collecting.cancel()
        assert await cluster.read_job("default", key.job_name) is None
    lost = outcome["attempts"][0]
    assert (lost["jobName"], lost["failureCode"]) == (key.job_name, "k8s_pod_lost")
    assert lost["receipt"]["lines"] == line_count
    assert lost["receipt"]["gaps"] == []
    assert uids == {pod.metadata.uid}


async def next_entry(entries: AsyncIterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    async for entry in entries:
        if entry["type"] == kind:
            return entry
    raise AssertionError(f"the demonstration ended without a {kind}")
