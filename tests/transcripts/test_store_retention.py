"""What retention deletes, and what it never does."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from contracts.errors import TranscriptsUnavailable
from contracts.identity import AttemptKey, RunKey
from contracts.outcome import OutputReceipt
from transcripts.retention import LONGEST_RUN, Swept, sweep, sweeping
from transcripts.store import Expiry, Forgotten, Line, SqlTranscripts, Writer

NOW = datetime.now(UTC)
KEEP = timedelta(days=2)


def key(run_id: str, attempt: int = 1) -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id=run_id), attempt=attempt)


def aged(sequence: int, age: timedelta, data: bytes = b"x") -> Line:
    return Line(sequence, "stdout", data, at=NOW - age)


async def kept(store: SqlTranscripts) -> set[str]:
    return {run.run_id for run in await store.runs()}


async def test_transcripts_go_when_their_last_line_is_too_old(any_store: SqlTranscripts) -> None:
    hour = timedelta(hours=1)
    await any_store.append(key("old"), [aged(1, KEEP * 3), aged(2, KEEP + hour)])
    await any_store.append(key("fresh"), [aged(1, KEEP * 3), aged(2, KEEP - hour)])
    await any_store.append(key("old", attempt=2), [aged(1, KEEP - hour)])
    for one in (key("old"), key("fresh"), key("old", 2)):
        await any_store.seal(one, OutputReceipt())
    assert await sweep(any_store, KEEP, NOW) == Swept(attempts=1, lines=2, bytes=2)
    assert await any_store.attempts("old") == [2]
    assert await any_store.read(key("old")) == []
    assert len(await any_store.read(key("fresh"))) == 2
    assert await sweep(any_store, KEEP, NOW) == Swept()


async def test_what_an_agent_may_still_write_stays(any_store: SqlTranscripts) -> None:
    await any_store.append(key("silent"), [aged(1, LONGEST_RUN - timedelta(hours=1))])
    await any_store.append(key("abandoned"), [aged(1, LONGEST_RUN + timedelta(hours=1))])
    await any_store.claim(key("about to speak"), Writer(NOW, 1, "temporal-run"))
    await any_store.seal(key("never spoke"), OutputReceipt())
    await sweep(any_store, timedelta(microseconds=1), NOW)
    assert await kept(any_store) == {"silent", "about to speak", "never spoke"}
    await sweep(any_store, timedelta(microseconds=1), NOW + timedelta(minutes=50))
    assert await kept(any_store) == {"silent", "about to speak"}


async def test_a_long_retention_holds_for_unsealed_transcripts_too(any_store: SqlTranscripts) -> None:
    await any_store.append(key("unsealed"), [aged(1, timedelta(days=80))])
    await sweep(any_store, timedelta(days=90), NOW)
    assert await kept(any_store) == {"unsealed"}


async def test_each_step_is_bounded_in_lines_and_bytes_and_lets_writers_in_between(any_store: SqlTranscripts) -> None:
    await any_store.append(key("many"), [aged(n, KEEP * 2, b"") for n in range(1, 2501)])
    await any_store.append(key("large"), [aged(n, KEEP * 2, bytes(3_000_000)) for n in range(1, 5)])
    for run in ("many", "large"):
        await any_store.seal(key(run), OutputReceipt())
    steps: list[Forgotten] = []
    while step := await any_store.forget(Expiry(NOW - KEEP, NOW - LONGEST_RUN)):
        steps.append(step)
        assert await any_store.append(key("live"), [aged(len(steps), timedelta())]) == 1
    assert max(step.lines for step in steps) <= 1000
    assert max(step.bytes for step in steps) <= 4 * 1024 * 1024
    assert (sum(step.lines for step in steps), sum(step.whole for step in steps)) == (2504, 2)
    assert await kept(any_store) == {"live"}


async def test_two_workers_sweep_side_by_side(any_store: SqlTranscripts, store_url: str) -> None:
    other = await SqlTranscripts.open(store_url)
    for run in range(10):
        await any_store.append(key(f"run-{run}"), [aged(n, KEEP * 2) for n in range(1, 1200)])
        await any_store.seal(key(f"run-{run}"), OutputReceipt())
    swept = await asyncio.gather(*(sweep(store, KEEP, NOW) for store in (any_store, other)))
    await sweep(any_store, KEEP, NOW)  # one of them may have passed by what the other was busy with
    assert sum(one.lines for one in swept) == 10 * 1199
    assert await kept(any_store) == set()
    await other.close()


class Scripted:
    """A store that answers a sweep as it is told, and says when it was asked."""

    def __init__(self, *answers: Forgotten | Exception | None) -> None:
        self._answers = list(answers)
        self.done = asyncio.Event()

    async def forget(self, expiry: Expiry) -> Forgotten | None:
        assert expiry.sealed > expiry.all
        answer = self._answers.pop(0) if self._answers else None
        if not self._answers:
            self.done.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_the_worker_sweeps_again_and_again_also_after_an_outage() -> None:
    store = Scripted(TranscriptsUnavailable("away"), Forgotten(1, 1, whole=True), None, None)
    async with sweeping(store, KEEP, period=timedelta()), asyncio.timeout(30):
        await store.done.wait()


async def test_without_a_limit_nothing_is_swept() -> None:
    store = Scripted(AssertionError("asked"))
    async with sweeping(store, None, period=timedelta()):
        for _ in range(10):
            await asyncio.sleep(0)
    assert not store.done.is_set()


@pytest.mark.parametrize("days", [0, 1, 365])
async def test_retention_never_reaches_into_the_future(any_store: SqlTranscripts, days: int) -> None:
    await any_store.append(key("now"), [aged(1, timedelta(seconds=-5))])
    await any_store.seal(key("now"), OutputReceipt())
    assert await sweep(any_store, timedelta(days=days), NOW) == Swept()
