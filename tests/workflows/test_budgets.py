"""A run that uses up its budget: people are warned while it works; at the limit it is stopped, and not retried."""

from datetime import timedelta

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.errors import BudgetExceeded, PodLost
from agent_runs.contracts.messages import Budget, Ended, OverBudget, StreamEnd, StreamLogs, StreamProgress
from agent_runs.contracts.updates import BudgetWarning
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import GOOD, STOPPED, FakeActivities, FakeAgent
from tests.workflows.fake_worker import configured, details_of, running_worker

PROGRESS = StreamProgress(sequence=7, needed_from=8)
WARNING = "maxSteps: 4 of 5 steps; at all of it the agent is stopped"
WARNED = BudgetWarning(limit="maxSteps", text=WARNING)
EXCEEDED = OverBudget(
    exceeded=BudgetExceeded.as_failure("maxSteps: 5 of 5 steps; used by this run: 5 steps"), progress=PROGRESS
)


async def test_a_run_at_its_limit_is_stopped_and_keeps_its_session(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    steps = FakeActivities(FakeAgent(budget=[WARNED, EXCEEDED]).answers)
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(configured(request_of_a_run, max_steps=5, max_cost_usd=0.25)))
    assert outcome.error_code == "budget_exceeded"
    assert (outcome.error_message or "").startswith("maxSteps: 5 of 5 steps; used by this run: 5 steps")
    assert WARNING in outcome.warnings
    first, rest = [input for name, input in steps.calls if name == "stream_logs"]
    assert first.budget == Budget(model="fake/scenario/text", max_steps=5, max_cost_usd=0.25)
    assert (rest.budget, rest.resume, rest.silence_timeout) == (None, PROGRESS, timedelta())
    assert steps.names.count("create_job") == 1
    assert steps.last_input("parse_transcript").end == STOPPED
    assert (outcome.session_id, outcome.usage) == ("ses_1", GOOD.usage)
    assert outcome.session_params is not None
    assert outcome.stop is not None
    assert outcome.stop.session_preserved
    assert not outcome.clear_session


async def test_a_warning_is_in_the_current_details_while_the_agent_works(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent(budget=[WARNED])
    steps = FakeActivities(agent.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(configured(request_of_a_run, max_steps=5))
        await agent.warned.wait()
        details = await details_of(handle)
        await agent.end()
        outcome = await outcome_at_close(handle)
    assert f"**warning**: `{WARNING}`" in details
    assert "**phase**: `running`" in details
    assert WARNING in outcome.warnings


async def test_the_attempt_after_a_lost_pod_does_not_warn_anew(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.retries.FIRST_RETRY_PAUSE", timedelta(milliseconds=1))
    lost = Ended(failure=PodLost.as_failure("evicted"))

    async def stream(input: StreamLogs) -> StreamEnd:
        agent = FakeAgent(budget=[WARNED.model_copy(update={"text": f"{WARNING} ({input.attempt.attempt})"})])
        agent.stopped.set()
        end = await agent.answers["stream_logs"](input)
        return lost if input.attempt.attempt == 1 else end

    steps = FakeActivities({"stream_logs": stream})
    async with running_worker(temporal, queue, steps, sandboxed=False) as start:
        outcome = await outcome_at_close(await start(configured(request_of_a_run, max_steps=5)))
    assert steps.names.count("create_job") == 2
    assert [warning for warning in outcome.warnings if warning.startswith(WARNING)] == [f"{WARNING} (1)"]


async def test_a_cancel_while_people_are_warned_is_a_cancel(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent(budget=[WARNED])
    steps = FakeActivities(agent.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(configured(request_of_a_run, max_steps=5))
        await agent.started.wait()
        await handle.cancel()
        outcome = await outcome_at_close(handle)
    assert outcome.error_code == "cancelled"
    assert steps.last_input("parse_transcript").end == STOPPED


async def test_without_a_limit_no_budget_is_watched(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    steps = FakeActivities()
    async with running_worker(temporal, queue, steps) as start:
        await outcome_at_close(await start(request_of_a_run))
    assert steps.last_input("stream_logs").budget is None
