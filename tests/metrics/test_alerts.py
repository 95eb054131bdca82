"""Every alert of deploy/ fires for what a live worker exposes after a fault, and not before it.

The fault is real, the scrape is of a worker's own endpoint, and Prometheus' engine (`promtool test rules`) decides over
the scrapes; only the minutes between them are simulated.
"""

import asyncio
import math
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import worker
from agent_runs.client.attach import attach
from agent_runs.client.outcome import cancel, outcome_at_close
from agent_runs.contracts.errors import OutOfMemory, PodLost, ProviderUnavailable
from agent_runs.contracts.messages import AwaitSchedule, PodRef
from agent_runs.contracts.outcome import Report
from agent_runs.metrics.recorder import Recorder
from agent_runs.service import startup
from agent_runs.service.activity_context import Slots
from agent_runs.service.health import Health, health_checks
from agent_runs.service.polling import Polling
from agent_runs.service.sampling import sample
from agent_runs.service.settings import WorkerSettings
from dev_stack.cluster.kinds import PODS
from tests.faults.environment import start_server
from tests.metrics.rules import ALERTS, RULES, assert_fires, needs_promtool, unknown_metrics
from tests.metrics.scrape import Scrape, environment, free_address, scrape, until, until_sampled
from tests.runs.system import System, open_system
from tests.service.test_life import started
from tests.support.cases import case
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import FakeActivities, FakeAgent, FakeCleanup, answer_with
from tests.workflows.fake_worker import Handle, running_worker

RUNS: Final = 5
"""Enough for a percentile to count."""
CUTS: Final = 22
"""More reconnects than one running agent needs in ten minutes."""


@dataclass
class Fixture:
    """What a scenario needs.

    Attributes:
        client: its worker's metrics are served at `address`.
    """

    temporal: Client
    client: Client
    address: str
    recorder: Recorder
    settings: WorkerSettings
    folder: Path
    request: FakeRequest

    async def scrape(self) -> Scrape:
        return await scrape(self.address)

    def requests(self, count: int, **config: Any) -> list[FakeRequest]:
        """Requests of so many agents."""
        requests = []
        for number in range(count):
            agent = self.request.agent.model_copy(update={"id": f"{self.request.agent.id}-{number}"})
            changed = self.request.config.model_copy(update=config)
            changes = {"agent": agent, "run_id": f"{self.request.run_id}-{number}", "config": changed}
            requests.append(self.request.model_copy(update=changes))
        return requests

    @asynccontextmanager
    async def worker(self, steps: FakeActivities) -> AsyncIterator[Callable[[FakeRequest], Awaitable[Handle]]]:
        async with running_worker(self.client, self.settings.task_queue, steps) as start:
            yield start


@pytest.fixture
async def fixture(temporal: Client, queue: str, request_of_a_run: FakeRequest, tmp_path: Path) -> Fixture:
    address = free_address()
    settings = WorkerSettings(task_queue=queue, metrics_listen=address, transcripts_url=f"sqlite:///{tmp_path}/t.db")
    runtime = startup.temporal_runtime(settings)
    recorder = startup.metrics_recorder(settings, runtime)
    host = temporal.service_client.config.target_host
    client = await Client.connect(host, data_converter=pydantic_data_converter, runtime=runtime)
    return Fixture(temporal, client, address, recorder, settings, tmp_path, request_of_a_run)


Scenario = Callable[[Fixture], Awaitable[Sequence[Scrape]]]
SCENARIOS: Final[dict[str, Scenario]] = {}


def of(*alerts: str) -> Callable[[Scenario], Scenario]:
    """These alerts fire after this scenario."""

    def register(scenario: Scenario) -> Scenario:
        SCENARIOS.update(dict.fromkeys(alerts, scenario))
        return scenario

    return register


# runs, with a real workflow and fake activities


