"""Probes report what Temporal, the store and the cluster answer, not the process's own state."""

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
from agent_runs.client.connection import EXIT_DELAY_SEC
from agent_runs.contracts.errors import ClusterUnavailable, TranscriptsUnavailable
from agent_runs.contracts.identity import RunKey
from agent_runs.kube.client import Cluster
from agent_runs.service.activity_context import Slots
from agent_runs.service.health import (
    CLUSTER_MAX_AGE,
    CheckResult,
    Health,
    HealthCheck,
    Report,
    application,
    health_checks,
)
from agent_runs.service.polling import Polling, PollSilence, SilenceLimits
from agent_runs.service.settings import WorkerSettings
from agent_runs.transcript.store import TranscriptStore
from agent_runs.web.server import serving
from tests.workflows.fake_activities import FakeActivities

SECRET = "s3cr3t-canary"
AT_ONCE = timedelta(0)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, time: timedelta) -> None:
        self.now += time.total_seconds()


class Answering:
    """A cluster that only answers its version."""

    async def version(self) -> str:
        return "v1.34.1"


class Away:
    """A store behind an outage."""

    async def check_writable(self) -> None:
        raise TranscriptsUnavailable(f"postgresql://ada@host/db?password={SECRET}: connection refused")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    opened = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    yield opened
    await opened.close()


def health_of(polling: Polling, store: object) -> Health:
    health = Health(max_age=AT_ONCE)
    health.set_checks(*health_checks(polling, cast("TranscriptStore", store), cast("Cluster", Answering())))
    return health


async def until(health: Health, holds: Callable[[Report], bool], between: Callable[[], None] = lambda: None) -> Report:
    """The first report that fulfils the condition, or the time-out of the test."""
    while not holds(report := await health.report()):
        between()
        await asyncio.sleep(0.05)
    return report


def state(report: Report, name: str) -> str:
    return next(check.state for check in report.checks if check.name == name)


@asynccontextmanager
async def running_worker(temporal: Client, queue: str, slots: Slots, name: str) -> AsyncIterator[None]:
    """A worker as in production, with fake activities."""
    settings = WorkerSettings(task_queue=queue)
    async with worker.temporal_worker(settings, temporal, FakeActivities().activities, slots, name):
        yield


async def test_a_worker_that_polls_is_ready_and_one_that_has_stopped_is_not_live_after_a_limit(
    temporal: Client, queue: str, store: TranscriptStore
) -> None:
    clock, slots, name = Clock(), Slots(10), worker.worker_identity()
    health = health_of(Polling(temporal, queue, name, slots, SilenceLimits(), clock), store)
    before = await health.report()
    assert (before.ready, before.live) == (False, True)
    async with running_worker(temporal, queue, slots, name):
        report = await until(health, lambda report: report.ready)
        assert [check.name for check in report.checks] == ["temporal", "polling", "transcripts", "cluster"]
    # The worker is gone, this process is not, and Temporal still lists the poller with its last poll.
    ended = await until(health, lambda report: not report.ready, lambda: clock.pass_by(timedelta(seconds=20)))
    assert ended.live
    assert state(ended, "temporal") == "ok"
    lost = await until(health, lambda report: not report.live, lambda: clock.pass_by(timedelta(seconds=20)))
    assert state(lost, "polling") == "failing"
    assert clock.now > SilenceLimits().live.total_seconds()


async def test_polls_of_a_different_worker_of_the_queue_do_not_count(
    temporal: Client, queue: str, store: TranscriptStore
) -> None:
    slots, name = Slots(10), worker.worker_identity()
    ours = health_of(Polling(temporal, queue, worker.worker_identity(), slots), store)
    theirs = health_of(Polling(temporal, queue, name, slots), store)
    async with running_worker(temporal, queue, slots, name):
        await until(theirs, lambda report: report.ready)
        assert not (await ours.report()).ready


