"""What lists of runs read from the store: exact usage, totals, newest runs, along indexes and gone with retention."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import Connection, Select, text

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.fleet import MAX_GROUPS, Selection, newest_query, totals_query, usage_query
from agent_runs.transcript.retention import purge
from agent_runs.transcript.store import Line, TranscriptStore, Writer
from agent_runs.transcript.usage import MAX_COST, MAX_TOKENS, StoredUsage

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
FIRST, SECOND = Writer(NOON, 1, "temporal"), Writer(NOON, 2, "temporal")


def key(run: str = "run-1", attempt: int = 1, agent: str = "ada", company: str = "acme") -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id=agent, company_id=company, run_id=run), attempt=attempt)


def line(sequence: int = 1) -> Line:
    return Line(sequence, "stdout", b"x", at=NOON)


def used(tokens: int = 10, cost: str | None = "0.000001") -> StoredUsage:
    price = None if cost is None else Decimal(cost)
    return StoredUsage(tokens, 2 * tokens, 3 * tokens, 1, price, "fake/model", "hello")


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


async def test_usage_comes_with_lines_and_without_any_and_the_newest_counts(any_store: TranscriptStore) -> None:
    await any_store.append(key(), [line(1)], usage=used(1))
    await any_store.append(key(), [line(2)])
    await any_store.append(key(), [], usage=used(5, "0.25"))
    known = (await any_store.fleet.usage(["ada~run-1", "ada~run-2", ""]))["ada~run-1"]
    assert (known.input_tokens, known.cached_tokens, known.output_tokens, known.tokens) == (5, 10, 15, 30)
    assert (known.cost_usd, known.model, known.last_output, known.sealed) == (
        Decimal("0.25"),
        "fake/model",
        "hello",
        False,
    )
    assert known.last_at == NOON
    assert await any_store.last(key()) == 2
    await any_store.seal(key(), OutputReceipt())
    await any_store.record_usage(key(), used(7, None))
    known = (await any_store.fleet.usage([key().run.name]))["ada~run-1"]
    assert (known.input_tokens, known.cost_usd, known.unpriced, known.sealed) == (7, None, 1, True)


async def test_attempts_of_a_run_add_up_exactly(any_store: TranscriptStore) -> None:
    for attempt in range(1, 11):
        await any_store.append(key(attempt=attempt), [line()], usage=used(1, "0.1"))
    await any_store.append(key(attempt=11), [line()])
    known = (await any_store.fleet.usage([key().run.name]))["ada~run-1"]
    assert (known.attempts, known.steps, known.cost_usd, known.unpriced) == (11, 10, Decimal(1), 0)
    (total,) = (await any_store.fleet.totals(Selection()))["agent"]
    assert (total.name, total.runs, total.input_tokens, total.cost_usd) == ("ada", 1, 10, Decimal(1))


async def test_a_writer_that_was_replaced_changes_no_usage(any_store: TranscriptStore) -> None:
    await any_store.append(key(), [line()], SECOND, used(1))
    with pytest.raises(Exception, match="activity attempt 2"):
        await any_store.append(key(), [], FIRST, used(9))
    assert (await any_store.fleet.usage([key().run.name]))["ada~run-1"].input_tokens == 1


async def test_usage_of_an_attempt_that_retention_has_deleted_is_not_made_anew(any_store: TranscriptStore) -> None:
    await any_store.append(key(), [line()], usage=used())
    await any_store.seal(key(), OutputReceipt())
    await purge(any_store, timedelta(days=1), datetime.now(UTC) + timedelta(days=40))
    await any_store.record_usage(key(), used())
    assert await any_store.fleet.usage(["ada~run-1"]) == {}
    assert await any_store.fleet.totals(Selection()) == {"agent": [], "company": [], "day": []}


async def test_numbers_that_an_agent_makes_up_do_not_break_the_totals(any_store: TranscriptStore) -> None:
    absurd = StoredUsage(2**53, 2**53, 2**53, 2**53, Decimal("1e30"), "m" * 5000, "o" * 5000)
    for attempt in range(1, 6):
        await any_store.append(key(attempt=attempt), [line()], usage=absurd)
    (total,) = (await any_store.fleet.totals(Selection()))["company"]
    assert (total.input_tokens, total.cost_usd) == (5 * MAX_TOKENS, 5 * MAX_COST)


async def test_totals_are_by_agent_company_and_day_of_what_is_selected(store_url: str) -> None:
    clock = Clock()
    store = await TranscriptStore.open(store_url, clock=clock)
    for day in range(40):
        clock.now = NOON + timedelta(days=day)
        await store.append(key(f"a{day}", agent="ada"), [line()], usage=used(1, "0.5"))
        clock.now += timedelta(hours=11, minutes=59)
        await store.append(key(f"b{day}", agent="bob", company="beta"), [line()], usage=used(1, None))
    totals = await store.fleet.totals(Selection(since=NOON + timedelta(days=38)))
    assert [(one.name, one.runs, one.cost_usd, one.unpriced) for one in totals["agent"]] == [
        ("ada", 2, Decimal(1), 0),
        ("bob", 2, None, 2),
    ]
    assert [one.name for one in totals["company"]] == ["acme", "beta"]
    assert [(one.name, one.runs) for one in totals["day"]] == [("2026-02-10", 2), ("2026-02-09", 2)]
    assert len((await store.fleet.totals(Selection()))["day"]) == MAX_GROUPS
    (only,) = (await store.fleet.totals(Selection(agent="bob", company="beta", model="fake/model")))["agent"]
    assert (only.name, only.runs) == ("bob", 40)
    await store.close()


async def test_the_newest_runs_come_page_by_page_each_once(store_url: str) -> None:
    clock = Clock()
    store = await TranscriptStore.open(store_url, clock=clock)
    for number in range(5):
        clock.now = NOON + timedelta(seconds=number)
        await store.append(key(f"run-{number}"), [line()])
    clock.now = NOON + timedelta(minutes=1)
    await store.append(key("run-0", attempt=2), [line()])
    first = await store.fleet.newest(Selection(), limit=2)
    assert [(run.run_id, run.attempts) for run in first] == [("run-0", 2), ("run-4", 1)]
    rest = await store.fleet.newest(Selection(), before=first[-1].newest_at)
    assert [run.run_id for run in rest] == ["run-3", "run-2", "run-1"]
    assert await store.fleet.newest(Selection(agent="nobody")) == []
    await store.close()


SELECTION = Selection(since=NOON, agent="ada")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        pytest.param(usage_query(["a", "b"]), "attempts_pkey", id="usage"),
        pytest.param(totals_query(SELECTION, "agent"), "attempts_by_opening", id="by agent"),
        pytest.param(totals_query(SELECTION, "day"), "attempts_by_opening", id="by day"),
        pytest.param(newest_query(SELECTION, NOON, 50), "attempts_by_opening", id="newest"),
    ],
)
async def test_queries_of_lists_scan_no_table(any_store: TranscriptStore, query: Select[object], index: str) -> None:
    plan = await any_store._database.read(lambda connection: explained(connection, query))
    assert index.replace("attempts_pkey", "sqlite_autoindex_attempts_1") in plan or index in plan
    assert "SCAN attempts\n" not in plan
    assert "Seq Scan" not in plan


def explained(connection: Connection, query: Select[object]) -> str:
    """The plan; on PostgreSQL as for a large table."""
    postgres = connection.dialect.name == "postgresql"
    if postgres:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
    statement = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    explain = "EXPLAIN" if postgres else "EXPLAIN QUERY PLAN"
    rows = connection.execute(text(f"{explain} {str(statement).replace(':', chr(92) + ':')}"))
    return "".join(f"{row[-1]}\n" for row in rows)
