"""The watch that all runs share, against the API of the cluster under contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from agent_runs.contracts.messages import JobRef
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Pod
from agent_runs.kube.ownership import COMPONENT, MANAGED_BY
from agent_runs.kube.watch import WatchTiming
from tests.contract.api import TIMEOUT, Api, job

LABELS = {MANAGED_BY: "paperclip", COMPONENT: "agent-job"}
TRUSTING = WatchTiming(confirm_delay=timedelta(minutes=10), unlabelled_interval=timedelta(minutes=10))
"""Asks nothing by name, so what arrives has come by the watch."""


@pytest.fixture
async def cluster(kubeconfig: Path) -> AsyncIterator[Cluster]:
    async with await Cluster.connect(str(kubeconfig), environ={}, timing=TRUSTING) as client:
        yield client


async def create_job(api: Api, name: str, script: str) -> JobRef:
    body = job(name, script)
    body["spec"]["template"]["metadata"] = {"labels": LABELS}
    answer = await api.create("jobs", body)
    assert answer.code == 201, answer
    return JobRef(namespace=api.namespace, name=name, uid=answer.body["metadata"]["uid"], container="main")


async def next_in_phase(states: AsyncIterator[list[Pod]], *phases: str) -> Pod:
    async with asyncio.timeout(TIMEOUT):
        async for pods in states:
            if pods and pods[0].status.phase in phases:
                return pods[0]
    raise AssertionError("the watch ended")


async def test_a_pods_changes_reach_its_run_until_it_is_deleted(cluster: Cluster, api: Api, name: str) -> None:
    ref = await create_job(api, name, "trap 'exit 0' TERM; while :; do sleep 0.1; done")
    async with cluster.watch_pods(ref) as states:
        running = await next_in_phase(states, "Running")
        assert await cluster.delete_pod(
            api.namespace, running.metadata.name, running.metadata.uid, timedelta(seconds=5)
        )
        assert await cluster.delete_job(api.namespace, name, ref.uid)
        async with asyncio.timeout(TIMEOUT):
            while await anext(states):
                pass


async def test_two_runs_each_see_their_own_pod(cluster: Cluster, api: Api, name: str) -> None:
    short, failing = await create_job(api, f"{name}-a", "exit 0"), await create_job(api, f"{name}-b", "exit 3")
    async with cluster.watch_pods(short) as ones, cluster.watch_pods(failing) as others:
        one, other = await asyncio.gather(next_in_phase(ones, "Succeeded"), next_in_phase(others, "Failed"))
    assert one.metadata.name.startswith(short.name)
    status = other.container("main")
    assert status is not None
    assert status.state.terminated is not None
    assert status.state.terminated.exit_code == 3


async def test_a_watch_continues_from_the_version_of_its_list(cluster: Cluster, api: Api, name: str) -> None:
    """A connection that the server ends after a second is followed by the next without a new list."""
    ref = await create_job(api, name, "sleep 3")
    listed, version = await cluster.list_pods(api.namespace, f"job-name={name}")
    ended = False
    async with asyncio.timeout(TIMEOUT):
        while not ended:
            async for kind, pod in cluster.pod_events(
                api.namespace,
                f"job-name={name}",
                version,
                lifetime=timedelta(seconds=1),
                idle_timeout=timedelta(seconds=30),
            ):
                version = pod.metadata.resource_version
                ended = ended or (kind == "MODIFIED" and pod.status.phase == "Succeeded")
    assert listed == [] or listed[0].metadata.owner_references[0].uid == ref.uid
