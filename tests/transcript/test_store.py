"""What the transcript store promises, on SQLite and on PostgreSQL."""

import asyncio
import resource
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from agent_runs.contracts.errors import TranscriptFenced, TranscriptSealed, TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import Gap, OutputReceipt
from agent_runs.transcript.database import Database
from agent_runs.transcript.lines import page_end
from agent_runs.transcript.store import Line, TranscriptStore, Writer
from tests.transcript.stored_runs import StoredRun, stored_runs

NOON = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)


def key(run_id: str = "run-1", attempt: int = 1) -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id=run_id), attempt=attempt)


def line(sequence: int, data: bytes = b"x", stream: str = "stdout", *, at: datetime = NOON) -> Line:
    return Line(sequence, stream, data, at=at)


async def altered(url: str, *statements: str) -> None:
    """Do something to a store behind its back."""
    database = Database(url)

    def alter(connection: Connection) -> None:
        for statement in statements:
            connection.execute(text(statement))

    await database.write(alter)
    await database.close()


def writer(number: int) -> Writer:
    return Writer(NOON, number, "temporal-run")


@pytest.fixture
def store(any_store: TranscriptStore) -> TranscriptStore:
    return any_store


async def test_lines_come_back_as_they_were_written(store: TranscriptStore) -> None:
    written = [
        Line(1, "stdout", b"", at=NOON),
        Line(2, "stderr", b"nul \x00 esc \x1b[31m cr \r bad \xff\xfe", at=NOON),
        Line(3, "stdout", bytes(range(256)), terminated=False, at=NOON.astimezone(timezone(timedelta(hours=5)))),
    ]
    assert await store.append(key(), written) == 3
    assert await store.read(key()) == written


@pytest.mark.parametrize("sizes", [[0], [0, 0], [3, 0], [0, 3], [1, 0, 2_000_000, 0, 0]])
async def test_lines_of_any_length_stay_apart(store: TranscriptStore, sizes: list[int]) -> None:
    written = [line(number, bytes([number]) * size) for number, size in enumerate(sizes, 1)]
    assert await store.append(key(), written) == len(sizes)
    assert await store.read(key()) == written


async def test_names_and_numbers_are_stored_exactly(store: TranscriptStore) -> None:
    odd = AttemptKey(run=RunKey(agent_id="a\"\\'é", company_id="\u2028\t\n", run_id="'); --"), attempt=7)
    last = line(2**63 - 1, b"$[0]", "json '\"[{")
    late = Line(1, "stderr", b"", terminated=False, at=datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))
    await store.append(odd, [late, last], writer(2**40))
    assert await store.read(odd) == [late, last]
    assert await store.attempts(odd.run) == [7]
    (summary,) = await stored_runs(store)
    assert (summary.agent_id, summary.company_id, summary.lines) == ("a\"\\'é", "\u2028\t\n", 2)


async def test_a_run_belongs_to_the_temporal_run_that_opened_it_first(store: TranscriptStore) -> None:
    run = key().run
    opened = await asyncio.gather(*(store.open_run(run, f"run-{n}") for n in range(5)))
    assert len(set(opened)) == 1
    assert await store.attempts(run) == []  # none was made yet
    await store.claim(key(), writer(1))
    await store.seal(key(), OutputReceipt(), writer(1))
    assert await store.open_run(run, "later") == "temporal-run"  # of the last writer


async def test_a_line_of_five_megabytes_round_trips(store: TranscriptStore) -> None:
    huge = line(1, bytes(range(256)) * 20_000)
    await store.append(key(), [huge])
    assert await store.read(key(), max_bytes=1) == [huge]


async def test_a_repeated_batch_changes_nothing(store: TranscriptStore) -> None:
    batch = [line(n, b"first") for n in range(1, 6)]
    assert await store.append(key(), batch) == 5
    assert await store.append(key(), [line(n, b"second") for n in range(3, 9)]) == 3
    kept = await store.read(key())
    assert [(kept_line.sequence, kept_line.data) for kept_line in kept] == [
        *((n, b"first") for n in range(1, 6)),
        *((n, b"second") for n in range(6, 9)),
    ]
    (run,) = await stored_runs(store)
    assert (run.lines, run.bytes) == (8, 5 * 5 + 3 * 6)


