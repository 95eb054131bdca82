"""What following costs: N runs at 5 lines/s each through the log, the live fold and the store in one worker process.

Run as `python -m bench.follow [--runs 500] [--seconds 30] [--readers 20] [--plain]`; it measures one run, then N. Four
processes: the agents (`bench.agents`), the worker with the real activity on a real Temporal server (`bench.follower`),
bare aiohttp on the same streams (`bench.bare`), and this one, which reads transcripts by SSE and the others' CPU time.

With `--workers 2` it measures that many workers instead, with N runs each, on one queue and one PostgreSQL of its own.
The readers are spread over the workers, whichever of them follows their run.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from agent_runs.client.connection import run_to_end
from agent_runs.client.links import load_tokens, run_url
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import Ended, JobRef, PodRef, StreamLogs
from agent_runs.transcript.tokens import authorization
from bench.agents import NAMESPACE, RATE
from bench.follower import QUEUE, settings
from bench.reports import cpu_seconds, machine, p99
from bench.store import server_cpu
from tests.support.temporal import start_temporal
from tests.transcript.postgres import Postgres
from workflows.activity_calls import SHORT_HEARTBEAT_TIMEOUT

IDLE = timedelta(seconds=10)
"""Measured before any agent writes: what silent runs cost."""
WARM_UP = timedelta(seconds=3)
_WRITTEN = re.compile(rb'timestamp\\?":(\d{13})')


@workflow.defn
class FollowWorkflow:
    """A run of one activity: the one that is measured."""

    @workflow.run
    async def run(self, input: StreamLogs) -> Ended:
        end: Ended = await workflow.execute_activity(
            "stream_logs",
            input,
            task_queue=QUEUE,
            result_type=Ended,
            start_to_close_timeout=timedelta(days=1),
            heartbeat_timeout=SHORT_HEARTBEAT_TIMEOUT,
        )
        return end


@dataclass
class Process:
    """A process of this measurement. `first_line` is the first line of its output: it is ready."""

    process: asyncio.subprocess.Process
    first_line: str = ""

    @property
    def cpu(self) -> float:
        """CPU seconds it has used, all threads."""
        return cpu_seconds(self.process.pid)

    def memory(self, kind: str = "VmRSS") -> int:
        """MiB of resident memory; `VmHWM` is the most it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{kind}:")[2].split()[0]) // 1024

    async def end(self) -> str:
        """End it and return the rest of its output."""
        return (await self.process.communicate(b""))[0].decode()


@asynccontextmanager
async def process(module: str, *arguments: object, announces: bool = True) -> AsyncIterator[Process]:
    """Run a module of ours; one that `announces` is ready once it has written a line."""
    pipe = asyncio.subprocess.PIPE
    command = ["-m", module, *map(str, arguments)]
    child = Process(await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe))
    try:
        if announces and child.process.stdout is not None:
            child.first_line = (await child.process.stdout.readline()).decode().strip()
            if not child.first_line:
                raise RuntimeError(f"{module} ended before it was ready")
        yield child
    finally:
        if child.process.returncode is None:
            child.process.kill()
            await child.process.wait()


@dataclass
class Sample:
    """What one measurement saw. CPU in seconds (`idle`: per second), delays in milliseconds, memory in MiB."""

    runs: int
    readers: int
    lines: int = 0
    took: float = 0
    idle: float = 0
    worker: float = 0
    database: float = 0
    bare: float = 0
    agents: float = 0
    memory: int = 0
    peak: int = 0
    delays: list[float] = field(default_factory=list)
    verified: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    longest: float = 0
    retries: int = 0


def run_of(number: int) -> RunKey:
    return RunKey(agent_id=f"agent-{number}", company_id="bench", run_id=f"run-{number}")


def stream_input(number: int) -> StreamLogs:
    name = f"agent-{number}"
    return StreamLogs(
        attempt=AttemptKey(run=run_of(number)),
        job=JobRef(namespace=NAMESPACE, name=name, uid=name),
        pod=PodRef(namespace=NAMESPACE, name=name, uid=name),
    )


async def read_live(session: aiohttp.ClientSession, address: str, token: str, delays: list[float]) -> None:
    """Reads one transcript live; notes how old each line is when it arrives, to the millisecond."""
    async with session.get(f"{address}/events", headers=authorization(token)) as stream:
        async for line in stream.content:
            if line.startswith(b"data:") and (written := _WRITTEN.search(line)):
                delays.append(time.time() * 1000 - int(written[1]))
            if line.startswith(b"event: end"):
                return


