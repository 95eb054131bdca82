"""What lists of many runs take: the page of runs, its live rows, and `agent-runs list`.

Run as `python -m bench.fleet [--finished 10000] [--working 200] [--times 40]`: a dev server with so many workflows that
have the search attributes of runs (the finished ones were terminated, which is the quickest end), a store in SQLite, or
with `--postgres` in a PostgreSQL of its own, with one attempt of each, and the service in this process.
"""

import argparse
import asyncio
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final

import aiohttp
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from agent_runs.client.connection import run_to_end
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import WORKFLOW_TYPE, AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.tokens import authorization
from agent_runs.transcript.usage import StoredUsage
from agent_runs.web.run_info import TemporalRunInfo
from agent_runs.web.server import serving
from agent_runs.web.serving import application
from bench.reports import machine
from tests.support.temporal import start_temporal
from tests.transcript.postgres import Postgres
from workflows import attributes

AT_ONCE: Final = 64
"""Requests under way while runs are made."""
DAYS: Final = 30
TOKEN: Final = secrets.token_hex(32)
PHASES: Final = ("succeeded",) * 8 + ("failed", "timed out")
MODELS: Final = ("anthropic/claude-opus-5", "openai/gpt-5.5", "gateway/unpriced")


@dataclass(frozen=True)
class Run:
    """A run that is made for the benchmark."""

    key: RunKey
    phase: str
    model: str
    started_at: datetime

    @property
    def attributes(self) -> TypedSearchAttributes:
        values = {
            attributes.AGENT_ID: self.key.agent_id,
            attributes.COMPANY_ID: self.key.company_id,
            attributes.PAPERCLIP_RUN_ID: self.key.run_id,
            attributes.TASK_KEY: f"ISSUE-{self.key.run_id[:6]}",
            attributes.MODEL: self.model,
            attributes.RUN_PHASE: self.phase,
        }
        pairs = [SearchAttributePair(attribute, value) for attribute, value in values.items()]
        if self.phase == "failed":
            pairs.append(SearchAttributePair(attributes.FAILURE_KIND, "provider_quota"))
        return TypedSearchAttributes(pairs)