async def test_the_first_of_equal_sequences_in_one_batch_is_stored(store: TranscriptStore) -> None:
    assert await store.append(key(), [line(1, b"first"), line(1, b"later")]) == 1
    assert await store.read(key()) == [line(1, b"first")]
    (run,) = await stored_runs(store)
    assert (run.lines, run.bytes) == (1, 5)


async def test_a_batch_larger_than_one_statement_is_stored_whole(store: TranscriptStore) -> None:
    batch = [line(n, b"%d" % n) for n in range(1, 12_001)]
    assert await store.append(key(), batch) == 12_000
    assert await store.last(key()) == 12_000
    assert await store.append(key(), batch) == 0


async def test_the_last_sequence_is_where_to_resume(store: TranscriptStore) -> None:
    assert await store.last(key()) is None
    await store.append(key(), [line(4), line(9)])
    assert await store.last(key()) == 9


async def test_attempts_and_runs_are_separate(store: TranscriptStore) -> None:
    await store.append(key(attempt=2), [line(1, b"two")])
    await store.append(key(attempt=1), [line(1, b"one")])
    await store.append(key("run-2"), [line(1, b"other")])
    assert await store.attempts(RunKey.named("ada~run-1")) == [1, 2]
    assert await store.attempts(RunKey.named("ada~unknown")) == []
    assert await store.read(key(attempt=2)) == [line(1, b"two")]


async def test_an_empty_batch_leaves_no_trace(store: TranscriptStore) -> None:
    assert await store.append(key(), []) == 0
    assert await store.attempts(RunKey.named("ada~run-1")) == []


async def test_what_is_stored_is_not_kept_in_memory(store: TranscriptStore) -> None:
    sequence, before = 0, resident()
    for count in range(1, 40):  # each count of lines makes a statement of its own
        await store.append(key(), [line(sequence + each, bytes(100_000)) for each in range(1, count + 1)])
        sequence += count
    assert resident() - before < sequence * 100_000 // 2


