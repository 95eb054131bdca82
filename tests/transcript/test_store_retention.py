"""What retention deletes, and what it never does."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.retention import MAX_RUN_TIME, purge, purging
from agent_runs.transcript.store import Expiry, Line, Purged, TranscriptStore, Writer
from agent_runs.transcript.tokens import LINK_LIFETIME
from tests.transcript.stored_runs import stored_runs

NOW = datetime.now(UTC)
RETENTION = timedelta(days=2)


def key(run_id: str, attempt: int = 1) -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id=run_id), attempt=attempt)


def aged(sequence: int, age: timedelta, data: bytes = b"x") -> Line:
    return Line(sequence, "stdout", data, at=NOW - age)


async def remaining_runs(store: TranscriptStore) -> set[str]:
    return {run.run_id for run in await stored_runs(store)}


async def test_transcripts_are_purged_when_their_last_line_is_too_old(any_store: TranscriptStore) -> None:
    hour = timedelta(hours=1)
    await any_store.append(key("old"), [aged(1, RETENTION * 3), aged(2, RETENTION + hour)])
    await any_store.append(key("fresh"), [aged(1, RETENTION * 3), aged(2, RETENTION - hour)])
    await any_store.append(key("old", attempt=2), [aged(1, RETENTION - hour)])
    for one in (key("old"), key("fresh"), key("old", 2)):
        await any_store.seal(one, OutputReceipt())
    assert await purge(any_store, RETENTION, NOW) == Purged(attempts=1, lines=2, bytes=2)
    assert await any_store.attempts(RunKey.named("ada~old")) == [2]
    assert await any_store.read(key("old")) == []
    assert len(await any_store.read(key("fresh"))) == 2
    assert await purge(any_store, RETENTION, NOW) == Purged()


async def test_a_transcript_that_an_agent_may_still_write_stays(any_store: TranscriptStore) -> None:
    await any_store.append(key("silent"), [aged(1, MAX_RUN_TIME - timedelta(days=1))])
    await any_store.append(key("abandoned"), [aged(1, MAX_RUN_TIME + timedelta(hours=1))])
    await any_store.claim(key("about to write"), Writer(NOW, 1, "temporal-run"))
    await any_store.seal(key("never wrote"), OutputReceipt())
    await purge(any_store, timedelta(microseconds=1), NOW)
    assert await remaining_runs(any_store) == {"silent", "about to write", "never wrote"}
    await purge(any_store, timedelta(microseconds=1), datetime.now(UTC) + timedelta(minutes=50))
    assert await remaining_runs(any_store) == {"silent", "about to write"}


async def test_a_long_retention_holds_for_unsealed_transcripts_too(any_store: TranscriptStore) -> None:
    await any_store.append(key("unsealed"), [aged(1, timedelta(days=80))])
    await purge(any_store, timedelta(days=90), NOW)
    assert await remaining_runs(any_store) == {"unsealed"}


async def test_each_page_is_bounded_in_lines_and_bytes_and_writers_run_in_between(any_store: TranscriptStore) -> None:
    await any_store.append(key("many"), [aged(n, RETENTION * 2, b"") for n in range(1, 2501)])
    await any_store.append(key("large"), [aged(n, RETENTION * 2, bytes(3_000_000)) for n in range(1, 5)])
    for run in ("many", "large"):
        await any_store.seal(key(run), OutputReceipt())
    pages: list[Purged] = []
    while page := await any_store.purge_page(Expiry(NOW - RETENTION, NOW - MAX_RUN_TIME)):
        pages.append(page)
        assert await any_store.append(key("live"), [aged(len(pages), timedelta())]) == 1
    assert max(page.lines for page in pages) <= 1000
    assert max(page.bytes for page in pages) <= 4 * 1024 * 1024
    assert (sum(page.lines for page in pages), sum(page.attempts for page in pages)) == (2504, 2)
    assert await remaining_runs(any_store) == {"live"}


async def test_two_workers_purge_at_the_same_time(any_store: TranscriptStore, store_url: str) -> None:
    other = await TranscriptStore.open(store_url)
    for run in range(10):
        await any_store.append(key(f"run-{run}"), [aged(n, RETENTION * 2) for n in range(1, 1200)])
        await any_store.seal(key(f"run-{run}"), OutputReceipt())
    purged = await asyncio.gather(*(purge(store, RETENTION, NOW) for store in (any_store, other)))
    await purge(any_store, RETENTION, NOW)  # one of them may have passed by what the other was busy with
    assert sum(one.lines for one in purged) == 10 * 1199
    assert await remaining_runs(any_store) == set()
    await other.close()


async def test_the_links_of_a_run_can_be_revoked_again_and_only_later_counts(any_store: TranscriptStore) -> None:
    assert await any_store.links_revoked_at(RunKey.named("ada~one")) is None
    await any_store.revoke_links(RunKey.named("ada~one"), NOW - timedelta(hours=1))
    await any_store.revoke_links(RunKey.named("ada~one"), NOW)
    await any_store.revoke_links(RunKey.named("ada~one"), NOW - timedelta(hours=2))
    assert await any_store.links_revoked_at(RunKey.named("ada~one")) == NOW
    assert await any_store.links_revoked_at(RunKey.named("ada~two")) is None


async def test_a_revocation_is_kept_as_long_as_a_link_from_before_it_may_live(any_store: TranscriptStore) -> None:
    minute = timedelta(minutes=1)
    await any_store.revoke_links(RunKey.named("ada~fresh"), NOW - LINK_LIFETIME + minute)
    await any_store.revoke_links(RunKey.named("ada~old"), NOW - LINK_LIFETIME - minute)
    await purge(any_store, timedelta(days=30), NOW)
    assert await any_store.links_revoked_at(RunKey.named("ada~old")) is not None
    await purge(any_store, timedelta(days=1), NOW)
    assert await any_store.links_revoked_at(RunKey.named("ada~old")) is None
    assert await any_store.links_revoked_at(RunKey.named("ada~fresh")) is not None


class Scripted:
    """A store with scripted answers; `done` is set once all were given."""

    def __init__(self, *answers: Purged | Exception | None) -> None:
        self._answers = list(answers)
        self.done = asyncio.Event()

    async def purge_page(self, expiry: Expiry) -> Purged | None:
        assert expiry.sealed > expiry.all
        answer = self._answers.pop(0) if self._answers else None
        if not self._answers:
            self.done.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def forget_revocations(self, before: datetime) -> None:
        assert before < datetime.now(UTC)


async def test_the_worker_purges_periodically_also_after_an_outage() -> None:
    store = Scripted(TranscriptsUnavailable("away"), Purged(1, 1, 1), None, None)
    async with purging(cast("TranscriptStore", store), RETENTION, interval=timedelta()), asyncio.timeout(60):
        await store.done.wait()


async def test_without_a_retention_nothing_is_purged(any_store: TranscriptStore) -> None:
    await any_store.append(key("old"), [aged(1, timedelta(days=4000))])
    await any_store.seal(key("old"), OutputReceipt())
    async with purging(any_store, None, interval=timedelta()):
        await asyncio.sleep(0)
    assert await remaining_runs(any_store) == {"old"}


@pytest.mark.parametrize("days", [0, 1, 365])
async def test_retention_never_reaches_into_the_future(any_store: TranscriptStore, days: int) -> None:
    await any_store.append(key("now"), [aged(1, timedelta(seconds=-5))])
    await any_store.seal(key("now"), OutputReceipt())
    assert await purge(any_store, timedelta(days=days), NOW) == Purged()
