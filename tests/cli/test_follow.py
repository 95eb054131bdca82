import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.follow import Interrupted, Interrupts, Output
from contracts.identity import AttemptKey, RunKey
from contracts.outcome import OutputReceipt
from transcripts.store import Line, SqlTranscripts

RUN = RunKey(agent_id="ada", company_id="acme", run_id="run-1")
NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlTranscripts]:
    found = await SqlTranscripts.open(f"sqlite:///{tmp_path / 'transcripts.db'}")
    yield found
    await found.close()


def attempt(number: int) -> AttemptKey:
    return AttemptKey(run=RUN, attempt=number)


def line(sequence: int) -> Line:
    return Line(sequence, "stdout", b"%d" % sequence, at=NOW)


async def test_lines_of_all_attempts_come_in_order(store: SqlTranscripts) -> None:
    await store.append(attempt(1), [line(1), line(2)])
    await store.seal(attempt(1), OutputReceipt())
    await store.append(attempt(2), [line(1)])
    found = [(number, one.sequence) async for number, one in Output(store, RUN, over=lambda: True).lines()]
    assert found == [(1, 1), (1, 2), (2, 1)]


async def test_lines_after_a_sequence(store: SqlTranscripts) -> None:
    await store.append(attempt(1), [line(1), line(2), line(3)])
    found = [one.sequence async for _, one in Output(store, RUN, over=lambda: True).lines(after=2)]
    assert found == [3]


async def test_following_goes_on_into_the_next_attempt_and_ends_with_the_run(store: SqlTranscripts) -> None:
    over = asyncio.Event()
    found: list[tuple[int, int]] = []

    async def follow() -> None:
        async for number, one in Output(store, RUN, over.is_set).lines():
            found.append((number, one.sequence))
            if number == 1:
                await store.seal(attempt(1), OutputReceipt())
                await store.append(attempt(2), [line(1), line(2)])
            elif one.sequence == 2:
                over.set()

    await store.append(attempt(1), [line(1)])
    async with asyncio.timeout(30):
        await follow()
    assert found == [(1, 1), (2, 1), (2, 2)]


async def test_an_attempt_that_was_never_sealed_ends_when_its_successor_writes(store: SqlTranscripts) -> None:
    await store.append(attempt(1), [line(1)])
    await store.append(attempt(2), [line(1)])
    over = asyncio.Event()
    found: list[int] = []
    async with asyncio.timeout(30):
        async for number, _ in Output(store, RUN, over.is_set).lines():
            found.append(number)
            if number == 2:
                over.set()
    assert found == [1, 2]


async def test_the_first_signal_detaches_and_the_work_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with Interrupts.caught() as interrupts, pytest.raises(Interrupted):
        await interrupts.during(work())
    assert cancelled.is_set()


async def test_work_that_ends_first_gives_its_result() -> None:
    async def work() -> int:
        return 7

    with Interrupts.caught() as interrupts:
        assert await interrupts.during(work()) == 7
