"""Every line exactly once and in order on a real cluster, whatever befalls network, node, API server and worker.

Needs KUBECONFIG of a test cluster; what kills its parts also TEST_CLUSTER_TOOL, the program that does. CHAOS_SEEDS
says how many runs there are (3), CHAOS_FIRST_SEED which is the first.
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

from cluster.client import KubernetesCluster
from tests.chaos.accidents import Accident, Accidents
from tests.chaos.proxy import between
from tests.chaos.workload import Stored, Workload, assert_complete, running
from transcripts.store import SqlTranscripts

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(590)]

TOOL = "TEST_CLUSTER_TOOL"
SIDE_BY_SIDE = 4
PATIENCE = timedelta(seconds=300)


def needed(*names: str) -> None:
    missing = [name for name in names if name not in os.environ]
    if missing:
        pytest.skip(f"{' and '.join(missing)} must name a test cluster's kubeconfig and the tool that kills its parts")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlTranscripts]:
    opened = await SqlTranscripts.open(f"sqlite+aiosqlite:///{tmp_path}/transcripts.db")
    yield opened
    await opened.close()


async def tool(*words: str) -> None:
    """The test cluster's own tool."""
    process = await asyncio.create_subprocess_exec(
        os.environ[TOOL], *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told


@dataclass
class Node:
    """The parts of the cluster, which all runs share: one is down at a time."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def restart(self, part: str) -> None:
        """SIGKILL, a second without, and back."""
        async with self.turn:
            await tool("kill", part)
            try:
                await asyncio.sleep(1)
            finally:
                await tool("start", part)


@dataclass
class RealAccidents(Accidents):
    """What goes wrong on the way, and killed parts of the cluster where there is a tool for that."""

    node: Node = field(kw_only=True)
    restarts: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> Sequence[Accident]:
        killable = TOOL in os.environ and len(self.restarts) < 2
        return [*super().kinds, *([self._kubelet] * 2 if killable else []), self._stalled]

    async def _kubelet(self) -> None:
        part = self.random.choice(["kubelet", "kubelet", "kubelet", "apiserver"])
        self.restarts.append(part)
        await self.node.restart(part)
        self.done.append(part)

    async def _stalled(self) -> None:
        """Nobody answers for a while, then the connection breaks."""
        self._order("pods/{}/log", delay=self.random.uniform(1, 4), cut_after=self.random.choice([0, 50_000]))
        self.network.end_follows()


@dataclass
class Told:
    """One row of the table."""

    seed: int
    faults: int
    restarts: list[str]
    tries: int
    log_requests: int
    exec_requests: int
    stored: Stored

    @property
    def row(self) -> str:
        lines = sum(len(self.stored.text(stream)) for stream in ("stdout", "stderr"))
        return (
            f"| {self.seed} | {self.faults} | {' '.join(self.restarts) or '-'} | {self.tries} | {lines} | "
            f"{self.stored.receipt.state} | {self.log_requests} | {self.exec_requests} |"
        )


HEAD = (
    "| seed | faults | killed | tries of the step | lines | receipt | log requests | exec requests |\n"
    + "|---" * 8
    + "|"
)


async def survives(store: SqlTranscripts, place: Path, seed: int, node: Node) -> Told:
    workload = Workload(lines=5000, pause=timedelta(seconds=0.2))
    async with (
        between(Path(os.environ["KUBECONFIG"]), place) as network,
        await KubernetesCluster.connect(str(network.kubeconfig), namespace="default", environ={}) as cluster,
        AsyncExitStack() as stack,
    ):
        async with node.turn:  # nothing is killed while a run is being made
            run = await stack.enter_async_context(running(cluster, store, workload, PATIENCE))
        fate = RealAccidents(network, run, Random(seed), node=node)
        following = asyncio.create_task(run.stored())
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                await fate.happen(10)
                await run.release()
                stored = await following
        finally:
            following.cancel()
    assert fate.suffered >= 10
    assert_complete(stored, workload)
    count = network.count
    return Told(seed, fate.suffered, fate.restarts, run.tries, count("/log"), count("/exec"), stored)


def _said(end: Told | BaseException) -> str:
    return end.row if isinstance(end, Told) else "".join(traceback.format_exception(end))


async def test_no_line_is_lost_or_doubled_on_a_real_cluster(store: SqlTranscripts, tmp_path: Path) -> None:
    needed("KUBECONFIG")
    first, many = int(os.environ.get("CHAOS_FIRST_SEED", "0")), int(os.environ.get("CHAOS_SEEDS", "3"))
    room, node = asyncio.Semaphore(SIDE_BY_SIDE), Node()

    async def one(seed: int) -> Told:
        async with room:
            (place := tmp_path / str(seed)).mkdir()
            return await survives(store, place, seed, node)

    ends = await asyncio.gather(*map(one, range(first, first + many)), return_exceptions=True)
    print(HEAD, *map(_said, ends), sep="\n")
    failed = [end for end in ends if isinstance(end, BaseException)]
    if failed:
        raise failed[0]


async def test_kubelet_and_api_server_may_be_killed_in_the_middle(store: SqlTranscripts) -> None:
    needed("KUBECONFIG", TOOL)
    workload, node = Workload(lines=5000, pause=timedelta(seconds=0.5)), Node()
    async with (
        await KubernetesCluster.connect(os.environ["KUBECONFIG"], namespace="default", environ={}) as cluster,
        running(cluster, store, workload, PATIENCE) as run,
    ):
        following = asyncio.create_task(run.stored())
        try:
            for part, sequence in (("kubelet", 500), ("apiserver", 2000), ("kubelet", 4000)):  # of about 7000
                await run.reached(sequence)
                await node.restart(part)
            await run.release()
            stored = await following
        finally:
            following.cancel()
        assert_complete(stored, workload)
