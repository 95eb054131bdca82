"""A step that keeps failing is in the current details of its run as long as it does; of its retries only a few signals
are in the history."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.exceptions import ApplicationError

from agent_runs.client.obstacles import HANDED_OVER
from agent_runs.contracts import updates
from agent_runs.contracts.errors import ClusterUnavailable, RunError, TranscriptsUnavailable
from agent_runs.service import failing_steps
from agent_runs.service.failing_steps import is_reported
from tests.support.current_details import current_details
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import DEFAULTS, Answer, FakeActivities
from tests.workflows.fake_worker import Handle, reached, running_worker

SOON = timedelta(milliseconds=10)
STEP = "introspect_pod"


class Failing:
    """An activity that fails in all tries before the given one, and waits there until it is released."""

    def __init__(self, error: Callable[[], Exception], until: int, step: str = STEP) -> None:
        self.error, self.until, self.answer = error, until, DEFAULTS[step][1]
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def __call__(self, input: Any) -> Any:
        if activity.info().attempt < self.until:
            raise self.error()
        self.reached.set()
        await self.released.wait()
        return await self.answer(input)


def at_once(error: type[RunError]) -> Callable[[], Exception]:
    """Makes such errors, after which the next try comes at once."""
    return lambda: ApplicationError("the API server is away", type=error.code, next_retry_delay=SOON)


def handed_over() -> Exception:
    """The error of a worker that stops."""
    return ApplicationError("the worker stops", type=HANDED_OVER, next_retry_delay=SOON)


async def signals(handle: Handle) -> list[str]:
    """The names of the signals in a run's history, without the caller's own."""
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    events = (await handle.fetch_history()).events
    return [each.workflow_execution_signaled_event_attributes.signal_name for each in events if each.event_type == kind]


async def until_details(handle: Handle, expected: Callable[[str], bool]) -> str:
    """The current details, once they are as expected."""
    async with asyncio.timeout(60):
        while not expected(text := await current_details(handle)):  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.02)
    return text


async def test_a_step_that_keeps_failing_is_shown_until_it_ends(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    failing = Failing(at_once(ClusterUnavailable), until=3)
    job = Failing(at_once(ClusterUnavailable), until=1, step="create_job")
    steps = FakeActivities(answers={STEP: failing, "create_job": job})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(failing.reached)
        text = await current_details(handle)
        assert "- **keeps failing**: `reading the worker's pod, 2 times, since 20" in text
        assert "the API server is away (k8s_api_unavailable)`" in text
        assert "- **what to do**: `Check the API server; the run continues by itself once it answers.`" in text
        failing.released.set()
        await reached(job.reached)
        assert "keeps failing" not in await current_details(handle)
        job.released.set()
        assert (await handle.result()).failure is None
        assert await signals(handle) == ["step_keeps_failing"]


async def test_a_run_whose_steps_fail_once_or_whose_workers_stop_has_no_signal(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    once, stopped = Failing(at_once(ClusterUnavailable), until=2), Failing(handed_over, 7, "stream_logs")
    for step in (once, stopped):
        step.released.set()
    async with running_worker(temporal, queue, FakeActivities(answers={STEP: once, "stream_logs": stopped})) as start:
        handle = await start(request_of_a_run)
        assert (await handle.result()).failure is None
        assert await signals(handle) == []


async def test_a_step_that_goes_on_is_shown_no_longer_and_shown_again_when_it_fails_again(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_steps, "SETTLED_AFTER", timedelta(milliseconds=100))
    third, sixth = (Failing(at_once(TranscriptsUnavailable), until, "stream_logs") for until in (3, 6))

    async def stream(input: Any) -> Any:
        if activity.info().attempt == 3:
            await third(input)
            raise third.error()
        return await sixth(input)

    async with running_worker(temporal, queue, FakeActivities(answers={"stream_logs": stream})) as start:
        handle = await start(request_of_a_run)
        await reached(third.reached)
        await until_details(handle, lambda text: "keeps failing" not in text)
        third.released.set()
        await reached(sixth.reached)
        await until_details(handle, lambda text: "keeps failing" not in text)
        sixth.released.set()
        assert (await handle.result()).failure is None
        assert await signals(handle) == ["step_keeps_failing", "step_goes_on"] * 2


async def test_a_step_outlives_a_report_that_fails(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_steps, "SETTLED_AFTER", timedelta())
    monkeypatch.setattr(updates, "FAILING_STEPS", "a query that an older build does not know")
    failed = asyncio.Event()
    monkeypatch.setattr(failing_steps.log, "info", lambda *_, **__: failed.set(), raising=False)
    failing = Failing(at_once(ClusterUnavailable), until=3)
    async with running_worker(temporal, queue, FakeActivities(answers={STEP: failing}), sandboxed=False) as start:
        handle = await start(request_of_a_run)
        await reached(failed)
        failing.released.set()
        assert (await handle.result()).failure is None
        assert activity_attempts(await handle.fetch_history()) == [3]


def activity_attempts(history: WorkflowHistory) -> list[int]:
    """Attempts of the activities that needed more than one."""
    started = [each.activity_task_started_event_attributes.attempt for each in history.events]
    return [attempt for attempt in started if attempt > 1]


async def test_a_worker_may_stop_while_a_step_keeps_failing(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (Failing(at_once(ClusterUnavailable), until=3) for _ in range(2))
    async with running_worker(temporal, queue, FakeActivities(answers={STEP: first}), replays=False) as start:
        handle = await start(request_of_a_run)
        await reached(first.reached)
        assert "keeps failing" in await current_details(handle)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    second.released.set()
    async with running_worker(temporal, queue, FakeActivities(answers={STEP: second})):
        assert (await handle.result()).failure is None


@pytest.mark.slow
async def test_a_worker_that_no_longer_answers_is_named(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    hung = asyncio.Event()
    third = Failing(at_once(TranscriptsUnavailable), 1, "stream_logs")

    async def stream(input: Any) -> Any:
        if activity.info().attempt == 3:
            return await third(input)
        while not hung.is_set():  # as a process that hangs: it does not end at a cancel
            try:
                await hung.wait()
            except asyncio.CancelledError:
                continue
        return None

    answer: Answer = stream
    async with running_worker(temporal, queue, FakeActivities(answers={"stream_logs": answer})) as start:
        handle = await start(request_of_a_run)
        await reached(third.reached)
        text = await current_details(handle)
        assert "following the agent's output, 2 times, since 20" in text
        assert "its worker no longer answered`" in text
        assert "- **what to do**: `Look whether workers are killed or hang`" in text
        third.released.set()
        hung.set()
        assert (await handle.result()).failure is None


def test_a_step_that_fails_for_a_month_is_reported_twenty_times() -> None:
    assert [attempt for attempt in range(1, 50) if is_reported(attempt)] == [3, 6, 12, 24, 48]
    assert sum(map(is_reported, range(1, 30 * 24 * 3600))) == 20
