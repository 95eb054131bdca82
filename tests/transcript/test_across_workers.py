"""Readers on one worker follow what another worker writes, through the database; each worker has few connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.follow import follow
from agent_runs.transcript.store import Line, TranscriptStore
from tests.transcript.postgres import Postgres, drop_database, make_database

POLL = timedelta(milliseconds=10)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def key(run_id: str = "run-1") -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id=run_id))


def batch(first: int, last: int) -> list[Line]:
    return [Line(n, "stdout", b"%d" % n, at=NOON) for n in range(first, last + 1)]


@pytest.fixture
async def writing(postgres_url: str) -> AsyncIterator[TranscriptStore]:
    opened = await TranscriptStore.open(postgres_url)
    yield opened
    await opened.close()


@pytest.fixture
async def reading(postgres_url: str) -> AsyncIterator[TranscriptStore]:
    """The same store on another worker."""
    opened = await TranscriptStore.open(postgres_url)
    yield opened
    await opened.close()


class Reader:
    """Follows a run until its seal, also through an outage: as clients do, from the last line they have."""

    def __init__(self, store: TranscriptStore) -> None:
        self.seen: list[int] = []
        self._store = store
        self._progress = asyncio.Condition()
        self.task = asyncio.create_task(self._read())

    async def until(self, last: int) -> None:
        """Return when it has got this line."""
        async with asyncio.timeout(60), self._progress:
            await self._progress.wait_for(lambda: self.seen[-1:] == [last])

    async def _read(self) -> list[int]:
        while True:
            with suppress(TranscriptsUnavailable):
                await self._follow()
                return self.seen

    async def _follow(self) -> None:
        async def sealed() -> bool:
            return await self._store.receipt(key()) is not None

        async for line in follow(self._store, key(), max(self.seen, default=0), done=sealed, poll=POLL):
            async with self._progress:
                self.seen.append(line.sequence)
                self._progress.notify_all()


async def test_a_reader_gets_each_line_that_another_worker_stores(
    writing: TranscriptStore, reading: TranscriptStore
) -> None:
    reader = Reader(reading)
    for number in range(1, 30):
        await writing.append(key(), batch(number, number))
        await reader.until(number)
    await writing.seal(key(), OutputReceipt())
    async with asyncio.timeout(60):
        assert await reader.task == list(range(1, 30))


async def test_a_reader_goes_on_after_the_database_restarted(postgres: Postgres) -> None:
    await make_database(postgres.url(), "restarted")
    writing, reading = [await TranscriptStore.open(postgres.url("restarted")) for _ in range(2)]
    await writing.append(key(), batch(1, 1))
    reader = Reader(reading)
    await reader.until(1)
    postgres.stop("immediate")
    postgres.start()
    await writing.append(key(), batch(2, 3))
    await writing.seal(key(), OutputReceipt())
    async with asyncio.timeout(60):
        assert await reader.task == [1, 2, 3]
    for store in (writing, reading):
        await store.close()
    await drop_database(postgres.url(), "restarted")


async def test_a_worker_never_has_more_connections_than_it_is_allowed(postgres_url: str) -> None:
    store = await TranscriptStore.open(postgres_url, connections=5)
    other = await asyncpg.connect(postgres_url)
    most = 0

    async def count() -> None:
        nonlocal most
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        most = max(most, await other.fetchval(query))

    for turn in range(5):
        work = [
            *(store.append(key(f"run-{n}"), batch(turn + 1, turn + 1)) for n in range(50)),
            *(store.read(key(f"run-{n}")) for n in range(50)),
        ]
        tasks = [asyncio.create_task(each) for each in work]
        while not all(task.done() for task in tasks):
            await count()
        await asyncio.gather(*tasks)
    assert 2 <= most <= 5
    await other.close()
    await store.close()