def resident() -> int:
    """This process's resident memory in bytes."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


async def test_pages_are_bounded_in_lines_and_bytes_and_lose_nothing(store: TranscriptStore) -> None:
    written = [line(n, b"x" * (1000 * (n % 7))) for n in range(1, 201)]
    await store.append(key(), written)
    seen: list[Line] = []
    while page := await store.read(key(), after=seen[-1].sequence if seen else 0, limit=10, max_bytes=9000):
        assert len(page) <= 10
        assert len(page) == 1 or sum(len(kept.data) for kept in page) <= 9000
        seen += page
    assert seen == written
    seen = []
    while page := await store.read_before(key(), seen[0].sequence if seen else 201, limit=10, max_bytes=9000):
        assert len(page) <= 10
        assert len(page) == 1 or sum(len(kept.data) for kept in page) <= 9000
        seen = page + seen
    assert seen == written


async def test_runs_are_listed_newest_first_with_their_counts(store: TranscriptStore) -> None:
    later = NOON + timedelta(hours=1)
    await store.append(key("old"), [line(1, b"abc")])
    await store.append(key("new"), [line(1, b"12345", at=later)])
    await store.append(key("old", 2), [line(1, b"defg", at=later), line(2, b"", at=later)])
    await store.seal(key("old", 1), OutputReceipt())
    assert await stored_runs(store) == [
        StoredRun("new", "ada", "acme", 1, 1, 5, later, later, sealed=False),
        StoredRun("old", "ada", "acme", 2, 3, 7, NOON, later, sealed=False),
    ]
    assert [run.run_id for run in await stored_runs(store, limit=1)] == ["new"]
    await store.seal(key("old", 2), OutputReceipt())
    assert [run.sealed for run in await stored_runs(store)] == [False, True]


async def test_the_first_receipt_is_final(store: TranscriptStore) -> None:
    receipt = OutputReceipt(state="differs", lines=3, bytes=9, checksum="ab", gaps=(Gap(after_sequence=2),))
    await store.append(key(), [line(1)])
    assert await store.receipt(key()) is None
    assert await store.seal(key(), receipt) == receipt
    assert await store.seal(key(), OutputReceipt(state="unverified")) == receipt
    assert await store.receipt(key()) == receipt
    (run,) = await stored_runs(store)
    assert (run.lines, run.sealed) == (1, True)


async def test_an_attempt_without_output_can_be_sealed(store: TranscriptStore) -> None:
    await store.seal(key(), OutputReceipt(state="unverified"))
    assert await store.attempts(RunKey.named("ada~run-1")) == [1]
    assert await stored_runs(store) == [StoredRun("run-1", "ada", "acme", 1, 0, 0, None, None, sealed=True)]


async def test_stored_lines_survive_a_restart(store_url: str) -> None:
    before = await TranscriptStore.open(store_url)
    await before.append(key(), [line(1)])
    await before.close()
    after = await TranscriptStore.open(store_url)
    assert await after.read(key()) == [line(1)]
    await after.close()


async def test_a_new_store_may_be_opened_by_many_at_once(store_url: str) -> None:
    opened = await asyncio.gather(*(TranscriptStore.open(store_url) for _ in range(12)))
    new = await asyncio.gather(*(store.append(key(f"run-{n}"), [line(1)]) for n, store in enumerate(opened)))
    assert sum(new) == len(await stored_runs(opened[0])) == 12
    await asyncio.gather(*(store.close() for store in opened))


async def test_writers_and_readers_of_one_store_do_not_disturb_each_other(
    store: TranscriptStore, store_url: str
) -> None:
    other = await TranscriptStore.open(store_url)
    owners = [(store, "a"), (other, "b"), (store, "c"), (other, "d")]

    async def write(owner: TranscriptStore, run_id: str) -> None:
        for start in range(1, 101, 10):
            await owner.append(key(run_id), [line(n) for n in range(start, start + 10)])

    async def reread(owner: TranscriptStore, run_id: str) -> None:
        while await owner.last(key(run_id)) != 100:
            stored_lines = await owner.read(key(run_id))
            assert [stored.sequence for stored in stored_lines] == list(range(1, len(stored_lines) + 1))

    async with asyncio.TaskGroup() as both:
        for owner, run_id in owners:
            both.create_task(write(owner, run_id))
            both.create_task(reread(owner, run_id))
    assert {run.run_id: run.lines for run in await stored_runs(other)} == {"a": 100, "b": 100, "c": 100, "d": 100}
    await other.close()


async def test_cancelled_writers_and_readers_leave_a_working_store(store: TranscriptStore) -> None:
    for turn in range(20):
        writes = [asyncio.create_task(store.append(key(f"{turn}-{n}"), [line(1), line(2)])) for n in range(6)]
        reads = [asyncio.create_task(store.read(key(f"{turn}-{n}"))) for n in range(6)]
        for _ in range(turn):
            await asyncio.sleep(0)  # a different moment each time
        for task in (*writes[::2], *reads[::2]):
            task.cancel()
        assert await asyncio.gather(*writes[1::2]) == [2, 2, 2]
        await asyncio.gather(*writes, *reads, return_exceptions=True)
    assert all(run.lines == 2 for run in await stored_runs(store, limit=1000))
    assert await store.append(key("after"), [line(1)]) == 1


async def test_the_same_batch_from_two_processes_is_stored_once(store: TranscriptStore, store_url: str) -> None:
    other = await TranscriptStore.open(store_url)
    batch = [line(n) for n in range(1, 501)]
    new = await asyncio.gather(*(owner.append(key(), batch) for owner in (store, other, store, other)))
    assert sum(new) == 500
    (run,) = await stored_runs(store)
    assert run.lines == 500
    await other.close()


async def test_a_failed_batch_stores_nothing(sqlite_url: str, tmp_path: Path) -> None:
    store = await TranscriptStore.open(sqlite_url)
    with sqlite3.connect(tmp_path / "transcripts.db") as database:
        database.execute(
            "CREATE TRIGGER full BEFORE UPDATE OF lines ON attempts BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    database.close()
    with pytest.raises(IntegrityError, match="full"):
        await store.append(key(), [line(1), line(2)])
    assert await store.last(key()) is None
    await store.close()


async def test_an_outage_is_named_can_be_retried_and_quotes_no_output(store: TranscriptStore, store_url: str) -> None:
    await altered(store_url, "DROP TABLE lines")
    with pytest.raises(TranscriptsUnavailable, match=r"no such table|does not exist") as raised:
        await store.append(key(), [line(1, b"SECRET-CANARY")])
    assert not raised.value.non_retryable
    assert raised.value.type == "transcripts_unavailable"
    assert "CANARY" not in str(raised.value) + str(raised.value.__cause__)


async def test_a_file_that_cannot_be_created_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(TranscriptsUnavailable, match=r"absent.*unable to open database file"):
        await TranscriptStore.open(f"sqlite:///{tmp_path}/absent/transcripts.db")


async def test_a_file_that_is_no_database_is_an_outage(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "transcripts.db").write_bytes(b"not a database " * 500)
    with pytest.raises(TranscriptsUnavailable, match="file is not a database"):
        await TranscriptStore.open(sqlite_url)


@pytest.mark.parametrize(
    ("where", "remedy"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("mysql://host/db", "sqlite:///FILE or postgresql"),
        ("not a url", "sqlite:///FILE or postgresql"),
    ],
)
async def test_a_url_that_cannot_work_is_refused_with_the_remedy(where: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        await TranscriptStore.open(where)


@pytest.mark.parametrize(("sequence", "at"), [(0, NOON), (-1, NOON), (1, NOON.replace(tzinfo=None))])
def test_a_line_that_could_not_be_read_back_is_refused(sequence: int, at: datetime) -> None:
    with pytest.raises(ValueError, match=r"count from 1|time zone"):
        Line(sequence, "stdout", b"", at=at)


@given(st.lists(st.integers(0, 50)), st.integers(0, 100))
def test_a_page_is_as_long_as_its_bytes_allow_and_never_stuck(sizes: list[int], max_bytes: int) -> None:
    end = page_end(enumerate(sizes, start=1), max_bytes)
    if not sizes:
        assert end is None
        return
    assert end is not None
    assert end == 1 or sum(sizes[:end]) <= max_bytes
    assert end == len(sizes) or sum(sizes[: end + 1]) > max_bytes


async def test_two_hundred_megabytes_are_read_in_pages(store: TranscriptStore) -> None:
    row = bytes(range(256)) * 800
    for start in range(1, 1001, 40):
        await store.append(key(), [line(n, row) for n in range(start, start + 40)])
    after = count = 0
    while page := await store.read(key(), after):
        assert sum(len(kept.data) for kept in page) <= 4 * 1024 * 1024
        assert all(kept.data == row for kept in page)
        after, count = page[-1].sequence, count + len(page)
    assert count * len(row) >= 200_000_000


async def test_nothing_appears_behind_the_cursor_of_a_reader(store: TranscriptStore) -> None:
    await store.append(key(), [line(1), line(5, b"{}", "gap"), line(9)])
    with pytest.raises(ValueError, match="line 6 was appended after line 9: backfill a gap"):
        await store.append(key(), [line(6), line(10)])
    assert [stored.sequence for stored in await store.read(key())] == [1, 5, 9]
    assert await store.append(key(), [line(12), line(11)]) == 2  # the order within a batch is the writer's choice
    assert [stored.sequence for stored in await store.read(key())] == [1, 5, 9, 11, 12]


async def test_a_refused_writer_does_not_affect_the_others_in_its_group(store: TranscriptStore) -> None:
    await store.append(key("late"), [line(5)])
    await store.claim(key("fenced"), writer(2))
    results = await asyncio.gather(
        store.append(key("other"), [line(1)]),
        store.append(key("late"), [line(3)]),
        store.append(key("fenced"), [line(1)], writer(1)),
        store.append(key("fenced"), [line(1, b"2")], writer(2)),
        return_exceptions=True,
    )
    assert [answer if isinstance(answer, int) else type(answer) for answer in results] == [
        1,
        ValueError,
        TranscriptFenced,
        1,
    ]
    assert await store.read(key("fenced")) == [line(1, b"2")]


async def test_an_earlier_writer_is_fenced_once_a_later_one_claimed(store: TranscriptStore, store_url: str) -> None:
    elsewhere = await TranscriptStore.open(store_url)
    await store.claim(key(), writer(1))
    assert await store.append(key(), [line(1)], writer(1)) == 1
    await elsewhere.claim(key(), writer(2))
    first, unclaimed = "activity attempt 1 of 2026-01-02", "a writer without a claim"
    for late, name in (
        (store.append(key(), [line(2)], writer(1)), first),
        (store.append(key(), [line(2)]), unclaimed),
        (store.append(key(), [line(1)], writer(1)), first),
        (store.seal(key(), OutputReceipt(), writer(1)), first),
        (store.seal(key(), OutputReceipt()), unclaimed),
        (store.claim(key(), writer(1)), first),
    ):
        latest = "run ada~run-1, attempt 1: activity attempt 2 of 2026-01-02.*in run temporal-run"
        with pytest.raises(TranscriptFenced, match=f"{latest} writes it, not {name}") as raised:
            await late
        assert raised.value.non_retryable
    assert await elsewhere.append(key(), [line(2, b"second")], writer(2)) == 1
    assert [stored.data for stored in await store.read(key())] == [b"x", b"second"]
    assert await store.receipt(key()) is None
    assert await elsewhere.seal(key(), OutputReceipt(lines=2), writer(2)) == OutputReceipt(lines=2)
    await elsewhere.close()


async def test_a_rescheduled_activity_is_later_than_all_attempts_of_the_one_before(store: TranscriptStore) -> None:
    await store.claim(key(), writer(7))
    rescheduled = Writer(NOON + timedelta(seconds=1), 1, "temporal-run")
    await store.claim(key(), rescheduled)
    with pytest.raises(TranscriptFenced):
        await store.claim(key(), writer(8))
    assert await store.append(key(), [line(1)], rescheduled) == 1


async def test_of_many_writers_at_once_the_latest_wins_and_no_line_is_mixed_in(
    store: TranscriptStore, store_url: str
) -> None:
    elsewhere = await TranscriptStore.open(store_url)

    async def write(number: int) -> None:
        owner = (store, elsewhere)[number % 2]
        with suppress(TranscriptFenced):
            await owner.claim(key(), writer(number))
            for _ in range(30):
                at = (await owner.last(key()) or 0) + 1
                await owner.append(key(), [line(at, b"%d" % number), line(at + 1, b"%d" % number)], writer(number))

    await asyncio.gather(*map(write, range(1, 9)))
    kept = await store.read(key())
    writers = [int(one.data) for one in kept]
    assert writers == sorted(writers)
    assert writers.count(8) == 60
    assert [one.sequence for one in kept] == list(range(1, len(kept) + 1))
    await elsewhere.close()


async def test_a_claimed_attempt_is_listed_before_its_first_line(store: TranscriptStore) -> None:
    await store.append(key("older"), [line(1)])
    await store.claim(key(), writer(1))
    assert await store.attempts(RunKey.named("ada~run-1")) == [1]
    assert [(run.run_id, run.started_at) for run in await stored_runs(store)] == [("run-1", None), ("older", NOON)]


async def test_a_sealed_attempt_takes_repeats_and_nothing_else(store: TranscriptStore) -> None:
    last = Line(2, "stdout", b"end", terminated=False, at=NOON)
    await store.append(key(), [line(1), last])
    await store.seal(key(), OutputReceipt(lines=2))
    assert await store.append(key(), [line(1, at=NOON + timedelta(hours=1)), last]) == 0
    for wrong in (line(3), line(1, b"other"), line(1, stream="stderr"), Line(2, "stdout", b"end", at=NOON)):
        with pytest.raises(
            TranscriptSealed, match=f"run ada~run-1, attempt 1: line {wrong.sequence} came after its receipt"
        ):
            await store.append(key(), [line(1), wrong])
    assert await store.read(key()) == [line(1), last]


async def test_a_run_that_the_store_does_not_know_takes_no_bytes_of_it(store: TranscriptStore) -> None:
    assert await store.stored_bytes(key("unknown").run) == 0