@of("AgentRunsQueueWaitSlow", "AgentRunsDispatchSlow")
async def runs_wait_for_a_worker(fixture: Fixture) -> Sequence[Scrape]:
    async def running_at_once(input: AwaitSchedule) -> PodRef:
        now = datetime.now(UTC)
        return FakeActivities.pod(input).model_copy(update={"created_at": now, "started_at": now})

    first, *others = fixture.requests(RUNS + 1)
    steps = FakeActivities({"await_schedule": running_at_once})
    async with fixture.worker(steps) as start:
        await outcome_at_close(await start(first))
    before = await fixture.scrape()
    tickets = [await attach(fixture.temporal, fixture.settings, each.wake) for each in others]
    await asyncio.sleep(5.5)  # what is measured
    async with fixture.worker(steps):
        for ticket in tickets:
            await outcome_at_close(ticket.handle(fixture.temporal))
        return [Scrape(), before, await fixture.scrape()]


@of("AgentRunsFailing")
async def most_runs_fail(fixture: Fixture) -> Sequence[Scrape]:
    failed = Report(failure=ProviderUnavailable.as_failure("it answers 503"), exit_code=1)
    before = await fixture.scrape()
    async with fixture.worker(FakeActivities({"parse_transcript": answer_with(lambda _: failed)})) as start:
        for handle in [await start(each) for each in fixture.requests(RUNS)]:
            await outcome_at_close(handle)
        return [before, await fixture.scrape()]


@of("AgentRunsRetrying")
async def pods_are_lost(fixture: Fixture) -> Sequence[Scrape]:
    async def lost_at_first(input: AwaitSchedule) -> PodRef:
        if input.attempt.attempt == 1:
            raise PodLost("evicted")
        return FakeActivities.pod(input)

    before = await fixture.scrape()
    async with fixture.worker(FakeActivities({"await_schedule": lost_at_first})) as start:
        handles = [await start(each) for each in fixture.requests(RUNS, infrastructure_retries=1)]
        for handle in handles:
            await outcome_at_close(handle)
        return [before, await fixture.scrape()]


@of("AgentRunsEndContradicted")
async def a_status_contradicts(fixture: Fixture) -> Sequence[Scrape]:
    before, cleanup = await fixture.scrape(), FakeCleanup(contradiction="exit code 137, OOMKilled")
    cleanup.may_end.set()
    async with fixture.worker(FakeActivities(cleanup.answers)) as start:
        await outcome_at_close(await start(fixture.request))
        return [before, await fixture.scrape()]


@of("AgentRunsSlotsExhausted")
async def more_runs_than_slots(fixture: Fixture) -> Sequence[Scrape]:
    agent = FakeAgent()
    settings = fixture.settings.model_copy(update={"max_runs": 1})
    first, *others = fixture.requests(3)
    async with worker.temporal_worker(settings, fixture.client, FakeActivities(agent.answers).activities):
        handles = [(await attach(fixture.client, settings, first.wake)).handle(fixture.client)]
        await agent.started.wait()
        name = "temporal_worker_task_slots_available"
        before = await until(fixture.address, name, worker_type="ActivityWorker")
        handles += [(await attach(fixture.client, settings, each.wake)).handle(fixture.client) for each in others]
        while (after := await fixture.scrape()).value(name, worker_type="ActivityWorker") > 0:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)
        await agent.end()
        for handle in handles:
            await outcome_at_close(handle)
    return [before, after]


@workflow.defn(name="Buggy")
class Buggy:
    """A workflow with a plain bug."""

    @workflow.run
    async def run(self) -> None:
        raise RuntimeError("a bug")


@of("AgentRunsStuck")
async def a_bug_in_workflow_code(fixture: Fixture) -> Sequence[Scrape]:
    queue, failed = fixture.settings.task_queue, "temporal_workflow_task_execution_failed_total"
    async with Worker(fixture.client, task_queue=queue, workflows=[Buggy], workflow_runner=UnsandboxedWorkflowRunner()):
        handle = await fixture.client.start_workflow("Buggy", id=queue, task_queue=queue)
        first = await until(fixture.address, failed, 1)
        after = await until(fixture.address, failed, first.value(failed) + 1)
        await handle.terminate()
    return [Scrape(), first, after]


# agents on the embedded cluster, with a worker in a process of its own


@asynccontextmanager
async def real_worker(fixture: Fixture, **settings: str) -> AsyncIterator[tuple[System, Any, str]]:
    address = free_address()
    async with (
        open_system(fixture.temporal, fixture.folder) as system,
        started({**environment(system, address), **settings}) as process,
    ):
        await until_sampled(address)
        yield system, process, address


