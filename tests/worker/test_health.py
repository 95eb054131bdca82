"""What probes are told is what Temporal, the store and the cluster say, not what the process believes of itself."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

import worker
from client.connection import DRAIN
from client.polling import Patience, Polling, Silence
from client.settings import WorkerSettings
from client.slots import Slots
from cluster.port import Cluster
from contracts.errors import TranscriptsUnavailable
from tests.workflows.steps import Steps
from transcripts.service import serving
from transcripts.store import SqlTranscripts, TranscriptStore
from web.health import Check, Health, Question, Report, application, questions

SECRET = "s3cr3t-canary"
AT_ONCE = timedelta(0)


class Clock:
    """Time as the test wants it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, time: timedelta) -> None:
        self.now += time.total_seconds()


class Answering:
    """A cluster that only says its version."""

    async def version(self) -> str:
        return "v1.34.1"


class Away:
    """A store behind an outage."""

    async def attempts(self, _run_id: str) -> Sequence[int]:
        raise TranscriptsUnavailable(f"postgresql://ada@host/db?password={SECRET}: connection refused")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    opened = await SqlTranscripts.open(f"sqlite:///{tmp_path}/transcripts.db")
    yield opened
    await opened.close()


def health_of(polling: Polling, store: object) -> Health:
    health = Health(fresh=AT_ONCE)
    health.ask(*questions(polling, cast("TranscriptStore", store), cast("Cluster", Answering())))
    return health


async def until(health: Health, holds: Callable[[Report], bool], between: Callable[[], None] = lambda: None) -> Report:
    """The first report that is so; whoever never becomes so runs into the test's own time-out."""
    while not holds(report := await health.report()):
        between()
        await asyncio.sleep(0.05)
    return report


def state(report: Report, name: str) -> str:
    return next(check.state for check in report.checks if check.name == name)


@asynccontextmanager
async def working(temporal: Client, queue: str, slots: Slots, name: str) -> AsyncIterator[None]:
    """A worker as in production, with stand-ins for the steps."""
    settings = WorkerSettings(task_queue=queue)
    async with worker.temporal_worker(settings, temporal, Steps().activities, slots, name):
        yield


async def test_a_worker_that_polls_is_ready_and_one_that_has_stopped_is_not_live_after_its_patience(
    temporal: Client, queue: str, store: TranscriptStore
) -> None:
    clock, slots, name = Clock(), Slots(10), worker.identity()
    health = health_of(Polling(temporal, queue, name, slots, Patience(), clock), store)
    before = await health.report()
    assert (before.ready, before.live) == (False, True)
    async with working(temporal, queue, slots, name):
        report = await until(health, lambda report: report.ready)
        assert [check.name for check in report.checks] == ["temporal", "polling", "transcripts", "cluster"]
    # The worker is gone, this process is not, and Temporal still lists the poller with its last poll.
    ended = await until(health, lambda report: not report.ready, lambda: clock.pass_by(timedelta(seconds=20)))
    assert ended.live
    assert state(ended, "temporal") == "ok"
    lost = await until(health, lambda report: not report.live, lambda: clock.pass_by(timedelta(seconds=20)))
    assert state(lost, "polling") == "failing"
    assert clock.now > Patience().lost.total_seconds()


async def test_another_worker_of_the_queue_does_not_speak_for_this_one(
    temporal: Client, queue: str, store: TranscriptStore
) -> None:
    slots, name = Slots(10), worker.identity()
    ours = health_of(Polling(temporal, queue, worker.identity(), slots), store)
    theirs = health_of(Polling(temporal, queue, name, slots), store)
    async with working(temporal, queue, slots, name):
        await until(theirs, lambda report: report.ready)
        assert not (await ours.report()).ready


async def test_temporal_away_is_no_reason_to_restart(queue: str, store: TranscriptStore) -> None:
    clock = Clock()
    binary = Path(sys.executable).with_name("temporal")
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(binary), dev_server_log_level="error"
    ) as environment:
        health = health_of(Polling(environment.client, queue, "nobody", Slots(1), Patience(), clock), store)
        await health.report()
    for _ in range(3):
        clock.pass_by(timedelta(hours=1))
        report = await health.report()
        assert (report.ready, report.live) == (False, True)
    assert state(report, "temporal") == "failing"
    assert "restarting this worker would not help" in next(it.detail for it in report.checks if it.name == "temporal")
    assert state(report, "polling") == "unknown"
    assert state(report, "transcripts") == "ok"
    await asyncio.sleep(DRAIN)


