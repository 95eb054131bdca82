"""Readers on one worker follow what another worker writes, through PostgreSQL; each worker has few connections."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcripts import announcements
from agent_runs.transcripts.follow import follow, pages
from agent_runs.transcripts.store import Line, TranscriptStore
from tests.transcripts.postgres import Postgres, drop_database, make_database

NEVER = timedelta(hours=1)
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
    """Follows a run until its seal; the only wait is for changes."""

    def __init__(self, store: TranscriptStore, poll: timedelta = NEVER, run_id: str = "run-1") -> None:
        self.seen: list[int] = []
        self._progress = asyncio.Condition()
        self._key = key(run_id)
        self.task = asyncio.create_task(self._read(store, poll))

    async def until(self, last: int) -> None:
        """Return when it has got this line."""
        async with asyncio.timeout(60), self._progress:
            await self._progress.wait_for(lambda: self.seen[-1:] == [last])

    async def _read(self, store: TranscriptStore, poll: timedelta) -> list[int]:
        async def sealed() -> bool:
            return await store.receipt(self._key) is not None

        async for line in follow(store, self._key, 0, done=sealed, poll=poll):
            async with self._progress:
                self.seen.append(line.sequence)
                self._progress.notify_all()
        return self.seen


async def test_a_reader_is_woken_by_each_line_that_another_worker_stores(
    writing: TranscriptStore, reading: TranscriptStore
) -> None:
    reader = Reader(reading)
    for number in range(1, 30):
        await writing.append(key(), batch(number, number))
        await reader.until(number)
    await writing.seal(key(), OutputReceipt())
    async with asyncio.timeout(60):
        assert await reader.task == list(range(1, 30))


async def test_many_readers_are_each_woken_by_their_own_run(
    writing: TranscriptStore, reading: TranscriptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "NAMES_PER_NOTIFICATION", 7)
    runs = [f"run-{number}" for number in range(60)]
    readers = [Reader(reading, run_id=run) for run in runs]
    await asyncio.gather(*(writing.append(key(run), batch(1, 2)) for run in runs))
    await asyncio.gather(*(reader.until(2) for reader in readers))
    await asyncio.gather(*(writing.seal(key(run), OutputReceipt()) for run in runs))
    async with asyncio.timeout(60):
        assert await asyncio.gather(*(reader.task for reader in readers)) == [[1, 2]] * len(runs)


async def test_a_reader_is_woken_again_after_the_database_restarted(postgres: Postgres) -> None:
    await make_database(postgres.url(), "restarted")
    writing, reading = [await TranscriptStore.open(postgres.url("restarted")) for _ in range(2)]
    reader = Reader(reading)
    await writing.append(key(), batch(1, 1))
    await reader.until(1)
    postgres.stop("immediate")
    postgres.start()
    await writing.append(key(), batch(2, 2))
    await reader.until(2)
    await writing.append(key(), batch(3, 3))
    await reader.until(3)
    await writing.seal(key(), OutputReceipt())
    async with asyncio.timeout(60):
        assert await reader.task == [1, 2, 3]
    for store in (writing, reading):
        await store.close()
    await drop_database(postgres.url(), "restarted")


async def test_a_worker_listens_anew_when_the_server_falls_silent(
    writing: TranscriptStore, reading: TranscriptStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "RECHECK", timedelta(milliseconds=200))
    reader = Reader(reading)
    connection = await asyncpg.connect(postgres_url)
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^(LISTEN|SELECT 1)'"
    async with asyncio.timeout(60):
        while not (silent := await connection.fetchval(query)):
            pass
        os.kill(silent, signal.SIGSTOP)
        try:
            while {row["pid"] for row in await connection.fetch(query)} == {silent}:
                pass
        finally:
            os.kill(silent, signal.SIGCONT)
    await writing.append(key(), batch(1, 1))
    await reader.until(1)
    await connection.close()
    reader.task.cancel()


async def test_a_lost_announcement_delays_lines_and_loses_none(
    writing: TranscriptStore, reading: TranscriptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "RECHECK", timedelta(milliseconds=200))
    reader = Reader(reading, poll=timedelta(milliseconds=20))
    await writing.append(key(), batch(1, 1))
    await reader.until(1)
    monkeypatch.setattr(writing, "_announce", lambda _key: None)
    await writing.append(key(), batch(2, 5))
    await reader.until(5)
    await writing.seal(key(), OutputReceipt())
    async with asyncio.timeout(60):
        assert await reader.task == [1, 2, 3, 4, 5]


async def test_a_reader_of_a_silent_run_seldom_queries_but_can_still_send_keep_alives(reading: TranscriptStore) -> None:
    queries = 0

    async def never() -> bool:
        nonlocal queries
        queries += 1
        return False

    await reading.append(key(), batch(1, 1))
    live = pages(reading, key(), 1, done=never, poll=timedelta(milliseconds=1))
    while not reading.notifier(key()).recheck():
        assert await anext(live) == []
    await anext(live)
    queries = 0
    for _ in range(100):
        assert await anext(live) == []
    assert queries <= 1


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
        tasks = [asyncio.create_task(each) for each in (*work, store.prepare())]
        while not all(task.done() for task in tasks):
            await count()
        await asyncio.gather(*tasks)
    assert 2 <= most <= 5
    await other.close()
    await store.close()


async def test_the_last_announcement_is_sent_before_a_worker_ends(postgres_url: str, reading: TranscriptStore) -> None:
    reader = Reader(reading)
    await reading.append(key(), batch(1, 1))
    await reader.until(1)
    ending = await TranscriptStore.open(postgres_url)
    await ending.append(key(), batch(2, 2))
    await ending.close()
    await reader.until(2)
    reader.task.cancel()