@of("AgentRunsNoWorker")
async def the_worker_is_killed(fixture: Fixture) -> Sequence[Scrape]:
    async with real_worker(fixture) as (_, process, address):
        before = await scrape(address)
        process.kill()
        await process.wait()
        return [before, await scrape(address)]


@of("AgentRunsOutOfMemory")
async def the_kernel_kills_an_agent(fixture: Fixture) -> Sequence[Scrape]:
    async with real_worker(fixture) as (system, _, address):
        before = await scrape(address)
        raw = system.agent("cat > /dev/null; echo begun; sleep 600")
        ticket = await system.start(raw)
        await system.until_stored(raw)
        [pod] = [each["metadata"]["name"] for each in system.embedded.store.every(PODS)]
        await system.embedded.faults.kill_container(pod, "opencode", oom=True)
        outcome = await outcome_at_close(ticket.handle(fixture.temporal))
        assert outcome.error_code == OutOfMemory.code
        return [before, await scrape(address)]


@of("AgentRunsOutputMissing")
async def an_agent_writes_too_much(fixture: Fixture) -> Sequence[Scrape]:
    async with real_worker(fixture, AGENT_RUNS_MAX_OUTPUT_MIB="1") as (system, _, address):
        before = await scrape(address)
        await system.outcome(system.agent("cat > /dev/null; yes a-line-of-some-length | head -c 3000000; sleep 60"))
        return [before, await scrape(address)]


@of("AgentRunsReconnecting")
async def connections_are_cut(fixture: Fixture) -> Sequence[Scrape]:
    async with real_worker(fixture) as (system, _, address):
        before = await scrape(address)
        raw = system.agent("cat > /dev/null; while sleep 0.1; do echo line; done")
        ticket = await system.start(raw)
        await system.until_stored(raw)
        while (after := await scrape(address)).value("agent_runs_log_reconnects_total") < CUTS:
            system.embedded.faults.end_follows()
            await asyncio.sleep(0.1)
        await cancel(ticket.handle(fixture.temporal), "seen enough")
        return [before, after]


@of("AgentRunsStoreSlow")
async def another_process_locks_the_store(fixture: Fixture) -> Sequence[Scrape]:
    async with real_worker(fixture) as (system, _, address):
        gate = fixture.folder / "gate"
        raw = system.agent(f"cat > /dev/null; echo begun; until [ -e {gate} ]; do sleep 0.1; done; echo more")
        ticket = await system.start(raw)
        await system.until_stored(raw)
        before = await scrape(address)
        with locked(fixture.folder):
            gate.touch()
            await asyncio.sleep(2.5)  # what is measured
        await outcome_at_close(ticket.handle(fixture.temporal))
        return [Scrape(), before, await scrape(address)]


@of("AgentRunsLineDelaySlow")
async def the_store_is_locked_while_agents_write(fixture: Fixture) -> Sequence[Scrape]:
    async with real_worker(fixture) as (system, _, address):
        gate = fixture.folder / "gate"
        raw = system.agent(f"cat > /dev/null; echo begun; until [ -e {gate} ]; do sleep 0.1; done; echo more; sleep 4")
        ticket = await system.start(raw)
        await system.until_stored(raw)
        before = await scrape(address)
        with locked(fixture.folder):
            gate.touch()
            await asyncio.sleep(3)  # what is measured
        await outcome_at_close(ticket.handle(fixture.temporal))
        return [Scrape(), before, await scrape(address)]