async def measure(
    runs: int, seconds: int, readers: int, *, plain: bool, worker_count: int = 1, server: Postgres | None = None
) -> Sample:
    """Measure with processes of its own; the agents write for `seconds`."""
    sample = Sample(runs, min(runs, readers))
    async with AsyncExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        if server is not None:
            (folder / "store").write_text(server.url())
        environment = await parts.enter_async_context(await start_temporal())
        (folder / "temporal").write_text(environment.client.service_client.config.target_host)
        agents = await parts.enter_async_context(process("bench.agents", runs, folder, *(["--plain"] if plain else [])))
        workers = [await parts.enter_async_context(process("bench.follower", folder)) for _ in range(worker_count)]
        bare = await parts.enter_async_context(process("bench.bare", runs, folder, announces=False))
        workflow_worker = Worker(
            environment.client,
            task_queue="workflows",
            workflows=[FollowWorkflow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_cached_workflows=2 * runs,
        )
        await parts.enter_async_context(workflow_worker)
        handles = [
            await environment.client.start_workflow(
                FollowWorkflow.run, stream_input(number), id=f"following-{number}", task_queue="workflows"
            )
            for number in range(runs)
        ]
        connector = aiohttp.TCPConnector(limit=0, ssl=False)
        limits = aiohttp.ClientTimeout(total=None)
        session = await parts.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=limits))
        async with session.get(f"{agents.first_line}/bench/followed"):
            pass
        mint = load_tokens(settings(folder)).mint
        followed = range(0, runs, max(1, runs // max(1, sample.readers)))
        sse_readers = [
            asyncio.create_task(
                read_live(session, run_url(worker.first_line, run_of(number)), mint(run_of(number)), sample.delays)
            )
            for worker, number in zip(cycle(workers), followed, strict=False)
        ][: sample.readers]
        await asyncio.sleep(WARM_UP.total_seconds())
        before = total_cpu(workers)
        await asyncio.sleep(IDLE.total_seconds())
        sample.idle = (total_cpu(workers) - before) / IDLE.total_seconds()
        began = total_cpu(workers), bare.cpu, agents.cpu
        database = server_cpu(server.folder) if server else 0
        async with session.post(f"{agents.first_line}/bench/write", params={"seconds": seconds}) as answer:
            sample.took = (await answer.json())["took"]
        sample.worker, sample.bare = total_cpu(workers) - began[0], bare.cpu - began[1]
        sample.agents = agents.cpu - began[2]
        sample.database = server_cpu(server.folder) - database if server else 0
        sample.memory = max(worker.memory() for worker in workers)
        async with session.post(f"{agents.first_line}/bench/end"):
            ends = await asyncio.gather(*(handle.result() for handle in handles))
        await asyncio.gather(*sse_readers)
        sample.verified = sum(end.receipt.state == "verified" for end in ends)
        sample.peak = max(worker.memory("VmHWM") for worker in workers)
        state = await agents_state(session, agents.first_line)
        sample.lines, sample.requests = state["lines"], state["requests"]
        heartbeats = [json.loads((await worker.end()).splitlines()[-1]) for worker in workers]  # after its log
        sample.longest = max(each["longest"] for each in heartbeats)
        sample.retries = sum(each["retries"] for each in heartbeats)
    return sample


def total_cpu(processes: Sequence[Process]) -> float:
    return sum(each.cpu for each in processes)


async def agents_state(session: aiohttp.ClientSession, agents: str) -> dict[str, Any]:
    """The lines that the agents have written and the requests that they got."""
    async with session.get(f"{agents}/bench") as answer:
        state: dict[str, Any] = await answer.json()
        return state


def table(samples: Sequence[Sample], *, plain: bool) -> str:
    """Markdown: one column per measurement."""
    transport = "plain HTTP" if plain else "TLS"
    rows: dict[str, Callable[[Sample], str]] = {
        "lines (received and verified by receipt, runs)": lambda s: f"{s.lines:,} ({s.verified} of {s.runs})",
        "lines/s": lambda s: f"{s.lines / s.took:,.0f}",
        "worker, CPU µs per line": lambda s: f"{s.worker / s.lines * 1e6:,.0f}",
        "bare aiohttp, CPU µs per line": lambda s: f"{s.bare / s.lines * 1e6:,.0f}",
        "worker / bare": lambda s: f"{s.worker / s.bare:.1f}",
        "worker, CPU of one core (before, without a line)": lambda s: f"{s.worker / s.took:.0%} ({s.idle:.0%})",
        "PostgreSQL, CPU µs per line": lambda s: f"{s.database / s.lines * 1e6:,.0f}" if s.database else "",
        "agents' process, CPU of one core": lambda s: f"{s.agents / s.took:.0%}",
        "worker RSS (most ever), MiB": lambda s: f"{s.memory} ({s.peak})",
        "line delay, p50": lambda s: f"{statistics.median(s.delays):.0f} ms",
        "line delay, p99": lambda s: f"{p99(s.delays):.0f} ms",
        "SSE readers": lambda s: str(s.readers),
        "requests of the activity, per run": lambda s: f"{sum(s.requests.values()) / s.runs:.1f}",
        f"longest time without a heartbeat (time-out {SHORT_HEARTBEAT_TIMEOUT.total_seconds():.0f} s)": lambda s: (
            f"{s.longest:.1f} s"
        ),
        "activity attempts lost to a missed heartbeat": lambda s: str(s.retries),
    }
    head = [
        f"{machine()}; {transport}.",
        "",
        f"| {RATE} lines/s each | " + " | ".join(f"{s.runs} run{'s' * (s.runs > 1)}" for s in samples) + " |",
        "|---|" + "---:|" * len(samples),
    ]
    return "\n".join([*head, *(f"| {name} | " + " | ".join(map(show, samples)) + " |" for name, show in rows.items())])


def main() -> None:
    options = argparse.ArgumentParser(description="What following costs.")
    options.add_argument("--runs", type=int, default=500)
    options.add_argument("--seconds", type=int, default=30)
    options.add_argument("--readers", type=int, default=20)
    options.add_argument("--plain", action="store_true", help="HTTP without TLS")
    options.add_argument("--workers", type=int, default=1, help="with a PostgreSQL, if more than one")
    arguments = options.parse_args()
    readers, plain, workers = arguments.readers, arguments.plain, arguments.workers
    server = Postgres() if workers > 1 else None

    async def run() -> None:
        if server is not None:
            server.start()
            runs = workers * arguments.runs
            sample = await measure(runs, arguments.seconds, readers, plain=plain, worker_count=workers, server=server)
            print(table([sample], plain=plain))
            return
        samples = [await measure(runs, arguments.seconds, readers, plain=plain) for runs in (1, arguments.runs)]
        print(table(samples, plain=plain))

    try:
        run_to_end(run)
    finally:
        if server is not None:
            server.remove()


if __name__ == "__main__":
    main()
