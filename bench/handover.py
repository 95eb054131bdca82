"""How long a live stream pauses when its worker ends: by SIGTERM, which hands it off, or by SIGKILL.

Two worker processes, as in production, on Temporal's dev server and the embedded cluster; one agent, a shell script,
writes a numbered line every 10 ms. At random moments the worker that runs `stream_logs` gets the signal;
measured is the time from then to the first line that the other worker has stored, polled every 2 ms. Then a new worker
replaces the ended one. `python -m bench.handover [ROLLS [KILLS]]` prints a Markdown table, and checks that all
hand-offs together lose no line.
"""

import asyncio
import os
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import WorkflowHandle

from agent_runs.client.connection import run_to_end
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.outcome import Outcome
from bench.reports import p99
from tests.runs.system import System, attempt_key, open_system
from tests.support.temporal import start_temporal
from workflows.activity_calls import SHORT_HEARTBEAT_TIMEOUT
from workflows.agent_run import AgentRunWorkflow

POLL_INTERVAL: Final = 0.002
HAND_OFF_TIMEOUT: Final = 180
"""Seconds for one hand-off: a stream that has ended by itself has none."""
SCRIPT: Final = "cat > /dev/null\ni=0\nuntil [ -e {stop} ]; do echo $i; i=$((i+1)); sleep 0.01; done\n"
STORED_STATE: Final = """
SELECT writer_since, writer_number,
  (SELECT max(sequence) FROM lines WHERE lines.run = attempts.run AND lines.attempt = attempts.attempt)
FROM attempts WHERE run = ?
"""


@dataclass(frozen=True)
class StoredState:
    """A transcript as it is stored at one moment."""

    writer: tuple[Any, ...]
    last: int


@dataclass
class Workers:
    """Worker processes by their pid, started as `python -m worker` is in production."""

    environment: dict[str, str]
    alive: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self) -> None:
        """Returns once the new one is ready."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "worker"), env=self.environment, stdout=asyncio.subprocess.PIPE
        )
        self.alive[process.pid] = process
        assert process.stdout is not None
        while b"worker.started" not in (line := await process.stdout.readline()):
            assert line, "the worker ended before it was ready"
        asyncio.get_running_loop().create_task(process.stdout.read())

    async def replace(self, pid: int) -> None:
        """Waits for the end of a worker that got a signal, and starts another."""
        await self.alive.pop(pid).wait()
        await self.start()

    async def stop(self) -> None:
        for process in self.alive.values():
            process.terminate()
            await process.wait()


@dataclass
class Stream:
    """One agent's output on its way into the store."""

    handle: WorkflowHandle[AgentRunWorkflow, Outcome]
    key: AttemptKey
    database: sqlite3.Connection

    def stored_state(self) -> StoredState:
        """Who writes, and how far it has come."""
        *writer, last = self.database.execute(STORED_STATE, (self.key.run.name,)).fetchone()
        return StoredState(tuple(writer), last)

    async def wait_for(self, condition: Callable[[StoredState], bool]) -> StoredState:
        while True:
            if condition(now := self.stored_state()):
                return now
            await asyncio.sleep(POLL_INTERVAL)

    async def wait_for_lines(self) -> None:
        before = self.stored_state()
        await self.wait_for(lambda now: now.last > before.last + 20)

    async def follower_pid(self) -> int:
        """Process id of the worker that follows the stream; it is in the worker's identity."""
        while True:
            pending = (await self.handle.describe()).raw_description.pending_activities
            for activity in pending:
                started = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
                if started and activity.activity_type.name == "stream_logs":
                    return int(activity.last_worker_identity.rsplit(":", 1)[1])
            await asyncio.sleep(POLL_INTERVAL)


@dataclass
class Bench:
    """A system with two workers."""

    system: System
    workers: Workers

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Stream]:
        """A run whose agent writes; at the end every line must be there once."""
        system, stop = self.system, self.system.programs / f"stop-{uuid.uuid4()}"
        raw = system.agent(SCRIPT.format(stop=stop))
        raw["config"]["timeoutSec"] = 0  # a busy machine needs long
        handle = (await system.start(raw)).handle(system.temporal)
        await system.until_stored(raw)
        key = attempt_key(raw)
        with closing(sqlite3.connect(system.settings.transcripts.removeprefix("sqlite:///"))) as database:
            yield Stream(handle, key, database)
        stop.touch()
        outcome = await outcome_at_close(handle)
        texts = [line.data for line in await system.store.read(key, limit=10_000_000, max_bytes=1 << 40)]
        numbers = [int(text) for text in texts if text.isdigit()]
        wrong = [place for place, number in enumerate(numbers) if number != place][:1]
        near = [numbers[max(0, place - 3) : place + 5] for place in wrong]
        assert not wrong, f"missing or doubled at line {wrong} of {len(numbers)}, {near}: {outcome}"
        assert outcome.receipt is not None
        assert outcome.receipt.state == "verified", outcome.receipt

    async def hand_off(self, stream: Stream, by: signal.Signals) -> float:
        """Seconds from the signal to the first line that the next worker has stored."""
        await stream.wait_for_lines()
        pid = await stream.follower_pid()
        writer = stream.stored_state().writer
        began = time.perf_counter()
        os.kill(pid, by)
        claimed = await stream.wait_for(lambda now: now.writer != writer)  # from here on the old one cannot write
        await stream.wait_for(lambda now: now.last > claimed.last)
        took = time.perf_counter() - began
        await self.workers.replace(pid)
        return took


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        environment = await parts.enter_async_context(await start_temporal())
        system = await parts.enter_async_context(open_system(environment.client, folder))
        workers = Workers({**os.environ, **system.environment, **system.worker_environment})
        parts.push_async_callback(workers.stop)
        for _ in range(2):
            await workers.start()
        yield Bench(system, workers)


async def measure(rolls: int, kills: int) -> dict[signal.Signals, list[float]]:
    """Seconds of each hand-off. All of one kind happen to one run."""
    random = Random(1)
    took: dict[signal.Signals, list[float]] = {}
    async with open_bench() as bench:
        for by, count in ((signal.SIGTERM, rolls), (signal.SIGKILL, kills)):
            took[by] = []
            async with bench.stream() as stream:
                for _ in range(count):
                    await asyncio.sleep(random.uniform(0, 3))  # anywhere between two heartbeats
                    async with asyncio.timeout(HAND_OFF_TIMEOUT):
                        took[by].append(await bench.hand_off(stream, by))
                    print(f"{by.name} {took[by][-1]:.3f} s", file=sys.stderr)
    return took


def table(took: dict[signal.Signals, list[float]]) -> str:
    lines = ["| from the signal to the next worker's first line | p50 s | p99 s | max s |", "|---|---:|---:|---:|"]
    for by, values in filter(lambda one: one[1], took.items()):
        shares = f"{statistics.median(values):.3f} | {p99(values):.3f} | {max(values):.3f}"
        lines.append(f"| {by.name}, {len(values)} times in one run | {shares} |")
    lines.append(
        f"\nHeartbeat time-out {SHORT_HEARTBEAT_TIMEOUT.total_seconds():.0f} s. Every line once and in order, verified."
    )
    return "\n".join(lines)


def main() -> None:
    counts = [int(argument) for argument in sys.argv[1:3]]
    rolls, kills = counts + [25, 5][len(counts) :]

    async def run() -> None:
        print(table(await measure(rolls, kills)))

    run_to_end(run)


if __name__ == "__main__":
    main()
