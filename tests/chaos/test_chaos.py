"""Every line exactly once and in order, whatever befalls the log, the node and the worker."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from cluster.client import KubernetesCluster
from local.cluster import EmbeddedCluster
from tests.chaos.accidents import EmbeddedAccidents
from tests.chaos.proxy import between
from tests.chaos.workload import Workload, assert_complete, running
from transcripts.store import SqlTranscripts

SIDE_BY_SIDE = 4
"""Long runs at a time, each on a cluster of its own: they mostly wait."""


@pytest.fixture(scope="module")
async def embedded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlTranscripts]:
    opened = await SqlTranscripts.open(f"sqlite+aiosqlite:///{tmp_path}/transcripts.db")
    yield opened
    await opened.close()


async def survives(
    embedded: EmbeddedCluster, store: SqlTranscripts, place: Path, seed: int, workload: Workload, accidents: int
) -> None:
    async with (
        between(embedded.kubeconfig_path, place) as network,
        await KubernetesCluster.connect(str(network.kubeconfig), environ={}) as cluster,
        running(cluster, store, workload, timedelta(seconds=120)) as run,
    ):
        fate = EmbeddedAccidents(network, run, Random(seed), embedded=embedded)
        following = asyncio.create_task(run.stored())
        try:
            await fate.happen(accidents)
            await run.release()
            stored = await following
        finally:
            following.cancel()
        assert fate.suffered >= accidents
        assert_complete(stored, workload)


@pytest.mark.parametrize("seed", range(3))
async def test_no_line_is_lost_or_doubled(
    embedded: EmbeddedCluster, store: SqlTranscripts, tmp_path: Path, seed: int
) -> None:
    await survives(embedded, store, tmp_path, seed, Workload(lines=1000), accidents=5)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 120, SIDE_BY_SIDE))
async def test_no_line_is_lost_or_doubled_in_long_runs(tmp_path: Path, first: int) -> None:
    async def alone(seed: int) -> None:
        place = tmp_path / str(seed)
        async with EmbeddedCluster(place / "cluster") as cluster:
            store = await SqlTranscripts.open(f"sqlite+aiosqlite:///{place}/transcripts.db")
            try:
                workload = Workload(lines=5000, pause=timedelta(seconds=0.05))
                await survives(cluster, store, place, seed, workload, accidents=10)
            finally:
                await store.close()

    async with asyncio.TaskGroup() as seeds:
        for seed in range(first, first + SIDE_BY_SIDE):
            seeds.create_task(alone(seed), name=f"seed {seed}")
