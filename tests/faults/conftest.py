"""Slow rows all run concurrently, because they mostly wait; each test then asserts its own row.

A quick row starts with its test: the gate spreads those over processes, and none may start what another one does. Slow
rows need `--dist loadfile`, for the same reason.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Final

import pytest
from temporalio.client import Client

from dev_stack.opencode_binary import NEWEST
from tests.faults.acp_environment import open_acp
from tests.faults.checks import RowResult, check_row
from tests.faults.environment import Environment, open_environment
from tests.faults.rows import rows
from tests.faults.scenarios import Row
from tests.faults.served import open_served
from tests.support.process_pool import ProcessPool

MAX_CONCURRENT_ROWS: Final = 16
MAX_CONCURRENT_SERVERS: Final = 4
"""Rows with the real OpenCode, whose start takes seconds of CPU."""
MAX_CONCURRENT_AGENTS: Final = 6
"""Rows with other real agents, which wait for longer than they work."""


class RowRuns:
    """Rows, each as a task."""

    def __init__(self, slow: list[Row], temporal: Client, process_pool: ProcessPool, folder: Path) -> None:
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_ROWS)
        self._served_slots = asyncio.Semaphore(MAX_CONCURRENT_SERVERS)
        self._agent_slots = asyncio.Semaphore(MAX_CONCURRENT_AGENTS)
        self._temporal, self._process_pool, self._folder = temporal, process_pool, folder
        self._tasks = {row.name: asyncio.create_task(self._run(row)) for row in slow}

    async def result(self, row: Row) -> RowResult:
        if row.name not in self._tasks:
            self._tasks[row.name] = asyncio.create_task(self._run(row))
        return await self._tasks[row.name]

    async def _run(self, row: Row) -> RowResult:
        folder = self._folder / row.name
        folder.mkdir()
        async with (
            self._agent_slots if row.agent else self._served_slots if row.served else self._slots,
            self._environment(row, folder) as env,
        ):
            began = monotonic()
            async with asyncio.timeout(row.expected.bound.total_seconds()):
                outcome = await row.scenario(env)
            result = await check_row(env, row.action, row.expected, outcome, timedelta(seconds=monotonic() - began))
        result.save()
        return result

    def _environment(self, row: Row, folder: Path) -> AbstractAsyncContextManager[Environment]:
        temporal, pool = self._temporal, self._process_pool
        if row.served is None:
            return open_environment(row.name, temporal, pool, folder, own_server=row.server)
        claimed = row.served == "claimed"
        if row.agent:
            return open_acp(row.name, temporal, pool, folder, agent=row.agent, claimed=claimed)
        version = NEWEST[row.opencode]
        return open_served(row.name, temporal, pool, folder, version, own_server=row.server, claimed=claimed)

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@pytest.fixture(scope="session")
async def process_pool() -> AsyncIterator[ProcessPool]:
    """Starts workers and callers."""
    async with ProcessPool.open() as opened:
        yield opened


@pytest.fixture(scope="session")
async def row_runs(
    request: pytest.FixtureRequest,
    temporal: Client,
    process_pool: ProcessPool,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[RowRuns]:
    """Slow rows are started with the first one; the longest ones first."""
    table = rows()
    names = {item.callspec.params["name"] for item in request.session.items if "row_runs" in item.fixturenames}  # type: ignore[attr-defined]  # functions have both
    slow = [row for row in table.values() if row.name in names and not row.quick]  # in the order of the tests
    slow.sort(key=lambda row: -row.expected.bound)
    runs = RowRuns(slow, temporal, process_pool, tmp_path_factory.mktemp("faults"))
    try:
        yield runs
    finally:
        await runs.end()
