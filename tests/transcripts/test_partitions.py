"""Lines in PostgreSQL are in partitions by day: retention drops whole days, and never what must be kept."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcripts.partitions import AHEAD, name_of
from agent_runs.transcripts.retention import MAX_RUN_TIME, purge
from agent_runs.transcripts.store import Line, TranscriptStore, Writer

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
DAY = timedelta(days=1)
RETENTION = 5 * DAY
DROPPED = RETENTION + 2 * DAY
"""After this time from the start of a day nothing of a usual length is left of it."""


class Clock:
    """The time of a worker."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(postgres_url: str, clock: Clock) -> AsyncIterator[TranscriptStore]:
    opened = await TranscriptStore.open(postgres_url, clock=clock)
    yield opened
    await opened.close()


def key(run_id: str, attempt: int = 1) -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id=run_id), attempt=attempt)


def line(sequence: int, at: datetime, data: bytes = b"x") -> Line:
    return Line(sequence, "stdout", data, at=at)


async def sealed(store: TranscriptStore, run_id: str, at: datetime, count: int = 3) -> None:
    await store.append(key(run_id), [line(n, at) for n in range(1, count + 1)])
    await store.seal(key(run_id), OutputReceipt(lines=count))


async def rows(store: TranscriptStore, query: str) -> Sequence[object]:
    def select(connection: Connection) -> Sequence[object]:
        return connection.execute(text(query)).scalars().all()

    return await store._database.read(select)


async def partitions(store: TranscriptStore) -> set[object]:
    attached = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'lines'::regclass"
    return set(await rows(store, attached))


async def with_lines(store: TranscriptStore) -> set[object]:
    return set(await rows(store, "SELECT DISTINCT tableoid::regclass::text FROM lines"))


def day(offset: int = 0) -> str:
    return f"lines_{NOON + offset * DAY:%Y%m%d}"


async def test_all_lines_of_an_attempt_are_where_it_was_opened_however_long_it_takes(
    store: TranscriptStore, clock: Clock, postgres_url: str
) -> None:
    await store.append(key("long"), [line(1, clock.now), line(2, clock.now)])
    clock.now += 3 * DAY
    elsewhere = await TranscriptStore.open(postgres_url, clock=clock)
    assert await elsewhere.append(key("long"), [line(n, clock.now, b"later") for n in (1, 2, 3)]) == 1
    assert await with_lines(store) == {day()}
    assert [kept.data for kept in await store.read(key("long"))] == [b"x", b"x", b"later"]
    assert await store.last(key("long")) == 3
    await elsewhere.close()


async def test_partitions_are_made_ahead_by_any_number_of_workers(postgres_url: str, clock: Clock) -> None:
    workers = [await TranscriptStore.open(postgres_url, clock=clock) for _ in range(4)]
    await asyncio.gather(*(worker.prepare() for worker in workers))
    assert await partitions(workers[0]) == {"lines_kept", *(day(offset) for offset in range(AHEAD + 1))}
    await asyncio.gather(*(worker.close() for worker in workers))


async def test_a_line_without_a_partition_is_refused_and_stored_by_the_retry(store: TranscriptStore) -> None:
    await store.prepare()
    await store._database.write(lambda connection: connection.execute(text(f"DROP TABLE {day()}")))
    with pytest.raises(TranscriptsUnavailable, match="no partition"):
        await store.append(key("run"), [line(1, NOON)])
    assert await store.append(key("run"), [line(1, NOON)]) == 1


async def test_a_partition_is_made_while_lines_are_written_and_read(store: TranscriptStore, clock: Clock) -> None:
    await sealed(store, "run", NOON)

    def hold(connection: Connection) -> None:
        connection.execute(
            text("INSERT INTO lines SELECT run, 2, day, sequence, stream, data, terminated, at FROM lines")
        )
        loop.call_soon_threadsafe(started.set)

    started, loop = asyncio.Event(), asyncio.get_running_loop()
    async with store._database.schema_change() as open_transaction:
        await open_transaction.run_sync(hold)
        clock.now += 30 * DAY
        async with asyncio.timeout(60):
            await store.prepare()
    assert day(30) in await partitions(store)


async def test_retention_drops_a_day_and_deletes_no_line_by_line(store: TranscriptStore, clock: Clock) -> None:
    for run in range(3):
        await sealed(store, f"old-{run}", clock.now)
    await store._database.write(_forbid_deletes)
    clock.now += 2 * DAY
    await sealed(store, "later", clock.now)
    purged = await purge(store, RETENTION, NOON + RETENTION + timedelta(hours=1))
    assert (purged.attempts, purged.lines, purged.bytes, purged.partitions) == (3, 9, 9, 0)
    assert await store.read(key("old-1")) == []  # nobody reads what is expired, though the day is not over for all
    purged = await purge(store, RETENTION, NOON.replace(hour=0) + DROPPED)
    assert (purged.attempts, purged.partitions) == (0, 1)
    assert day() not in await partitions(store)
    assert len(await store.read(key("later"))) == 3
    assert await rows(store, "SELECT run FROM attempts") == ["ada~later"]


def _forbid_deletes(connection: Connection) -> None:
    connection.execute(
        text("CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''a line was deleted''; END'")
    )
    connection.execute(text("CREATE TRIGGER no_delete BEFORE DELETE ON lines FOR EACH ROW EXECUTE FUNCTION forbid()"))