async def test_a_store_that_is_away_makes_the_worker_unready_and_is_told_without_its_address(
    temporal: Client, queue: str
) -> None:
    slots, name = Slots(10), worker.identity()
    health = health_of(Polling(temporal, queue, name, slots), Away())
    async with working(temporal, queue, slots, name):
        report = await until(health, lambda report: state(report, "polling") == "ok")
    assert (report.ready, report.live) == (False, True)
    assert state(report, "transcripts") == "failing"
    assert SECRET not in str(report.as_json())
    assert "host" not in next(check.detail for check in report.checks if check.name == "transcripts")


async def test_a_worker_whose_slots_are_all_in_use_is_ready_and_says_so(
    temporal: Client, queue: str, store: TranscriptStore
) -> None:
    clock, slots, name = Clock(), Slots(1), worker.identity()
    health = health_of(Polling(temporal, queue, name, slots, Patience(), clock), store)
    async with working(temporal, queue, slots, name):
        await until(health, lambda report: report.ready)
        slots.take()
        clock.pass_by(timedelta(seconds=80))
        report = await health.report()
    assert report.ready
    assert "all 1 activity slots are in use" in next(it.detail for it in report.checks if it.name == "polling")


def test_only_time_in_which_the_server_was_seen_counts_as_silence() -> None:
    silence, poll = Silence(), datetime(2026, 1, 1, tzinfo=UTC)
    silence.look(poll, timedelta(seconds=5))
    assert (silence.listed, silence.lasted) == (True, timedelta())
    silence.look(poll, timedelta(seconds=5))
    silence.look(poll, timedelta(hours=1))  # nobody asked for an hour: the server may have been away
    assert silence.lasted == timedelta(seconds=35)
    silence.look(poll + timedelta(seconds=60), timedelta(seconds=5))
    assert silence.lasted == timedelta()
    silence.look(None, timedelta(seconds=5))
    assert (silence.listed, silence.lasted) == (False, timedelta(seconds=5))


async def test_a_worker_that_hands_over_is_unready_at_once_and_stays_live() -> None:
    async def lost() -> Sequence[Check]:
        return [Check("polling", "failing", restart_helps=True)]

    health = Health(fresh=timedelta(hours=1))
    health.ask(Question(["polling"], lost))
    assert not (await health.report()).live
    health.drain()
    report = await health.report()
    assert (report.ready, report.live) == (False, True)


async def test_what_never_answers_fails_in_time_and_is_asked_once() -> None:
    asked: list[str] = []

    async def silent() -> Sequence[Check]:
        asked.append("once")
        await asyncio.Event().wait()
        return []

    health = Health(fresh=AT_ONCE, patience=timedelta(milliseconds=10))
    health.ask(Question(["cluster"], silent))
    reports = [await health.report() for _ in range(3)]
    assert {report.ready for report in reports} == {False}
    assert reports[-1].checks == [Check("cluster", "failing", "no answer in 0.01 s")]
    assert asked == ["once"]
    await health.close()


async def test_a_check_that_breaks_is_failing_and_quotes_nothing() -> None:
    async def broken() -> Sequence[Check]:
        raise KeyError(SECRET)

    health = Health()
    health.ask(Question(["cluster"], broken))
    assert (await health.report()).checks == [Check("cluster", "failing", "KeyError")]


async def test_many_probes_cost_one_look() -> None:
    looks: list[int] = []

    async def fine() -> Sequence[Check]:
        looks.append(1)
        return [Check("temporal", "ok")]

    clock = Clock()
    health = Health(clock=clock)
    health.ask(Question(["temporal"], fine))
    await asyncio.gather(*(health.report() for _ in range(20)))
    assert len(looks) == 1
    clock.pass_by(timedelta(seconds=5))
    await health.report()
    assert len(looks) == 2


async def test_endpoints_answer_by_status_and_say_why() -> None:
    state = {"polling": Check("polling", "ok")}

    async def told() -> Sequence[Check]:
        return [state["polling"]]

    health = Health(fresh=AT_ONCE)
    service = application(health)
    service.state.draining = asyncio.Event()
    async with serving(service) as base, aiohttp.ClientSession() as session:

        async def ask(path: str) -> tuple[int, Any]:
            async with session.get(f"{base}{path}") as answer:
                return answer.status, await answer.json()

        assert [(await ask(path))[0] for path in ("/readyz", "/livez", "/healthz")] == [503, 200, 200]
        health.ask(Question(["polling"], told))
        assert [(await ask(path))[0] for path in ("/readyz", "/livez", "/healthz")] == [200, 200, 200]
        state["polling"] = Check("polling", "failing", "Temporal has seen no poll", restart_helps=True)
        assert [(await ask(path))[0] for path in ("/readyz", "/livez", "/healthz")] == [503, 503, 503]
        assert (await ask("/readyz"))[1] == {
            "ready": False,
            "live": False,
            "draining": False,
            "checks": [{"name": "polling", "state": "failing", "detail": "Temporal has seen no poll"}],
        }
