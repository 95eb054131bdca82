"""Callers have a success before the clean-up; the run closes after it, and no other run of the agent starts before."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio import runtime
from temporalio.client import Client, WorkflowExecutionStatus

from agent_runs.client.attach import attach, attach_when_free
from agent_runs.client.outcome import cancel, fetch_outcome, outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.errors import ProviderUnavailable
from agent_runs.contracts.outcome import Report
from agent_runs.contracts.request import Runtime, SessionParams
from agent_runs.metrics.definitions import CONTRADICTED_ENDS
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import FakeActivities, FakeCleanup, answer_with
from tests.workflows.fake_worker import Handle, details_of, reached, running_worker, wake

SAYS = "the container's status says: exit code 137, OOMKilled, although its process had ended with exit code 0"
NOTE = f"attempt 1: {SAYS}"
OPEN = WorkflowExecutionStatus.RUNNING


async def status_of(handle: Handle) -> WorkflowExecutionStatus | None:
    return (await handle.describe()).status


async def test_a_success_is_delivered_while_its_pod_is_deleted_and_the_run_closes_after_that(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    cleanup = FakeCleanup()
    steps = FakeActivities(cleanup.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(wake("task", request_of_a_run))
        delivered = await fetch_outcome(handle, collect=True)
        await reached(cleanup.begun)
        assert await status_of(handle) is OPEN
        assert "`succeeded`" in await details_of(handle)
        cleanup.may_end.set()
        assert await outcome_at_close(handle) == delivered
    assert (delivered.exit_code, delivered.failure, delivered.agent_stopped) == (0, None, True)
    assert [attempt.attempt for attempt in delivered.attempts] == [1]
    assert steps.last_input("finish").confirm


async def test_the_history_of_an_early_end_is_as_small_as_any(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    cleanup = FakeCleanup()
    async with running_worker(temporal, queue, FakeActivities(cleanup.answers)) as start:
        handle = await start(request_of_a_run)
        await reached(cleanup.begun)
        async with asyncio.timeout(60):
            while "`succeeded`" not in await details_of(handle):  # noqa: ASYNC110 - no event of ours
                await asyncio.sleep(0.05)
        cleanup.may_end.set()
        await outcome_at_close(handle)
        history = await handle.fetch_history()
    assert len(history.events) <= 60


async def test_a_success_that_is_not_early_waits_for_the_clean_up_as_ever(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    cleanup = FakeCleanup(early=False)
    steps = FakeActivities(cleanup.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        fetching = asyncio.create_task(fetch_outcome(handle, collect=True))
        await reached(cleanup.begun)
        assert not (await asyncio.wait([fetching], timeout=1))[0]
        cleanup.may_end.set()
        assert (await fetching).exit_code == 0
        await outcome_at_close(handle)
    assert not steps.last_input("finish").confirm


async def test_a_failure_waits_for_the_clean_up_and_has_what_the_status_says(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    cleanup = FakeCleanup(contradiction=SAYS)
    failed = Report(failure=ProviderUnavailable.as_failure("it answers 503"), exit_code=1)
    steps = FakeActivities({**cleanup.answers, "parse_transcript": answer_with(lambda _: failed)})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        fetching = asyncio.create_task(fetch_outcome(handle, collect=True))
        await reached(cleanup.begun)
        assert not (await asyncio.wait([fetching], timeout=1))[0]
        cleanup.may_end.set()
        delivered = await fetching
        assert await outcome_at_close(handle) == delivered
    assert delivered.error_code == ProviderUnavailable.code
    assert delivered.warnings == (NOTE,)
    assert steps.last_input("finish").confirm


async def test_a_refused_session_is_never_an_early_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    cleanup = FakeCleanup()
    cleanup.may_end.set()
    refused = Report(unknown_session=True, exit_code=0)

    async def parse(input: Any) -> Report:
        return refused if input.attempt.attempt == 1 else Report(session_id="ses_2", exit_code=0)

    resumed = Runtime(session_params=SessionParams(session_id="ses_old"))
    request = request_of_a_run.model_copy(update={"runtime": resumed})
    steps = FakeActivities({**cleanup.answers, "parse_transcript": parse})
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(request))
    assert steps.names.count("create_job") == 2
    assert outcome.session_id == "ses_2"


async def test_a_contradiction_is_named_and_what_was_delivered_stays(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    buffer = runtime.MetricBuffer(10_000)
    metered = await Client.connect(
        temporal.service_client.config.target_host,
        data_converter=temporal.data_converter,
        runtime=runtime.Runtime(telemetry=runtime.TelemetryConfig(metrics=buffer)),
    )
    cleanup = FakeCleanup(contradiction=SAYS)
    async with running_worker(metered, queue, FakeActivities(cleanup.answers)) as start:
        handle = await start(wake("task", request_of_a_run))
        delivered = await fetch_outcome(handle, collect=False)
        cleanup.may_end.set()
        async with asyncio.timeout(60):
            while NOTE not in await details_of(handle):  # noqa: ASYNC110 - no event of ours
                await asyncio.sleep(0.05)
        again = await fetch_outcome(handle, collect=True)
        closed = await outcome_at_close(handle)
    assert delivered.warnings == ()
    assert again == delivered
    assert closed.warnings == (NOTE,)
    changed = closed.model_copy(update={"result_json": delivered.result_json})
    assert changed == delivered
    counted = [update for update in buffer.retrieve_updates() if update.metric.name == CONTRADICTED_ENDS.name]
    assert [update.value for update in counted] == [1]


async def test_another_task_waits_for_the_clean_up_and_learns_of_it_when_that_takes_long(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, cleanup = ClientSettings(task_queue=queue), FakeCleanup()
    other = wake("another", request_of_a_run, "other")
    steps = FakeActivities(cleanup.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(wake("task", request_of_a_run))
        await fetch_outcome(handle, collect=True)
        with monkeypatch.context() as patch:
            patch.setattr("agent_runs.client.attach.JOIN_TIMEOUT", timedelta(seconds=1))
            busy = await attach(temporal, settings, other.wake)
        attaching = asyncio.create_task(attach_when_free(temporal, settings, other.wake, lambda _: None))
        await asyncio.wait([attaching], timeout=1)
        assert not attaching.done()
        assert steps.names.count("create_job") == 1
        cleanup.may_end.set()
        ticket = await attaching
        assert (await handle.describe()).close_time is not None
        await fetch_outcome(ticket.handle(temporal), collect=True)
        await outcome_at_close(ticket.handle(temporal))
    assert busy.holder is not None
    assert (busy.kind, busy.holder.phase, busy.workflow_run_id) == ("busy", "finishing", handle.run_id)
    assert "it has ended" in (busy.holder.note or "")
    assert (ticket.kind, ticket.run_id) == ("started", "other")


async def test_a_wake_of_the_same_task_after_the_delivery_gets_a_run_of_its_own_after_the_clean_up(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings, cleanup = ClientSettings(task_queue=queue), FakeCleanup()
    later = wake("task", request_of_a_run, "later")
    steps = FakeActivities(cleanup.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(wake("task", request_of_a_run))
        await fetch_outcome(handle, collect=True)
        attaching = asyncio.create_task(attach_when_free(temporal, settings, later.wake, lambda _: None))
        await asyncio.wait([attaching], timeout=1)
        assert steps.names.count("create_job") == 1
        cleanup.may_end.set()
        ticket = await attaching
        await fetch_outcome(ticket.handle(temporal), collect=True)
        await outcome_at_close(ticket.handle(temporal))
    assert (ticket.kind, ticket.run_id) == ("started", "later")


async def test_a_wake_of_the_same_task_before_the_delivery_gets_the_early_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings, cleanup = ClientSettings(task_queue=queue), FakeCleanup()
    async with running_worker(temporal, queue, FakeActivities(cleanup.answers)) as start:
        handle = await start(wake("task", request_of_a_run))
        read = await fetch_outcome(handle, collect=False)
        ticket = await attach(temporal, settings, wake("task", request_of_a_run, "second").wake)
        assert await fetch_outcome(ticket.handle(temporal), collect=True) == read
        assert await status_of(handle) is OPEN
        cleanup.may_end.set()
        await outcome_at_close(handle)
    assert (ticket.kind, ticket.workflow_run_id) == ("joined", handle.run_id)


async def test_a_cancel_during_the_clean_up_changes_nothing_but_the_keeping_of_the_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    cleanup = FakeCleanup()
    async with running_worker(temporal, queue, FakeActivities(cleanup.answers)) as start:
        handle = await start(wake("task", request_of_a_run))
        delivered = await fetch_outcome(handle, collect=False)
        answer = await cancel(handle, "too late")
        await handle.cancel(reason="again")
        assert await status_of(handle) is OPEN
        cleanup.may_end.set()
        assert await outcome_at_close(handle) == delivered
        assert await status_of(handle) is WorkflowExecutionStatus.COMPLETED
    assert (answer.outcome, answer.failure_code) == ("ended before", None)


async def test_another_worker_continues_the_clean_up_with_the_same_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    cleanup = FakeCleanup(contradiction=SAYS)
    async with running_worker(temporal, queue, FakeActivities(cleanup.answers), replays=False) as start:
        handle = await start(wake("task", request_of_a_run))
        delivered = await fetch_outcome(handle, collect=False)
        await reached(cleanup.begun)
    assert await status_of(handle) is OPEN
    again = FakeCleanup(contradiction=SAYS)
    steps = FakeActivities(again.answers)
    async with running_worker(temporal, queue, steps):
        assert await fetch_outcome(handle, collect=False) == delivered
        await reached(again.begun)
        again.may_end.set()
        await fetch_outcome(handle, collect=True)
        closed = await outcome_at_close(handle)
    assert steps.names == ["finish"]
    assert closed.warnings == (NOTE,)
