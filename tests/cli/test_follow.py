import asyncio
import io
import json
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from cli.display import Machines
from cli.follow import Followed, Interrupted, Interrupts, Output
from cli.refusals import Refused
from client.attach import attach
from client.settings import ClientSettings
from contracts.identity import AttemptKey, RunKey
from contracts.outcome import OutputReceipt
from contracts.request import RunRequest
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


class Listener(io.StringIO):
    """Hears what a command says; `noted` is set by the first note."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = asyncio.Event()

    def write(self, text: str) -> int:
        if json.loads(text)["type"] == "note":
            self.noted.set()
        return super().write(text)


async def test_a_run_that_no_worker_takes_and_that_is_terminated_is_told_as_both(
    temporal: Client, queue: str, store: SqlTranscripts, request_of_a_run: RunRequest
) -> None:
    ticket = await attach(temporal, ClientSettings.read({}, task_queue=queue), request_of_a_run)
    handle, listener = ticket.handle(temporal), Listener()
    followed = Followed(handle, request_of_a_run.key, store, Machines(listener), patience=timedelta())
    following = asyncio.create_task(followed.to_the_end())
    async with asyncio.timeout(60):
        await listener.noted.wait()
        await handle.terminate(reason="enough")
        with pytest.raises(Refused, match=r"ended without an outcome.*enough"):
            await following
    said = [json.loads(text) for text in listener.getvalue().splitlines()]
    assert "no worker has taken the run" in next(one["text"] for one in said if one["type"] == "note")
    assert [one["phase"] for one in said if one["type"] == "phase"] == ["queued", "terminated"]
