"""Live readers see every line once, in order, and end when the attempt does."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.follow import follow, pages
from agent_runs.transcript.store import Line, TranscriptStore

NEVER = timedelta(hours=1)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"))


def batch(first: int, last: int) -> list[Line]:
    return [Line(n, "stdout", b"%d" % n, at=NOON) for n in range(first, last + 1)]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    opened = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    yield opened
    await opened.close()


async def collect(store: TranscriptStore, after: int, poll: timedelta) -> list[int]:
    async def sealed() -> bool:
        return await store.receipt(KEY) is not None

    return [line.sequence async for line in follow(store, KEY, after, done=sealed, poll=poll)]


async def test_a_follower_is_woken_by_writes_of_its_own_process(store: TranscriptStore) -> None:
    readers = [asyncio.create_task(collect(store, after, NEVER)) for after in (0, 0, 250)]
    for first in range(1, 1000, 100):
        await store.append(KEY, batch(first, first + 99))
    await store.seal(KEY, OutputReceipt())
    whole = list(range(1, 1001))
    assert await asyncio.gather(*readers) == [whole, whole, whole[250:]]


async def test_a_follower_finds_what_another_process_writes(store: TranscriptStore, tmp_path: Path) -> None:
    other = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    reader = asyncio.create_task(collect(store, 0, timedelta(milliseconds=10)))
    await other.append(KEY, batch(1, 5))
    await other.append(KEY, batch(6, 9))
    await other.seal(KEY, OutputReceipt())
    assert await reader == list(range(1, 10))
    await other.close()


async def test_lines_written_just_before_the_end_are_read(store: TranscriptStore) -> None:
    queries = 0

    async def done() -> bool:
        nonlocal queries
        queries += 1
        if queries == 2:
            await store.append(KEY, batch(1, 3))
            return True
        return queries > 2

    lines = [line.sequence async for line in follow(store, KEY, 0, done=done, poll=timedelta(milliseconds=1))]
    assert lines == [1, 2, 3]


async def test_silence_is_an_empty_page(store: TranscriptStore) -> None:
    async def never() -> bool:
        return False

    listening = pages(store, KEY, 0, done=never, poll=timedelta(milliseconds=1))
    assert await anext(listening) == []
    assert await anext(listening) == []
    await store.append(KEY, batch(1, 1))
    assert await anext(listening) == batch(1, 1)


async def test_without_readers_there_is_no_notifier(store: TranscriptStore) -> None:
    await store.append(KEY, batch(1, 3))
    await store.seal(KEY, OutputReceipt())
    assert await collect(store, 0, NEVER) == [1, 2, 3]
    assert len(store._notifiers) == 0


async def test_a_reader_that_has_kept_up_does_not_query_the_store(store: TranscriptStore) -> None:
    queries = 0

    async def never() -> bool:
        nonlocal queries
        queries += 1
        return False

    listening = pages(store, KEY, 0, done=never, poll=NEVER)
    assert await anext(listening) == []
    for number in range(1, 20):
        await store.append(KEY, batch(number, number))
        assert await anext(listening) == batch(number, number)
    assert queries == 1


async def test_a_reader_loses_nothing_when_the_writer_moves_to_another_process_and_back(
    store: TranscriptStore, tmp_path: Path
) -> None:
    other = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    reader = asyncio.create_task(collect(store, 0, NEVER))
    for first in range(1, 100, 10):
        await (store if first % 20 == 1 else other).append(KEY, batch(first, first + 9))
        await asyncio.sleep(0)
    await store.seal(KEY, OutputReceipt())
    assert await reader == list(range(1, 101))
    await other.close()
