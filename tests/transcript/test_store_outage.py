"""A store that is away for a while costs a run time and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript import database
from agent_runs.transcript.follow import follow
from agent_runs.transcript.store import Line, TranscriptStore, Writer
from tests.runs.system import attempt_key, open_system
from tests.support.sqlite import locked
from tests.transcript.postgres import Postgres, drop_database, make_database
from tests.transcript.stored_runs import stored_runs

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=1)
LINES = 400
Outage = Callable[[], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SQLITE_BUSY_TIMEOUT", timedelta(milliseconds=100))


@contextmanager
def killed(server: Postgres) -> Iterator[None]:
    """The server dies in the middle of whatever it does, and starts again."""
    server.stop("immediate")
    try:
        yield
    finally:
        server.start()


@pytest.fixture(params=["sqlite", "postgresql"])
async def fragile(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, Outage]]:
    """A place for a store, and how to take it away."""
    if request.param == "sqlite":
        file = tmp_path / "transcripts.db"
        yield f"sqlite:///{file}", lambda: locked(file)
        return
    server: Postgres = request.getfixturevalue("postgres")
    await make_database(server.url(), "fragile")
    yield server.url("fragile"), lambda: killed(server)
    await drop_database(server.url(), "fragile")


class Trying:
    """An activity that Temporal retries until it succeeds, as it does with `stream_logs`."""

    def __init__(self) -> None:
        self.failures = 0
        self.progress = asyncio.Condition()

    async def run(self, step: Callable[[int], Any]) -> None:
        attempt = 0
        while True:
            attempt += 1
            try:
                await step(attempt)
            except TranscriptsUnavailable:
                await self.report(failures=1)
                await asyncio.sleep(0.01)  # Temporal's back-off, in small
            else:
                return

    async def report(self, failures: int = 0) -> None:
        async with self.progress:
            self.failures += failures
            self.progress.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.progress:
            await self.progress.wait_for(condition)


async def test_nothing_is_lost_or_doubled_while_the_store_is_unavailable(fragile: tuple[str, Outage]) -> None:
    url, outage = fragile
    store = await TranscriptStore.open(url)
    writing, reading = Trying(), Trying()
    seen: list[int] = []
    written = 0

    async def write(attempt: int) -> None:
        nonlocal written
        writer = Writer(NOON, attempt, "temporal-run")
        await store.claim(KEY, writer)
        for start in range((await store.last(KEY) or 0) + 1, LINES, 4):
            await store.append(KEY, [Line(n, "stdout", b"%d" % n, at=NOON) for n in range(start, start + 4)], writer)
            written = start + 3
            await writing.report()
        await store.seal(KEY, OutputReceipt(lines=LINES), writer)

    async def read(_attempt: int) -> None:
        async def sealed() -> bool:
            return await store.receipt(KEY) is not None

        after = seen[-1] if seen else 0
        async for line in follow(store, KEY, after, done=sealed, poll=timedelta(milliseconds=50)):
            seen.append(line.sequence)  # noqa: PERF401 - an error must not lose what came before it

    async with asyncio.TaskGroup() as both:
        both.create_task(writing.run(write))
        both.create_task(reading.run(read))
        for part in (1, 2, 3):
            await writing.until(lambda part=part: written >= LINES * part // 4)  # type: ignore[misc]  # bound early
            failures = writing.failures
            with outage():
                await writing.until(lambda failures=failures: writing.failures > failures)  # type: ignore[misc]  # same
    assert seen == list(range(1, LINES + 1))
    (run,) = await stored_runs(store)
    assert (run.lines, run.bytes) == (LINES, sum(len(b"%d" % n) for n in range(1, LINES + 1)))
    await store.close()


async def test_a_store_that_is_unavailable_when_the_worker_starts_is_named(postgres: Postgres, tmp_path: Path) -> None:
    with killed(postgres), pytest.raises(TranscriptsUnavailable, match=r"No such file|refused"):
        await TranscriptStore.open(postgres.url())
    with pytest.raises(TranscriptsUnavailable, match='database "absent" does not exist'):
        await TranscriptStore.open(postgres.url("absent"))
    with pytest.raises(TranscriptsUnavailable, match=r"postgres:\*\*\*@") as raised:
        await TranscriptStore.open(f"postgresql://postgres:CANARY@/postgres?host={tmp_path}")
    assert "CANARY" not in str(raised.value)


async def test_an_idle_reader_does_not_notice_a_restart_of_the_server(postgres: Postgres, postgres_url: str) -> None:
    store = await TranscriptStore.open(postgres_url)
    await store.append(KEY, [Line(1, "stdout", b"x", at=NOON)])
    with killed(postgres):
        pass
    assert await store.last(KEY) == 1
    assert await store.append(KEY, [Line(2, "stdout", b"x", at=NOON)]) == 1
    await store.close()


async def test_a_run_outlives_an_outage_of_the_store(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        wrote, refused = asyncio.Event(), asyncio.Event()
        append = system.store.append

        async def noted(*arguments: Any) -> int:
            try:
                new = await append(*arguments)
            except TranscriptsUnavailable:
                refused.set()
                raise
            wrote.set()
            return new

        monkeypatch.setattr(system.store, "append", noted)
        gate = tmp_path / "gate"
        more = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done"
        raw = system.agent(f"cat > /dev/null; echo first; until [ -e {gate} ]; do sleep 0.05; done; {more}")
        ticket = await system.start(raw)
        async with asyncio.timeout(60):
            await wrote.wait()
            with locked(tmp_path / "transcripts.db"):
                gate.touch()
                await refused.wait()
            outcome = await outcome_at_close(ticket.handle(temporal))
        kept = [line.data for line in await system.lines(raw) if line.stream == "stdout"]
        sealed = await system.store.receipt(attempt_key(raw))
    assert kept == [b"first", *(b"line %d" % n for n in range(100))]
    assert outcome.receipt == sealed
    assert sealed is not None
    assert sealed.state == "verified"


@pytest.mark.parametrize("login", ["somebody:canary@127.0.0.1:1/db", "somebody@127.0.0.1:1/db?password=canary"])
async def test_an_unreachable_store_is_named_without_its_password(login: str) -> None:
    with pytest.raises(TranscriptsUnavailable) as refused:
        await TranscriptStore.open(f"postgresql://{login}")
    assert "127.0.0.1" in refused.value.message
    assert "canary" not in refused.value.message
