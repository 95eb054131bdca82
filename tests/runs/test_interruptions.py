"""Workers that are stopped at random moments of a stream cost no line, and the receipt verifies.

The server replaces a killed worker after 30 s, five times in a run: `KILL_SEEDS=4,5,6` runs more than the usual seed.
"""

import asyncio
import os
import shlex
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowHandle

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from tests.runs.system import System, attempt_key, open_system
from tests.transcript.stored_runs import stored_runs
from workflows.agent_run import AgentRunWorkflow

STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED

KILL_SEEDS = [int(seed) for seed in os.environ.get("KILL_SEEDS", "4").split(",")]

BURST, TRICKLE, BACKLOG, END = 6_000, 6_200, 26_000, 26_500
"""Numbers at which the parts of the output end: fast, slow, then silence, then what piles up unread, then the last."""
BIG = b"0123456789" * 10_240
SCRIPT = """
write_lines() {{ awk -v from=$1 -v to=$2 -v every=$3 -v pause=$4 'BEGIN {{
  big = "0123456789"
  while (length(big) < 102400) big = big big
  big = substr(big, 1, 102400)
  for (i = from; i < to; i++) {{
    print "line " i
    if (i % 3 == 0) print "same"
    if (i % 2000 == 0) print i " " big
    if (pause && i % every == 0) {{ fflush(); system("sleep " pause) }}
  }}
}}'; }}
cat > /dev/null
write_lines 0 {burst} 100 0.02
until [ -e {folder}/trickle ]; do sleep 0.02; done
write_lines {burst} {trickle} 1 0.01
until [ -e {folder}/backlog ]; do sleep 0.02; done
write_lines {trickle} {backlog} 1 0
until [ -e {folder}/end ]; do sleep 0.02; done
write_lines {backlog} {end} 50 0.01
"""


def output(first: int, last: int) -> list[bytes]:
    """The lines that the script writes for these numbers."""
    lines: list[bytes] = []
    for number in range(first, last):
        lines.append(b"line %d" % number)
        if number % 3 == 0:
            lines.append(b"same")
        if number % 2000 == 0:
            lines.append(b"%d %s" % (number, BIG))
    return lines


def lines_before(number: int) -> int:
    return len(output(0, number))


@dataclass
class Stream:
    """A run whose output has five phases, and in each the moment at which its worker is stopped."""

    system: System
    folder: Path
    raw: dict[str, Any]
    handle: WorkflowHandle[AgentRunWorkflow, Outcome]
    random: Random

    @property
    def moments(self) -> list[Callable[[int], Awaitable[None]]]:
        """Each waits until the worker with this process id follows the stream, and then for the moment."""
        return [self.in_a_burst, self.in_a_trickle, self.in_silence, self.in_a_backlog, self.at_the_end]

    async def in_a_burst(self, worker: int) -> None:
        await self.followed_by(worker)
        await self.between(0, BURST)

    async def in_a_trickle(self, worker: int) -> None:
        await self.followed_by(worker)
        await self.stored(lines_before(BURST))
        self.allow("trickle")
        await self.between(BURST, TRICKLE)

    async def in_silence(self, worker: int) -> None:
        await self.followed_by(worker)
        await self.stored(lines_before(TRICKLE))
        await self.random_moment(3)
        assert await self.count() == lines_before(TRICKLE)

    async def in_a_backlog(self, worker: int) -> None:
        """While nobody follows, output piles up."""
        self.allow("backlog")
        await self.followed_by(worker)
        await self.stored(self.random.randrange(lines_before(TRICKLE) + 1, lines_before(BACKLOG)))

    async def at_the_end(self, worker: int) -> None:
        """While the last lines come, the container ends, the receipt is made, or the transcript is parsed."""
        await self.followed_by(worker)
        await self.stored(lines_before(BACKLOG))
        self.allow("end")
        await self.random_moment(0.8)

    def allow(self, part: str) -> None:
        (self.folder / part).touch()

    async def between(self, first: int, last: int) -> None:
        """A moment while these are stored."""
        begin, end = lines_before(first), lines_before(last)
        await self.stored(self.random.randrange(begin + 1, begin + (end - begin) // 2))
        assert begin < await self.count() < end

    async def random_moment(self, most: float) -> None:
        await asyncio.sleep(self.random.uniform(0, most))  # when exactly is what the seed decides

    async def followed_by(self, worker: int) -> None:
        """Returns once this process executes the step; its identity in Temporal ends with its process id."""
        while True:
            pending = (await self.handle.describe()).raw_description.pending_activities
            steps = [step for step in pending if step.activity_type.name == "stream_logs"]
            if steps and steps[0].state == STARTED and steps[0].last_worker_identity.endswith(f":{worker}"):
                return
            await asyncio.sleep(0.02)

    async def stored(self, count: int) -> None:
        """Returns once so many lines are stored; other processes do not notify this one, so it polls."""
        notifier = self.system.store.notifier(attempt_key(self.raw))
        while await self.count() < count:
            await notifier.wait_for_change(notifier.changes, timedelta(milliseconds=5))

    async def count(self) -> int:
        runs = await stored_runs(self.system.store, limit=1)
        return runs[0].lines if runs else 0


async def start_stream(system: System, folder: Path, seed: int) -> Stream:
    """A started run, without any worker yet."""
    script = SCRIPT.format(folder=shlex.quote(str(folder)), burst=BURST, trickle=TRICKLE, backlog=BACKLOG, end=END)
    raw = system.agent(script)
    return Stream(system, folder, raw, (await system.start(raw)).handle(system.temporal), Random(seed))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("by", "seed"),
    [*((signal.SIGTERM, seed) for seed in (1, 2, 3)), *((signal.SIGKILL, seed) for seed in KILL_SEEDS)],
)
async def test_five_workers_that_are_stopped_in_the_middle_cost_no_line(
    temporal: Client, tmp_path: Path, by: signal.Signals, seed: int
) -> None:
    async with open_system(temporal, tmp_path) as system:
        stream = await start_stream(system, tmp_path, seed)
        for moment in stream.moments:
            async with system.worker_process() as process:
                await moment(process.pid)
                process.send_signal(by)
                assert await process.wait() == (0 if by == signal.SIGTERM else -signal.SIGKILL)
        async with system.worker_process():
            outcome = await outcome_at_close(stream.handle)
        lines = await system.lines(stream.raw)
    stored, expected = [line.data for line in lines], output(0, END)
    assert len(stored) == len(expected)
    assert [number for number, line in enumerate(stored) if line != expected[number]][:5] == []
    assert all(one.sequence < other.sequence for one, other in pairwise(lines))
    assert outcome.receipt is not None
    assert (outcome.receipt.state, outcome.receipt.lines, outcome.receipt.gaps) == ("verified", len(expected), ())
