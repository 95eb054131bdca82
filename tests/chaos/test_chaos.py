"""Every line exactly once and in order, whatever befalls the log, the node and the worker."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from cluster.client import KubernetesCluster
from local.cluster import EmbeddedCluster
from tests.chaos.accidents import Accidents
from tests.chaos.workload import Workload, assert_complete, running
from transcripts.store import SqlTranscripts

TOOL = "TEST_CLUSTER_TOOL"


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
    embedded: EmbeddedCluster, store: SqlTranscripts, seed: int, workload: Workload, accidents: int
) -> None:
    embedded.faults.clear()
    async with (
        await KubernetesCluster.connect(str(embedded.kubeconfig_path), environ={}) as cluster,
        running(cluster, store, workload, timedelta(seconds=120)) as run,
    ):
        fate = Accidents(embedded, run, Random(seed))
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
async def test_no_line_is_lost_or_doubled(embedded: EmbeddedCluster, store: SqlTranscripts, seed: int) -> None:
    await survives(embedded, store, seed, Workload(lines=1000), accidents=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
async def test_no_line_is_lost_or_doubled_in_long_runs(
    embedded: EmbeddedCluster, store: SqlTranscripts, seed: int
) -> None:
    await survives(embedded, store, seed, Workload(lines=5000, pause=timedelta(seconds=0.05)), accidents=10)


async def tool(*words: str) -> None:
    """The test cluster's own tool."""
    process = await asyncio.create_subprocess_exec(
        os.environ[TOOL], *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told


@pytest.mark.real_cluster
@pytest.mark.timeout(400)
async def test_kubelet_and_api_server_may_be_killed_in_the_middle(store: SqlTranscripts) -> None:
    missing = [name for name in ("KUBECONFIG", TOOL) if name not in os.environ]
    if missing:
        pytest.skip(f"{' and '.join(missing)} must name a test cluster's kubeconfig and the tool that kills its parts")
    workload = Workload(lines=5000, pause=timedelta(seconds=1))
    async with (
        await KubernetesCluster.connect(os.environ["KUBECONFIG"], namespace="default", environ={}) as cluster,
        running(cluster, store, workload, timedelta(seconds=300)) as run,
    ):
        following = asyncio.create_task(run.stored())
        try:
            for part, sequence in (("kubelet", 500), ("apiserver", 2000), ("kubelet", 4000)):  # of about 7000
                await run.reached(sequence)
                await tool("kill", part)
                await asyncio.sleep(1)
                await tool("start", part)
            await run.release()
            stored = await following
        finally:
            following.cancel()
        assert_complete(stored, workload)
