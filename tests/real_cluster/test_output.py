"""Every line is stored exactly once and in order on a real cluster, whatever happens to network, node and worker.

Needs KUBECONFIG of a test cluster; the kills of its processes also TEST_CLUSTER_TOOL, the program that does it.
CHAOS_SEEDS is the number of runs (3), CHAOS_FIRST_SEED the first seed.
"""

import asyncio
import os
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from agent_runs.kube.client import Cluster
from agent_runs.transcript.store import TranscriptStore
from tests.chaos.faulty_network import faulty_network
from tests.chaos.random_faults import InjectFault, RandomFaults
from tests.chaos.workload import StoredOutput, Workload, assert_complete, running_workload
from tests.real_cluster.requirements import TOOL, Node, skip_without
from tests.support.sqlite import sqlite_store

pytestmark = [pytest.mark.real_cluster, pytest.mark.alone, pytest.mark.timeout(900)]

CONCURRENT_RUNS = 4
RUN_TIMEOUT = timedelta(seconds=300)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    async with sqlite_store(tmp_path) as opened:
        yield opened


@dataclass
class RealClusterFaults(RandomFaults):
    """In addition killed processes of the cluster, where there is a tool for that."""

    node: Node = field(kw_only=True)
    restarts: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> Sequence[InjectFault]:
        killable = TOOL in os.environ and len(self.restarts) < 2
        return [*super().kinds, *([self._process_killed] * 2 if killable else []), self._stalled]

    async def _process_killed(self) -> None:
        part = self.random.choice(["kubelet", "kubelet", "kubelet", "apiserver"])
        self.restarts.append(part)
        await self.node.restart(part)
        self.immediate.append(part)

    async def _stalled(self) -> None:
        """No response for a while, then the connection breaks."""
        self._fault("pods/{}/log", delay=self.random.uniform(1, 4), cut_after=self.random.choice([0, 50_000]))
        self.network.end_follows()


@dataclass
class ChaosResult:
    """One run, as a row of the printed table."""

    seed: int
    faults: int
    restarts: list[str]
    activity_attempts: int
    log_requests: int
    exec_requests: int
    stored: StoredOutput

    @property
    def row(self) -> str:
        lines = sum(len(self.stored.text(stream)) for stream in ("stdout", "stderr"))
        return (
            f"| {self.seed} | {self.faults} | {' '.join(self.restarts) or '-'} | {self.activity_attempts} | {lines} | "
            f"{self.stored.receipt.state} | {self.log_requests} | {self.exec_requests} |"
        )


HEAD = (
    "| seed | faults | killed | activity attempts | lines | receipt | log requests | exec requests |\n"
    + "|---" * 8
    + "|"
)


async def run_with_faults(store: TranscriptStore, folder: Path, seed: int, node: Node) -> ChaosResult:
    workload = Workload(lines=5000, pause=timedelta(seconds=0.2))
    async with (
        faulty_network(Path(os.environ["KUBECONFIG"]), folder) as network,
        await Cluster.connect(str(network.kubeconfig), namespace="default", environ={}) as cluster,
        AsyncExitStack() as stack,
    ):
        async with node.turn:  # nothing is killed while a run starts
            run = await stack.enter_async_context(running_workload(cluster, store, workload, RUN_TIMEOUT))
        faults = RealClusterFaults(network, run, Random(seed), node=node)
        following = asyncio.create_task(run.follow())
        try:
            async with asyncio.timeout(RUN_TIMEOUT.total_seconds()):
                await faults.inject(10)
                await run.release()
                stored = await following
        finally:
            following.cancel()
    assert faults.hits >= 10
    assert_complete(stored, workload)
    count = network.count
    return ChaosResult(seed, faults.hits, faults.restarts, run.activity_attempts, count("/log"), count("/exec"), stored)


def _row(end: ChaosResult | BaseException) -> str:
    return end.row if isinstance(end, ChaosResult) else "".join(traceback.format_exception(end))


async def test_no_line_is_lost_or_doubled_on_a_real_cluster(store: TranscriptStore, tmp_path: Path) -> None:
    skip_without("KUBECONFIG")
    first, many = int(os.environ.get("CHAOS_FIRST_SEED", "0")), int(os.environ.get("CHAOS_SEEDS", "3"))
    slots, node = asyncio.Semaphore(CONCURRENT_RUNS), Node()

    async def one(seed: int) -> ChaosResult:
        async with slots:
            (folder := tmp_path / str(seed)).mkdir()
            return await run_with_faults(store, folder, seed, node)

    ends = await asyncio.gather(*map(one, range(first, first + many)), return_exceptions=True)
    print(HEAD, *map(_row, ends), sep="\n")
    failed = [end for end in ends if isinstance(end, BaseException)]
    if failed:
        raise failed[0]


async def test_kubelet_and_api_server_may_be_killed_in_the_middle(store: TranscriptStore) -> None:
    skip_without("KUBECONFIG", TOOL)
    workload, node = Workload(lines=5000, pause=timedelta(seconds=0.5)), Node()
    async with (
        await Cluster.connect(os.environ["KUBECONFIG"], namespace="default", environ={}) as cluster,
        running_workload(cluster, store, workload, RUN_TIMEOUT) as run,
    ):
        following = asyncio.create_task(run.follow())
        try:
            for part, sequence in (("kubelet", 500), ("apiserver", 2000), ("kubelet", 4000)):  # of about 7000
                await run.until_stored(sequence)
                await node.restart(part)
            await run.release()
            stored = await following
        finally:
            following.cancel()
        assert_complete(stored, workload)