async def test_an_outage_of_temporal_is_no_reason_to_restart(queue: str, store: TranscriptStore) -> None:
    clock = Clock()
    binary = Path(sys.executable).with_name("temporal")
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(binary), dev_server_log_level="error"
    ) as environment:
        health = health_of(Polling(environment.client, queue, "nobody", Slots(1), SilenceLimits(), clock), store)
        await health.report()
    for _ in range(3):
        clock.pass_by(timedelta(hours=1))
        report = await health.report()
        assert (report.ready, report.live) == (False, True)
    assert state(report, "temporal") == "failing"
    assert "restarting this worker would not help" in next(it.detail for it in report.checks if it.name == "temporal")
    assert state(report, "polling") == "unknown"
    assert state(report, "transcripts") == "ok"
    await asyncio.sleep(EXIT_DELAY_SEC)


async def test_an_outage_of_the_store_makes_the_worker_unready_and_does_not_show_its_address(
    temporal: Client, queue: str
) -> None:
    slots, name = Slots(10), worker.worker_identity()
    health = health_of(Polling(temporal, queue, name, slots), Away())
    async with running_worker(temporal, queue, slots, name):
        report = await until(health, lambda report: state(report, "polling") == "ok")
    assert (report.ready, report.live) == (False, True)
    assert state(report, "transcripts") == "failing"
    assert SECRET not in str(report.as_json())
    assert "host" not in next(check.detail for check in report.checks if check.name == "transcripts")


async def test_a_worker_whose_slots_are_all_in_use_is_ready_and_reports_it(
    temporal: Client, queue: str, store: TranscriptStore
) -> None:
    clock, slots, name = Clock(), Slots(1), worker.worker_identity()
    health = health_of(Polling(temporal, queue, name, slots, SilenceLimits(), clock), store)
    async with running_worker(temporal, queue, slots, name):
        await until(health, lambda report: report.ready)
        with slots.one():
            clock.pass_by(timedelta(seconds=80))
            report = await health.report()
    assert report.ready
    assert "all 1 activity slots are in use" in next(it.detail for it in report.checks if it.name == "polling")


def test_only_time_in_which_the_server_was_seen_counts_as_silence() -> None:
    silence, poll = PollSilence(), datetime(2026, 1, 1, tzinfo=UTC)
    silence.add(poll, timedelta(seconds=5))
    assert (silence.listed, silence.duration) == (True, timedelta())
    silence.add(poll, timedelta(seconds=5))
    silence.add(poll, timedelta(hours=1))  # nobody calls for an hour: the server may have been away
    assert silence.duration == timedelta(seconds=35)
    silence.add(poll + timedelta(seconds=60), timedelta(seconds=5))
    assert silence.duration == timedelta()
    silence.add(None, timedelta(seconds=5))
    assert (silence.listed, silence.duration) == (False, timedelta(seconds=5))


async def test_a_worker_that_shuts_down_is_unready_at_once_and_stays_live() -> None:
    async def lost() -> Sequence[CheckResult]:
        return [CheckResult("polling", "failing", restart_helps=True)]

    health = Health(max_age=timedelta(hours=1))
    health.set_checks(HealthCheck(["polling"], lost))
    assert not (await health.report()).live
    health.drain()
    report = await health.report()
    assert (report.ready, report.live) == (False, True)


async def test_a_check_that_never_ends_fails_in_time_and_runs_once() -> None:
    calls: list[str] = []

    async def silent() -> Sequence[CheckResult]:
        calls.append("once")
        await asyncio.Event().wait()
        return []

    health = Health(max_age=AT_ONCE, check_timeout=timedelta(milliseconds=10))
    health.set_checks(HealthCheck(["cluster"], silent))
    reports = [await health.report() for _ in range(3)]
    assert {report.ready for report in reports} == {False}
    assert reports[-1].checks == [CheckResult("cluster", "failing", "no answer in 0.01 s")]
    assert calls == ["once"]
    await health.close()


