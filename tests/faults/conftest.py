"""All selected rows run side by side, because they mostly wait; each test then tells of its own."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Final

import pytest
from temporalio.client import Client

from tests.faults.facts import Verdict, judged
from tests.faults.nursery import Nursery
from tests.faults.scene import scene
from tests.faults.stories import Row, rows

AT_ONCE: Final = 16


class Running:
    """The rows that this session was asked for."""

    def __init__(self, wanted: list[Row], temporal: Client, nursery: Nursery, folder: Path) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)
        self._temporal, self._nursery, self._folder = temporal, nursery, folder
        self.rows = {row.name: asyncio.create_task(self._run(row)) for row in wanted}

    async def verdict(self, name: str) -> Verdict:
        return await self.rows[name]

    async def _run(self, row: Row) -> Verdict:
        folder = self._folder / row.name
        folder.mkdir()
        async with self._room, scene(row.name, self._temporal, self._nursery, folder, own_server=row.server) as made:
            began = monotonic()
            async with asyncio.timeout(row.expected.bound.total_seconds()):
                outcome = await row.story(made)
            verdict = await judged(made, row.did, row.expected, outcome, timedelta(seconds=monotonic() - began))
        verdict.keep()
        return verdict

    async def end(self) -> None:
        for task in self.rows.values():
            task.cancel()
        await asyncio.gather(*self.rows.values(), return_exceptions=True)


@pytest.fixture(scope="session")
async def nursery() -> AsyncIterator[Nursery]:
    """Forks workers and callers."""
    async with Nursery.open() as opened:
        yield opened


@pytest.fixture(scope="session")
async def running(
    request: pytest.FixtureRequest, temporal: Client, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """Started with the first row; the longest ones first."""
    table = rows()
    names = {item.callspec.params["name"] for item in request.session.items if "running" in item.fixturenames}  # type: ignore[attr-defined]  # functions have both
    wanted = sorted((table[name] for name in names), key=lambda row: -row.expected.bound)
    made = Running(wanted, temporal, nursery, tmp_path_factory.mktemp("faults"))
    try:
        yield made
    finally:
        await made.end()
