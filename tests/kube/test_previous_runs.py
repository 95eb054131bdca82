"""What previous runs of an agent left: what may still run ends, what has ended stays."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.doctor import trial
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Pod, container_started, has_ended, work_ended
from agent_runs.kube.ownership import owner_labels
from agent_runs.kube.previous_runs import remove_previous_runs
from dev_stack.cluster import EmbeddedCluster
from tests.job.inputs import create_job_input
from tests.kube.pods import container, job, pod, terminated, waiting
from tests.kube.test_client import LABELS, NAMESPACE, job_manifest, start_job

NEXT_RUN = create_job_input().attempt.run.model_copy(update={"run_id": "the-next-run"})


@pytest.fixture
async def next_run(cluster: Cluster) -> AsyncIterator[RunKey]:
    """The agent's next run; the Jobs of its previous runs end with the test."""
    yield NEXT_RUN
    for left in await cluster.jobs_of_agent(NAMESPACE, NEXT_RUN.agent_id):
        await cluster.delete_job(NAMESPACE, left.metadata.name, left.metadata.uid, timedelta())


def previous_job(name: str, script: str) -> dict[str, Any]:
    """A Job of one of the agent's earlier runs."""
    manifest = job_manifest(name, script)
    manifest["metadata"]["labels"] = LABELS
    return manifest


async def remove(cluster: Cluster, run: RunKey) -> tuple[str, ...]:
    return await remove_previous_runs(cluster, NAMESPACE, run, grace=timedelta(seconds=1), progress=lambda _: None)


async def test_a_job_whose_container_has_ended_but_whose_phase_has_not_is_kept(
    embedded: EmbeddedCluster, cluster: Cluster, next_run: RunKey, name: str
) -> None:
    embedded.faults.keep_sandboxes()
    ref = await start_job(cluster, previous_job(name, "true"))
    async with cluster.watch_pods(ref) as states, asyncio.timeout(60):
        async for pods in states:
            if pods and has_ended(pods[0]):
                break
    assert pods is not None
    assert pods[0].status.phase == "Running"
    assert await remove(cluster, next_run) == ()
    kept = await cluster.read_job(NAMESPACE, name)
    assert kept is not None
    assert kept.metadata.deletion_timestamp is None


async def test_a_job_whose_container_runs_is_ended(cluster: Cluster, next_run: RunKey, name: str) -> None:
    ref = await start_job(cluster, previous_job(name, "sleep 600"))
    async with cluster.watch_pods(ref) as states, asyncio.timeout(60):
        async for pods in states:
            if pods and pods[0].status.phase == "Running":
                break
    assert pods is not None
    assert await remove(cluster, next_run) == (pods[0].metadata.name,)
    assert await cluster.read_job(NAMESPACE, name) is None


async def test_a_running_job_of_an_agent_with_an_id_that_looks_alike_is_left_alone(cluster: Cluster, name: str) -> None:
    other, ours = (
        RunKey(agent_id=each, company_id="c", run_id=run) for each, run in (("Probe-AX", "r1"), ("probe-ax", "r2"))
    )
    manifest = job_manifest(name, "sleep 600")
    labels = owner_labels(AttemptKey(run=other))
    manifest["metadata"]["labels"] = manifest["spec"]["template"]["metadata"]["labels"] = labels
    ref = await start_job(cluster, manifest)
    async with cluster.watch_pods(ref) as states, asyncio.timeout(60):
        async for pods in states:
            if pods and pods[0].status.phase == "Running":
                break
    assert await remove(cluster, ours) == ()
    kept = await cluster.read_job(NAMESPACE, name)
    assert kept is not None
    assert kept.metadata.deletion_timestamp is None
    assert len(await remove(cluster, other.model_copy(update={"run_id": "next"}))) == 1


def with_injected_container(name: str) -> dict[str, Any]:
    """A Job whose agent ends, beside a container that does not."""
    manifest = previous_job(name, "true")
    [agent] = manifest["spec"]["template"]["spec"]["containers"]
    injected = {**agent, "name": "istio-proxy", "command": ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]}
    manifest["spec"]["template"]["spec"]["containers"].append(injected)
    return manifest


async def test_an_injected_container_that_never_ends_does_not_delay_the_answer_of_a_tried_pod(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "ANSWER_LIMIT", timedelta(seconds=30))
    ref = await start_job(cluster, with_injected_container(name))
    tried = await trial._ended(cluster, ref, lambda: None)
    await cluster.delete_job(NAMESPACE, name, ref.uid, timedelta())
    assert isinstance(tried, Pod), tried


async def test_an_injected_container_that_never_ends_does_not_delay_the_next_run(
    cluster: Cluster, next_run: RunKey, name: str
) -> None:
    ref = await start_job(cluster, with_injected_container(name))
    async with cluster.watch_pods(ref) as states, asyncio.timeout(60):
        async for pods in states:
            if pods and work_ended(pods[0]) and container_started(pods[0], "istio-proxy"):
                break
    assert pods is not None
    assert not has_ended(pods[0])
    hour = timedelta(hours=1)
    async with asyncio.timeout(60):
        await remove_previous_runs(cluster, NAMESPACE, next_run, grace=hour, progress=lambda _: None)
    await cluster.delete_pod(NAMESPACE, pods[0].metadata.name, pods[0].metadata.uid, timedelta())


@pytest.mark.parametrize(
    ("condition", "success", "failure"),
    [
        ("Complete", True, False),
        ("SuccessCriteriaMet", True, False),
        ("Failed", False, True),
        ("FailureTarget", False, True),
        ("Suspended", False, False),
    ],
)
def test_a_job_has_ended_once_its_controller_has_decided(condition: str, success: bool, failure: bool) -> None:
    decided = job(condition)
    assert (decided.success is not None, decided.failure is not None) == (success, failure)


def test_a_pod_whose_init_container_failed_has_ended() -> None:
    assert has_ended(pod(waiting("PodInitializing"), init=[terminated(1, name="init")], phase="Failed"))
    assert not has_ended(pod(waiting("PodInitializing"), init=[terminated(0, "Completed", name="init")]))


def test_a_pod_whose_injected_init_container_restarts_has_not_ended() -> None:
    restarts = [terminated(1, name="injected")]
    assert not has_ended(pod(container(running={}), init=restarts, phase="Running"))
    assert not has_ended(pod(waiting("PodInitializing"), init=restarts))