async def test_a_check_that_raises_is_failing_and_quotes_nothing() -> None:
    async def broken() -> Sequence[CheckResult]:
        raise KeyError(SECRET)

    health = Health()
    health.set_checks(HealthCheck(["cluster"], broken))
    assert (await health.report()).checks == [CheckResult("cluster", "failing", "KeyError")]


async def test_many_probes_cost_one_run_of_the_checks() -> None:
    calls: list[int] = []

    async def fine() -> Sequence[CheckResult]:
        calls.append(1)
        return [CheckResult("temporal", "ok")]

    clock = Clock()
    health = Health(clock=clock)
    health.set_checks(HealthCheck(["temporal"], fine))
    await asyncio.gather(*(health.report() for _ in range(20)))
    assert len(calls) == 1
    clock.pass_by(timedelta(seconds=5))
    await health.report()
    assert len(calls) == 2


class Counting:
    """A cluster that counts how often it is asked, and answers nothing while it is away."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    async def version(self) -> str:
        self.asked += 1
        if self.away:
            raise ClusterUnavailable("cannot get version: 503")
        return "v1.34.1"


async def test_the_cluster_is_asked_every_half_a_minute_and_at_once_after_a_failure(
    temporal: Client, queue: str, store: TranscriptStore
) -> None:
    clock, cluster = Clock(), Counting()
    health = Health(clock=clock)
    polling = Polling(temporal, queue, "nobody", Slots(1), SilenceLimits(), clock)
    health.set_checks(*health_checks(polling, store, cast("Cluster", cluster), clock))
    for _ in range(24):  # two minutes of probes
        assert state(await health.report(), "cluster") == "ok"
        clock.pass_by(timedelta(seconds=5))
    assert cluster.asked == 4
    cluster.away = True
    clock.pass_by(CLUSTER_MAX_AGE)
    assert state(await health.report(), "cluster") == "failing"
    cluster.away = False
    clock.pass_by(timedelta(seconds=5))
    assert state(await health.report(), "cluster") == "ok"
    assert cluster.asked == 6


async def test_endpoints_answer_by_status_with_the_reason() -> None:
    state = {"polling": CheckResult("polling", "ok")}

    async def polling_state() -> Sequence[CheckResult]:
        return [state["polling"]]

    health = Health(max_age=AT_ONCE)
    service = application(health)
    service.state.draining = asyncio.Event()
    async with serving(service) as base, aiohttp.ClientSession() as session:

        async def ask(path: str) -> tuple[int, Any]:
            async with session.get(f"{base}{path}") as answer:
                return answer.status, await answer.json()

        assert [(await ask(path))[0] for path in ("/readyz", "/livez", "/healthz")] == [503, 200, 200]
        health.set_checks(HealthCheck(["polling"], polling_state))
        assert [(await ask(path))[0] for path in ("/readyz", "/livez", "/healthz")] == [200, 200, 200]
        state["polling"] = CheckResult("polling", "failing", "Temporal has seen no poll", restart_helps=True)
        assert [(await ask(path))[0] for path in ("/readyz", "/livez", "/healthz")] == [503, 503, 503]
        assert (await ask("/readyz"))[1] == {
            "ready": False,
            "live": False,
            "draining": False,
            "checks": [{"name": "polling", "state": "failing", "detail": "Temporal has seen no poll"}],
        }


async def test_a_store_that_can_be_read_but_not_written_makes_the_worker_unready(
    temporal: Client, queue: str, tmp_path: Path
) -> None:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    slots, name = Slots(10), worker.worker_identity()
    health = health_of(Polling(temporal, queue, name, slots), store)
    async with running_worker(temporal, queue, slots, name):
        assert state(await until(health, lambda report: state(report, "polling") == "ok"), "transcripts") == "ok"
        await store._database.write(lambda connection: connection.exec_driver_sql("PRAGMA query_only = 1"))
        assert await store.attempts(RunKey.named("ada~run-1")) == []
        report = await until(health, lambda report: state(report, "transcripts") == "failing")
    assert (report.ready, report.live) == (False, True)
    await store.close()
