"""Every line is stored exactly once and in order, whatever happens to log, node and worker."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from agent_runs.kube.client import Cluster
from agent_runs.transcript.store import TranscriptStore
from dev_stack.cluster import EmbeddedCluster
from tests.chaos.faulty_network import faulty_network
from tests.chaos.random_faults import EmbeddedFaults
from tests.chaos.workload import Workload, assert_complete, running_workload
from tests.support.sqlite import sqlite_store

CONCURRENT_RUNS = 4
"""Each has a cluster of its own, and mostly waits."""


@pytest.fixture(scope="module")
async def embedded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    async with sqlite_store(tmp_path) as opened:
        yield opened


async def assert_no_line_lost(
    embedded: EmbeddedCluster, store: TranscriptStore, folder: Path, seed: int, workload: Workload, fault_count: int
) -> None:
    async with (
        faulty_network(embedded.kubeconfig_path, folder) as network,
        await Cluster.connect(str(network.kubeconfig), environ={}) as cluster,
        running_workload(cluster, store, workload, timedelta(seconds=120)) as run,
    ):
        faults = EmbeddedFaults(network, run, Random(seed), embedded=embedded)
        following = asyncio.create_task(run.follow())
        try:
            await faults.inject(fault_count)
            await run.release()
            stored = await following
        finally:
            following.cancel()
        assert faults.hits >= fault_count
        assert_complete(stored, workload)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
async def test_no_line_is_lost_or_doubled(
    embedded: EmbeddedCluster, store: TranscriptStore, tmp_path: Path, seed: int
) -> None:
    await assert_no_line_lost(embedded, store, tmp_path, seed, Workload(lines=1000), fault_count=5)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 112, CONCURRENT_RUNS))
async def test_no_line_is_lost_or_doubled_in_long_runs(tmp_path: Path, first: int) -> None:
    async def alone(seed: int) -> None:
        folder = tmp_path / str(seed)
        async with EmbeddedCluster(folder / "cluster") as cluster, sqlite_store(folder) as store:
            workload = Workload(lines=5000, pause=timedelta(seconds=0.05))
            await assert_no_line_lost(cluster, store, folder, seed, workload, fault_count=10)

    async with asyncio.TaskGroup() as seeds:
        for seed in range(first, first + CONCURRENT_RUNS):
            seeds.create_task(alone(seed), name=f"seed {seed}")
