"""A reader that stalls while the log is rotated twice: what it missed is backfilled, or is a gap of exact size."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from agent_runs.contracts.outcome import Gap
from agent_runs.contracts.pod import AGENT_CONTAINER, SIDECAR_CONTAINER
from agent_runs.kube.client import Cluster
from agent_runs.logs.buffer import Batch
from agent_runs.logs.follower import Follower
from agent_runs.logs.frames import Frame, FrameReader
from agent_runs.logs.source import REPLAY_COMMAND
from agent_runs.logs.stored_output import Tally
from agent_runs.transcript.lines import Line
from dev_stack.cluster import EmbeddedCluster
from tests.chaos.workload import FollowedRun, Workload, running_workload
from tests.support.sqlite import sqlite_store

PART = 500  # lines of 4000 bytes
PROGRAM = """
for part in 0 1 2; do
  awk -v part=$part 'BEGIN { for (i = 0; i < %d; i++) printf "%%d %%4000d\\\\n", part * %d + i, 0 }'
  until test -e /agent-run/output/go$part; do sleep 0.02; done
done
"""


@dataclass(frozen=True)
class Parts(Workload):
    """Three parts of `PART` lines; after each it waits for a file."""

    @property
    def program(self) -> str:
        return (PROGRAM % (PART, PART)).replace("\\\\", "\\")


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[tuple[EmbeddedCluster, FollowedRun]]:
    async with (
        EmbeddedCluster(tmp_path / "cluster") as embedded,
        await Cluster.connect(str(embedded.kubeconfig_path), environ={}) as cluster,
        sqlite_store(tmp_path) as store,
        running_workload(cluster, store, Parts(lines=3 * PART, hold=timedelta()), timedelta(seconds=60)) as started,
    ):
        yield embedded, started


@pytest.mark.parametrize("at_the_end", [False, True], ids=["two rotations", "and one after the last frame"])
async def test_what_nobody_read_before_the_agents_end_is_complete(tmp_path: Path, at_the_end: bool) -> None:
    async with (
        EmbeddedCluster(tmp_path / "cluster") as embedded,
        await Cluster.connect(str(embedded.kubeconfig_path), environ={}) as cluster,
        sqlite_store(tmp_path) as store,
        running_workload(cluster, store, Parts(lines=3 * PART), timedelta(seconds=60)) as run,
    ):
        for part in range(3):
            await until_forwarded(run, PART * (part + 1))
            if part < 2:
                embedded.faults.rotate_log(run.pod.name, SIDECAR_CONTAINER)
            await go_on(run, part)
        async with cluster.watch_pods(run.job) as states:
            async for pods in states:
                agent = pods[0].container(AGENT_CONTAINER)
                if agent is not None and agent.state.terminated is not None:
                    break
        if at_the_end:
            await until_forwarded(run, 3 * PART + 1)  # the last frame
            embedded.faults.rotate_log(run.pod.name, SIDECAR_CONTAINER)
        else:
            assert await first_frame(run) > 2 * PART
        follower = Follower(run.cluster, run.job, run.pod)
        async with follower:
            lines, gaps = await rest_of(follower, Batch())
    assert (numbers(lines), gaps) == ([*range(3 * PART)], [])
    tally = Tally()
    tally.add(lines)
    assert tally.receipt(follower.last_frame).state == "verified"


@asynccontextmanager
async def stalled(embedded: EmbeddedCluster, run: FollowedRun) -> AsyncIterator[tuple[Follower, Batch]]:
    """A follower whose consumer has taken one batch and then none until the last part is in the third log file.

    Its connection ends early, so that the kernel's buffers cannot hold what it did not take.
    """
    embedded.faults.http(path=f"pods/{run.pod.name}/log", cut_after=400_000, clean=True)
    follower = Follower(run.cluster, run.job, run.pod, buffer=64 * 1024)
    async with follower:
        first = await follower.next_batch()
        assert first is not None
        for part in range(2):
            await until_forwarded(run, PART * (part + 1))
            embedded.faults.rotate_log(run.pod.name, SIDECAR_CONTAINER)
            await go_on(run, part)
        await until_forwarded(run, PART * 3)
        yield follower, first


async def go_on(run: FollowedRun, part: int) -> None:
    """Let the agent write its next part, or end.

    By the sidecar: the agent's container ends after its last part, and a command that is executed there may then have
    no answer, so that it would be repeated for ever.
    """
    await run.execute("touch", f"/agent-run/output/go{part}", container=SIDECAR_CONTAINER)


async def until_forwarded(run: FollowedRun, lines: int) -> None:
    """Each line is one frame, after the first one of the log."""
    number = str(lines + 1)
    while not await run.execute(*REPLAY_COMMAND, number, number, container=SIDECAR_CONTAINER):
        pass


async def rest_of(follower: Follower, first: Batch) -> tuple[list[Line], list[Gap]]:
    lines, gaps = list(first.lines), list(first.gaps)
    async for batch in follower:
        lines += batch.lines
        gaps += batch.gaps
    return lines, gaps


async def first_frame(run: FollowedRun) -> int:
    """Number of the oldest frame that the log still has."""
    opened = run.cluster.open_log(run.pod.namespace, run.pod.name, SIDECAR_CONTAINER, follow=False, timestamps=False)
    async with opened as pieces:
        frames = FrameReader().feed(b"".join([piece async for piece in pieces]))
    assert isinstance(frames[0], Frame)
    return frames[0].seq


def numbers(lines: list[Line]) -> list[int]:
    return [int(line.data.split()[0]) for line in lines]


async def test_what_a_stalled_reader_missed_is_backfilled_while_the_container_runs(
    run: tuple[EmbeddedCluster, FollowedRun],
) -> None:
    embedded, followed_run = run
    async with stalled(embedded, followed_run) as (follower, first):
        lines, gaps = list(first.lines), list(first.gaps)
        while len(lines) < 3 * PART:
            batch = await follower.next_batch()
            assert batch is not None
            lines += batch.lines
            gaps += batch.gaps
        await go_on(followed_run, 2)
        more, more_gaps = await rest_of(follower, Batch())
    assert numbers(lines + more) == [*range(3 * PART)]
    assert gaps + more_gaps == []
    assert follower.backfilled > PART // 2
    tally = Tally()
    tally.add(lines + more)
    assert tally.receipt(follower.last_frame).state == "verified"


async def test_what_a_stalled_reader_missed_for_good_is_a_gap_of_exact_size(
    run: tuple[EmbeddedCluster, FollowedRun],
) -> None:
    embedded, followed_run = run
    async with stalled(embedded, followed_run) as (follower, first):
        await go_on(followed_run, 2)
        async with followed_run.cluster.watch_pods(followed_run.job) as states:
            async for pods in states:
                if pods[0].status.phase == "Succeeded":
                    break
        lines, gaps = await rest_of(follower, first)
    stored = numbers([line for line in lines if line.whole])
    assert stored == sorted(set(stored))
    oldest = await first_frame(followed_run)
    (gap,) = gaps
    before = [line.sequence for line in lines if line.sequence < oldest]
    assert gap.frames is not None
    assert gap.after_sequence >= max(before)
    assert gap.after_sequence + gap.frames + 1 == oldest
    assert gap.frames >= 3 * PART - len(lines) > PART // 2
    tally = Tally()
    tally.add(lines)
    receipt = tally.receipt(follower.last_frame, gaps)
    assert (receipt.state, receipt.gaps) == ("differs", tuple(gaps))
