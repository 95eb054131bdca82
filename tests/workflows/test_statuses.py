"""A run closes with the status that it deserves, and an ended run never looks like one that works."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from agent_runs.client.outcome import cancel, fetch_outcome, outcome_at_close
from agent_runs.client.runs import find_by_key
from agent_runs.contracts.errors import PodScheduleFailed, ProviderRejected
from agent_runs.contracts.outcome import Outcome, Report
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import Answer, FakeActivities, FakeAgent, answer_with, fail_with
from tests.workflows.fake_worker import configured, reached, running_worker


def rejected(_input: object) -> Report:
    return Report(failure=ProviderRejected.as_failure("no such model"), exit_code=1)


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"parse_transcript": answer_with(rejected)}, ProviderRejected.code),
        ({"await_schedule": fail_with(PodScheduleFailed("no node fits"))}, PodScheduleFailed.code),
    ],
    ids=["the agent failed", "no agent was started"],
)
async def test_a_failed_run_closes_failed_with_its_code_and_its_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, answers: dict[str, Answer], code: str
) -> None:
    async with running_worker(temporal, queue, FakeActivities(answers)) as start:
        handle = await start(request_of_a_run)
        fetched = await fetch_outcome(handle, collect=True)
        outcome, description = await outcome_at_close(handle), await handle.describe()
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert description.status is WorkflowExecutionStatus.FAILED
    assert getattr(failed.value.cause, "type", None) == code
    assert outcome == fetched
    assert outcome.error_code == code


async def test_a_named_failure_has_no_stack_in_temporal_and_a_bug_has_its_own(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async def refused(_input: object) -> None:
        try:
            int("the cluster's own error")
        except ValueError as error:
            raise PodScheduleFailed("no node fits") from error

    bug = fail_with(ApplicationError("a bug", type="KeyError", non_retryable=True))
    async with running_worker(temporal, queue, FakeActivities({"await_schedule": refused, "finish": bug})) as start:
        handle = await start(request_of_a_run)
        await outcome_at_close(handle)
        stacks = [stack async for event in handle.fetch_history_events() for stack in _stacks(event)]
    assert [code for code, stack in stacks if stack] == ["KeyError"]
    assert {code for code, stack in stacks if not stack} >= {PodScheduleFailed.code}
    assert [stack for _, stack in stacks if "fake_activities.py" in stack]


def _stacks(event: HistoryEvent) -> Iterator[tuple[str, str]]:
    """The type and the stack of each failure that an event has, with those behind it."""
    for _, attributes in event.ListFields():
        failure = getattr(attributes, "failure", None)
        while isinstance(failure, Failure):
            yield failure.application_failure_info.type, failure.stack_trace
            failure = failure.cause if failure.HasField("cause") else None


async def test_a_timed_out_run_closes_failed_with_the_code_timeout(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async with running_worker(temporal, queue, FakeActivities(FakeAgent().answers)) as start:
        handle = await start(configured(request_of_a_run, timeout_sec=1))
        outcome = await outcome_at_close(handle)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert outcome.timed_out
    assert getattr(failed.value.cause, "type", None) == "timeout"


async def test_a_cancelled_run_closes_canceled_and_keeps_its_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started)
        answer = await cancel(handle, "wrong branch")
        outcome, description = await outcome_at_close(handle), await handle.describe()
    assert description.status is WorkflowExecutionStatus.CANCELED
    assert (outcome.error_code, outcome.error_message) == ("cancelled", "Run cancelled; wrong branch")
    assert (answer.outcome, answer.stop) == ("cancelled", outcome.stop)
    assert outcome.session_id == "ses_1"


async def test_an_ended_run_that_keeps_its_outcome_is_listed_as_ended_and_until_when_it_is_kept(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    request = request_of_a_run.model_copy(update={"outcome_retention_sec": 3600})
    async with running_worker(temporal, queue, FakeActivities()) as start:
        handle = await start(request)
        await fetch_outcome(handle, collect=False)

        async with asyncio.timeout(60):  # Temporal lists a change a moment after it
            while (run := await find_by_key(temporal, request.wake.start.key)) is None or not run.decided:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        details = (await handle.describe()).status
        await fetch_outcome(handle, collect=True)
        closed: Outcome = await outcome_at_close(handle)
    assert (run.phase, run.open, details) == ("succeeded", True, WorkflowExecutionStatus.RUNNING)
    assert run.ended_at is not None
    assert run.kept_until is not None
    assert run.kept_until - run.ended_at == timedelta(hours=1)
    assert closed.failure is None