@of("AgentRunsFirstLineSlow")
async def agents_are_silent_at_first(fixture: Fixture) -> Sequence[Scrape]:
    async with real_worker(fixture) as (system, _, address):
        await system.outcome(system.agent("cat > /dev/null; echo at once"))
        before = await scrape(address)
        raws = [system.agent("cat > /dev/null; sleep 16; echo late") for _ in range(RUNS)]
        for ticket in [await system.start(raw) for raw in raws]:
            await outcome_at_close(ticket.handle(fixture.temporal))
        return [Scrape(), before, await scrape(address)]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Another process writes into the SQLite file."""
    connection = sqlite3.connect(folder / "transcripts.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


# the checks of `/readyz`, as they are sampled


@asynccontextmanager
async def checked(
    fixture: Fixture, client: Client | None = None
) -> AsyncIterator[tuple[System, Callable[..., Awaitable[Scrape]]]]:
    """Samples the checks of a worker that polls; each call is a new state of health, with nothing remembered."""
    slots, name, client = Slots(100), worker.worker_identity(), client or fixture.client
    async with open_system(client, fixture.folder) as system:

        async def state(identity: str = name) -> Scrape:
            health, polling = Health(), Polling(client, fixture.settings.task_queue, identity, slots)
            health.set_checks(*health_checks(polling, system.store, system.kubernetes))
            await sample(client, health, fixture.recorder)
            await health.close()
            return await fixture.scrape()

        async with worker.temporal_worker(fixture.settings, client, FakeActivities().activities, slots, name):
            while (await state()).value("agent_runs_check_ok") < 4:
                pass
            yield system, state


@of("AgentRunsWorkerDoesNotPoll")
async def temporal_sees_no_polls_of_the_worker(fixture: Fixture) -> Sequence[Scrape]:
    async with checked(fixture) as (_, state):
        return [await state(), await state(identity="another")]


@of("AgentRunsStoreAway")
async def the_store_is_locked_for_longer_than_a_check(fixture: Fixture) -> Sequence[Scrape]:
    async with checked(fixture) as (_, state):
        before = await state()
        with locked(fixture.folder):
            return [before, await state()]


@of("AgentRunsClusterAway")
async def the_api_server_is_away(fixture: Fixture) -> Sequence[Scrape]:
    async with checked(fixture) as (system, state):
        before = await state()
        system.embedded.faults.http(status=503, times=None)
        after = await state()
        system.embedded.faults.clear()
        return [before, after]


@of("AgentRunsTemporalAway")
async def temporal_is_away(fixture: Fixture) -> Sequence[Scrape]:
    server = await start_server(fixture.folder / "temporal.db", int(free_address().rpartition(":")[2]))
    host = server.client.service_client.config.target_host
    client = await Client.connect(
        host, data_converter=pydantic_data_converter, runtime=fixture.client.service_client.config.runtime
    )
    async with checked(fixture, client) as (_, state):
        before = await state()
        await server.shutdown()
        after = await state()
    assert math.isnan(after.value("agent_runs_open_runs"))
    return [before, after]


SLOW: Final = frozenset(
    {
        "AgentRunsOutputMissing",
        "AgentRunsFirstLineSlow",
        "AgentRunsLineDelaySlow",
        "AgentRunsReconnecting",
        "AgentRunsRetrying",
        "AgentRunsStuck",
    }
)
"""They last for longer than the gate should."""


@needs_promtool
@pytest.mark.parametrize(
    "alert", [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in SCENARIOS]
)
async def test_an_alert_fires_for_what_a_worker_exposes_after_the_fault_and_not_before(
    alert: str, fixture: Fixture
) -> None:
    scrapes = await SCENARIOS[alert](fixture)
    assert_fires(alert, scrapes, fixture.folder)


@needs_promtool
@pytest.mark.parametrize("alert", sorted(set(ALERTS) - {"AgentRunsNoWorker"}))
async def test_no_alert_fires_for_an_idle_worker(alert: str, fixture: Fixture) -> None:
    await sample(fixture.client, Health(), fixture.recorder)
    idle = await fixture.scrape()
    with pytest.raises(AssertionError, match="exp: "):
        assert_fires(alert, [idle, idle], fixture.folder)


def test_every_alert_has_a_fault_that_fires_it() -> None:
    assert set(SCENARIOS) == set(ALERTS)


def test_an_alert_says_what_is_wrong_and_what_to_do() -> None:
    for alert, rule in ALERTS.items():
        with case(alert):
            notes = rule["annotations"]
            assert set(notes) == {"summary", "next_step", "runbook_url"}
            assert notes["runbook_url"] == f"docs/metrics.md#{alert.lower()}"
            assert rule["labels"]["severity"] in {"critical", "warning"}


def test_rules_name_only_metrics_that_exist() -> None:
    assert not [(rule["expr"], unknown) for rule in RULES if (unknown := unknown_metrics(rule["expr"]))]