async def test_what_must_be_kept_survives_its_day_and_is_written_on(
    store: TranscriptStore, clock: Clock, postgres_url: str
) -> None:
    elsewhere = await TranscriptStore.open(postgres_url, clock=clock)
    writer = Writer(NOON, 1, "temporal-run")
    await sealed(store, "expired", clock.now)
    await store.append(key("open"), [line(1, clock.now)])
    await store.claim(key("silent"), writer)
    await store.append(key("long"), [line(1, clock.now)])
    clock.now += 6 * DAY
    await store.append(key("long"), [line(2, clock.now)])
    await store.seal(key("long"), OutputReceipt(lines=2))
    clock.now = NOON + DROPPED
    assert (await purge(store, RETENTION, clock.now)).partitions == 1
    assert day() not in await partitions(store)
    assert await with_lines(store) == {"lines_kept"}
    assert [kept.sequence for kept in await elsewhere.read(key("long"))] == [1, 2]
    assert await elsewhere.receipt(key("long")) == OutputReceipt(lines=2)
    assert await elsewhere.append(key("open"), [line(1, NOON, b"repeated"), line(2, clock.now)]) == 1
    assert [kept.data for kept in await store.read(key("open"))] == [b"x", b"x"]
    assert await elsewhere.append(key("silent"), [line(1, clock.now)], writer) == 1
    assert await store.attempts(RunKey.named("ada~expired")) == []
    later = clock.now + MAX_RUN_TIME + DAY
    assert (await purge(store, RETENTION, later)).attempts == 3
    assert await with_lines(store) == set()
    await elsewhere.close()


async def test_a_reader_loses_nothing_when_retention_moves_what_it_reads(store: TranscriptStore, clock: Clock) -> None:
    await store.append(key("open"), [line(n, clock.now) for n in range(1, 2001)])
    clock.now = NOON + DROPPED

    async def read_through() -> list[int]:
        seen: list[int] = []
        while page := await store.read(key("open"), seen[-1] if seen else 0, limit=20):
            seen += [kept.sequence for kept in page]
        return seen

    readers = [asyncio.create_task(read_through()) for _ in range(4)]
    assert (await purge(store, RETENTION, clock.now)).partitions == 1
    assert await asyncio.gather(*readers) == [list(range(1, 2001))] * 4


async def test_a_drop_that_was_interrupted_is_completed_by_the_next(store: TranscriptStore, clock: Clock) -> None:
    await sealed(store, "one", clock.now)
    clock.now += DAY
    await sealed(store, "two", clock.now)
    await store._database.write(
        lambda connection: connection.execute(text(f"ALTER TABLE lines DETACH PARTITION {day()}"))
    )
    clock.now = NOON + DROPPED + DAY
    assert (await purge(store, RETENTION, clock.now)).partitions == 2
    assert await rows(store, f"SELECT to_regclass('{day()}')::text") == [None]


async def test_a_drop_that_was_cancelled_while_a_reader_held_the_partition_is_completed(
    store: TranscriptStore, clock: Clock
) -> None:
    await sealed(store, "one", clock.now)
    clock.now = NOON + DROPPED
    async with store._database.schema_change() as reader:
        assert (await reader.execute(text("SELECT count(*) FROM lines"))).scalar() == 3
        dropping = asyncio.create_task(purge(store, RETENTION, clock.now))
        async with asyncio.timeout(60):
            while not await rows(store, "SELECT 1 FROM pg_inherits WHERE inhdetachpending"):
                await sealed(store, "meanwhile", clock.now)  # nobody waits for the reader
        dropping.cancel()
        await asyncio.wait([dropping])
    assert (await purge(store, RETENTION, clock.now)).partitions == 1
    assert day() not in await partitions(store)


async def test_workers_that_drop_at_the_same_time_drop_once(
    store: TranscriptStore, clock: Clock, postgres_url: str
) -> None:
    elsewhere = await TranscriptStore.open(postgres_url, clock=clock)
    for offset in range(3):
        clock.now = NOON + offset * DAY
        await sealed(store, f"run-{offset}", clock.now)
    clock.now = NOON + DROPPED + 2 * DAY
    purged = await asyncio.gather(*(purge(each, RETENTION, clock.now) for each in (store, elsewhere)))
    assert sum(one.partitions for one in purged) == 3
    assert sum(one.attempts for one in purged) == 3
    assert not {day(0), day(1), day(2)} & await partitions(store)
    await elsewhere.close()


async def test_a_query_about_one_attempt_reads_one_partition(store: TranscriptStore, clock: Clock) -> None:
    for offset in range(20):
        clock.now = NOON + offset * DAY
        await sealed(store, f"run-{offset}", clock.now)
    scanned = await _scans_of(store)
    assert len(await store.read(key("run-7"))) == 3
    await store.append(key("run-7"), [line(1, NOON)])
    after = await _scans_of(store)
    assert {name for name in after if after[name] != scanned.get(name)} <= {day(7)}


async def _scans_of(store: TranscriptStore) -> dict[str, int]:
    """How often each partition was scanned; a session reports its counts when it is asked to, or ends."""
    query = text(
        "SELECT relname, COALESCE(idx_scan, 0) + COALESCE(seq_scan, 0) FROM pg_stat_user_tables "
        "WHERE relname ~ '^lines_'"
    )

    def select(connection: Connection) -> dict[str, int]:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        connection.rollback()
        return {name: int(count) for name, count in connection.execute(query).all()}

    return await store._database.read(select)


def test_partitions_are_named_by_their_date() -> None:
    assert name_of((NOON - datetime(1970, 1, 1, tzinfo=UTC)).days) == day()