@dataclass
class Clock:
    """The time at which the store opens attempts."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self) -> datetime:
        return self.now


def made_up(finished: int, working: int) -> list[Run]:
    """The runs, oldest first: those at work are the newest."""
    chance = random.Random(1)
    agents = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(100)]
    begin, count = datetime.now(UTC) - timedelta(days=DAYS), finished + working
    found = list[Run]()
    for number in range(count):
        agent = chance.randrange(len(agents))
        run_id = str(uuid.UUID(int=chance.getrandbits(128)))
        key = RunKey(agent_id=agents[agent], company_id=f"company-{agent % 7}", run_id=run_id)
        phase = "running" if number >= finished else chance.choice(PHASES)
        found.append(Run(key, phase, chance.choice(MODELS), begin + timedelta(days=DAYS) * number / count))
    return found


async def in_temporal(client: Client, runs: list[Run]) -> None:
    """Start the runs, and end those that have ended."""
    free = asyncio.Semaphore(AT_ONCE)

    async def make(run: Run) -> None:
        async with free:
            handle = await client.start_workflow(
                WORKFLOW_TYPE, id=f"agent-run:{run.key.run_id}", task_queue="nobody", search_attributes=run.attributes
            )
            if run.phase != "running":
                await handle.terminate()

    await asyncio.gather(*map(make, runs))
    working = sum(run.phase == "running" for run in runs)
    ended = "ExecutionStatus = 'Terminated'"
    while (await client.count_workflows(ended)).count < len(runs) - working:  # noqa: ASYNC110 (no event)
        await asyncio.sleep(0.2)


async def in_store(url: str, runs: list[Run]) -> None:
    """Store one attempt of each run, with its usage; those of one group are opened at the same time."""
    clock, chance = Clock(), random.Random(2)
    store = await TranscriptStore.open(url, clock=clock)

    async def keep(run: Run) -> None:
        cost = None if run.model.startswith("gateway") else Decimal(chance.randrange(1, 9_000_000)) / 1_000_000
        tokens = chance.randrange(90_000), chance.randrange(900_000), 5000
        key, used = AttemptKey(run=run.key), StoredUsage(*tokens, 12, cost, run.model, "I look " * 20)
        await store.append(key, [Line(1, "stdout", b"x" * 200, at=run.started_at)], usage=used)
        if run.phase != "running":
            await store.seal(key, OutputReceipt())

    for start in range(0, len(runs), AT_ONCE):
        clock.now = runs[start].started_at
        await asyncio.gather(*map(keep, runs[start : start + AT_ONCE]))
    await store.close()


async def times(work: Callable[[int], Awaitable[object]], count: int) -> tuple[float, float]:
    """Median and 95th percentile of the durations, in ms; the first one, which warms up, does not count."""
    found = list[float]()
    for number in range(count + 1):
        began = time.perf_counter()
        await work(number)
        found.append((time.perf_counter() - began) * 1000)
    cuts = statistics.quantiles(found[1:], n=20, method="inclusive")
    return statistics.median(found[1:]), cuts[-1]


async def command(environment: Mapping[str, str], *arguments: str) -> None:
    """Run the program as people do, on a terminal of 120 columns."""
    program = Path(sys.executable).with_name("agent-runs")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RUNS_")}
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env={**inherited, "COLUMNS": "120", **environment}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode or out.count(b"\n") < 10:
        raise RuntimeError(f"agent-runs {' '.join(arguments)}: {out.decode()}")


async def measure(finished: int, working: int, count: int, url: str | None) -> dict[str, tuple[float, float]]:
    """The durations by what was asked for."""
    runs = made_up(finished, working)
    async with AsyncExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        client = (await parts.enter_async_context(await start_temporal())).client
        settings = _settings(folder, url)
        await in_temporal(client, runs)
        await in_store(settings.transcripts, runs)
        store = await TranscriptStore.open(settings.transcripts)
        parts.push_async_callback(store.close)
        service = application(settings, store, TemporalRunInfo(client, settings))
        base = await parts.enter_async_context(serving(service))
        headers = {**authorization(TOKEN), "Accept": "text/html"}
        http = await parts.enter_async_context(aiohttp.ClientSession(base, headers=headers))

        async def get(path: str, rows: int = 50) -> str:
            async with http.get(path) as answer:
                text = await answer.text()
                if answer.status != 200 or text.count('href="runs/') < rows or "does not answer" in text:
                    raise RuntimeError(f"{path}: {answer.status} {text[:500]}")
                return text

        first = await get("/runs")
        following = first.split('rel="next"')[0].rpartition('href="')[2].split('"')[0].replace("&amp;", "&")
        agent, run = runs[-1].key.agent_id, runs[len(runs) // 2].key.run_id
        environment = {
            "TEMPORAL_ADDRESS": client.service_client.config.target_host,
            "AGENT_RUNS_TRANSCRIPTS_URL": settings.transcripts,
            "AGENT_RUNS_SEALING_KEY_FILE": str(settings.sealing_key_file),
        }
        remote = {**environment, "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL": base}
        pages: dict[str, Callable[[int], Awaitable[object]]] = {
            "page, totals up to 15 s old": lambda _: get("/runs"),
            "page, totals of 30 days added up anew": lambda n: get(f"/runs?since={DAYS * 24 * 60 + n}m"),
            "live rows of the page": lambda _: get("/runs?part=list"),
            "second page": lambda _: get(f"/{following}"),
            "page of one agent": lambda _: get(f"/runs?agent={agent}", rows=1),
            "page of failed runs": lambda _: get("/runs?phase=failed", rows=1),
            "page of runs at work": lambda _: get("/runs?state=working"),
            "search for the beginning of a run's id": lambda _: get(f"/runs?search={run[:8]}", rows=1),
        }
        commands: dict[str, Callable[[int], Awaitable[object]]] = {
            "`agent-runs list`, store": lambda _: command(environment, "list"),
            "`agent-runs list`, service": lambda _: command(remote, "list"),
            "`agent-runs list --limit 1000`, store": lambda _: command(environment, "list", "--limit", "1000"),
            "`agent-runs top`, store": lambda _: command(environment, "top"),
        }
        found = {name: await times(work, count) for name, work in pages.items()}
        return found | {name: await times(work, max(5, count // 4)) for name, work in commands.items()}


def _settings(folder: Path, url: str | None) -> ClientSettings:
    token = folder / "operator-token"
    token.write_text(TOKEN)
    transcripts = url or f"sqlite:///{folder}/transcripts.db"
    return ClientSettings(sealing_key_file=folder / "key.json", transcripts_url=transcripts, operator_token_file=token)


def main() -> None:
    options = argparse.ArgumentParser(description="What lists of many runs take.")
    options.add_argument("--finished", type=int, default=10_000)
    options.add_argument("--working", type=int, default=200)
    options.add_argument("--times", type=int, default=40)
    options.add_argument("--postgres", action="store_true")
    arguments = options.parse_args()
    server = Postgres() if arguments.postgres else None
    if server is not None:
        server.start()

    async def run() -> None:
        url = None if server is None else server.url()
        found = await measure(arguments.finished, arguments.working, arguments.times, url)
        store = "SQLite" if server is None else "PostgreSQL"
        amounts = f"{arguments.finished:,} finished and {arguments.working} running runs, {store}"
        print(f"{machine()}; {amounts}.\n\n| ms | p50 | p95 |\n|---|---:|---:|")
        for name, (median, high) in found.items():
            print(f"| {name} | {median:.0f} | {high:.0f} |")

    try:
        run_to_end(run)
    finally:
        if server is not None:
            server.remove()


if __name__ == "__main__":
    main()
