"""Whatever Temporal hands over, and however long a text is, a run goes on and its agent's id becomes free."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.worker import Worker

from agent_runs.client.attach import attach
from agent_runs.client.outcome import fetch_outcome, outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts import updates
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import check_workflow_id, workflow_id
from tests.support.cases import case
from tests.support.requests import FakeRequest
from tests.support.temporal import start_temporal
from tests.workflows.fake_activities import FakeActivities, FakeAgent
from tests.workflows.fake_worker import configured, reached, running_worker, wake
from workflows.agent_check import AgentCheckWorkflow
from workflows.agent_run import MAX_JOINS, AgentRunWorkflow

WRONG: Final[tuple[list[Any], ...]] = ([], [None], ["x"], [{}], [7], [[]], [None, None], ["x", {}])
"""Arguments of a start, a signal or an update that no caller of ours sends."""
TEMPORALS_LIMIT: Final = 50 * 1024 * 1024
"""Bytes of a history; with more Temporal ends the workflow."""


@pytest.mark.parametrize("text", ["m", "\U0001f600", "é", "\x01"], ids=["ascii", "emoji", "accent", "control"])
async def test_no_text_of_a_request_makes_temporal_end_its_run(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, text: str
) -> None:
    long = configured(request_of_a_run, model=f"provider/{text * 3000}")
    long = long.model_copy(
        update={
            "agent": long.agent.model_copy(update={"name": text * 3000}),
            "runtime": long.runtime.model_copy(update={"task_key": text * 3000}),
        }
    )
    async with running_worker(temporal, queue, FakeActivities()) as start:
        handle = await start(long)
        async with asyncio.timeout(60):
            outcome = await fetch_outcome(handle, collect=True)
            await outcome_at_close(handle)
    assert outcome.exit_code == 0


async def test_a_join_is_refused_in_words_before_one_would_be_forgotten(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, settings = FakeAgent(), ClientSettings(task_queue=queue)
    steps = FakeActivities(agent.answers)
    wakes = [wake("task", request_of_a_run, f"{n:03}-{'x' * 124}").wake for n in range(25)]
    async with running_worker(temporal, queue, steps) as start:
        first = await start(wake("task", request_of_a_run))
        await reached(agent.started)
        tickets = [await attach(temporal, settings, each) for each in wakes]
        joined = [each for each, ticket in zip(wakes, tickets, strict=True) if ticket.kind == "joined"]
        busy = [ticket for ticket in tickets if ticket.kind == "busy"]
        await agent.end()
        await fetch_outcome(first, collect=True)
        await outcome_at_close(first)
        async with asyncio.timeout(60):
            later = [await attach(temporal, settings, each) for each in joined]
    assert len(joined) > 10
    assert {(ticket.kind, ticket.workflow_run_id) for ticket in later} == {("joined", first.run_id)}
    assert len(joined) + len(busy) == 25
    assert [ticket.holder and ticket.holder.note for ticket in busy] == [
        f"{len(joined)} wakes have joined it, and it can remember no more"
    ] * len(busy)
    assert steps.names.count("create_job") == 1


async def test_no_joins_make_a_history_so_large_that_temporal_ends_its_run(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(wake("task", request_of_a_run))
        await reached(agent.started)
        join = {"runId": "second", "companyId": request_of_a_run.agent.company_id, "task": "task"}
        before = await history_size(handle)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(updates.JOIN, {**join, "sealed": "x" * (updates.JOIN_LIMIT + 1)})
        assert "fields: sealed" in str(refused.value.cause)
        await handle.execute_update(updates.JOIN, {**join, "sealed": "x" * updates.JOIN_LIMIT})
        grown = await history_size(handle) - before
        assert updates.JOIN_LIMIT < grown < TEMPORALS_LIMIT / 2 / MAX_JOINS
        await agent.end()
        await fetch_outcome(handle, collect=True)
        assert (await outcome_at_close(handle)).exit_code == 0


async def test_what_no_caller_of_ours_sends_to_a_run_changes_nothing(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(wake("task", request_of_a_run))
        await reached(agent.started)
        for arguments in WRONG:
            with case(arguments):
                await handle.signal("no_signal_of_ours", args=arguments)
                await handle.signal(updates.BUDGET_WARNING, args=arguments)
                with pytest.raises(WorkflowUpdateFailedError):
                    async with asyncio.timeout(60):
                        await handle.execute_update(updates.JOIN, args=arguments)
        async with asyncio.timeout(60):
            assert await handle.query(updates.OUTCOME, args=["x", None]) is None
            await agent.end()
            outcome = await handle.execute_update(updates.OUTCOME, args=[None, "x"])
            await handle.signal(updates.COLLECTED, args=["x", None])
            assert (await outcome_at_close(handle)).exit_code == outcome["exitCode"] == 0


async def test_a_start_that_cannot_be_read_does_not_hold_its_agent(temporal: Client, queue: str) -> None:
    async with Worker(temporal, task_queue=queue, workflows=[AgentRunWorkflow, AgentCheckWorkflow]):
        for workflow, name in ((AgentRunWorkflow, workflow_id(queue)), (AgentCheckWorkflow, check_workflow_id(queue))):
            for arguments in WRONG:
                with case(workflow.__name__, arguments):
                    handle = await temporal.start_workflow(workflow.__name__, args=arguments, id=name, task_queue=queue)
                    with pytest.raises(WorkflowFailureError) as refused:
                        async with asyncio.timeout(60):
                            await handle.result(rpc_timeout=timedelta(seconds=60))
                    assert getattr(refused.value.cause, "type", None) == "invalid_request"


async def test_a_wake_of_another_company_joins_nothing_and_gets_no_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, settings, second = FakeAgent(), ClientSettings(task_queue=queue), f"second-{queue}"

    def foreign(run_id: str) -> FakeRequest:
        other = request_of_a_run.agent.model_copy(update={"company_id": "another-company"})
        return wake("task", request_of_a_run.model_copy(update={"agent": other}), run_id)

    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        first = await start(wake("task", request_of_a_run))
        await reached(agent.started)
        ours = await attach(temporal, settings, wake("task", request_of_a_run, second).wake)
        theirs = await attach(temporal, settings, foreign(f"third-{queue}").wake)
        join = updates.Join(run_id="fourth", company_id="another-company", task="task")
        with pytest.raises(WorkflowUpdateFailedError):
            await first.execute_update(updates.JOIN, join)
        await agent.end()
        await fetch_outcome(first, collect=True)
        await outcome_at_close(first)
        with pytest.raises(InvalidRequest, match="another company"):
            await attach(temporal, settings, foreign(request_of_a_run.run_id).wake)
        copy = await attach(temporal, settings, foreign(second).wake)
        await copy.handle(temporal).terminate()
    assert (ours.kind, theirs.kind, copy.kind) == ("joined", "busy", "started")


async def history_size(handle: WorkflowHandle[Any, Any]) -> int:
    """Bytes of the history."""
    return (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes


@pytest.fixture
async def few_updates() -> AsyncIterator[Client]:
    """A client of a server that accepts two Updates of a run, where others accept 2,000."""
    async with await start_temporal(
        dev_server_extra_args=["--dynamic-config-value", "history.maxTotalUpdates=2"]
    ) as environment:
        yield environment.client


async def test_a_run_of_which_temporal_accepts_no_more_updates_still_gives_its_outcome(
    few_updates: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, settings = FakeAgent(), ClientSettings(task_queue=queue)
    wakes = [wake("task", request_of_a_run, f"wake-{n}").wake for n in range(3)]
    async with running_worker(few_updates, queue, FakeActivities(agent.answers)) as start:
        handle = await start(wake("task", request_of_a_run))
        await reached(agent.started)
        async with asyncio.timeout(120):
            tickets = [await attach(few_updates, settings, each) for each in wakes]
            fetching = [asyncio.create_task(fetch_outcome(handle, collect=False)) for _ in range(2)]
            await agent.end()
            outcomes = await asyncio.gather(*fetching)
            await handle.signal(updates.COLLECTED)
            closed = await outcome_at_close(handle)
    assert [ticket.kind for ticket in tickets] == ["joined", "joined", "busy"]
    assert tickets[-1].holder is not None
    assert tickets[-1].holder.note == "Temporal accepts no more requests of it"
    assert outcomes == [closed, closed]


async def test_of_many_wrong_fields_of_a_start_the_first_twenty_are_named(temporal: Client, queue: str) -> None:
    sent = {"runId": "r", "agentId": "a", "companyId": "c", "sealed": "s", **{f"odd{n}": n for n in range(1000)}}
    async with Worker(temporal, task_queue=queue, workflows=[AgentRunWorkflow]):
        handle = await temporal.start_workflow("AgentRunWorkflow", sent, id=workflow_id(queue), task_queue=queue)
        with pytest.raises(WorkflowFailureError) as refused:
            async with asyncio.timeout(60):
                await handle.result(rpc_timeout=timedelta(seconds=60))
    named = ", ".join(f"odd{n}" for n in range(20))
    assert f"the run's input has wrong, missing or unknown fields: {named}; " in str(refused.value.cause)
