"""The next wake of a task joins its run or takes its outcome; an outcome that nobody fetched holds nobody else up."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import SearchAttributeIndexedValueType
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from client.attach import attach, attach_when_free
from client.outcome import cancel, outcome_of
from client.runs import find
from client.settings import ClientSettings
from contracts import talk
from contracts.errors import PodLost
from contracts.identity import workflow_id
from contracts.messages import StreamEnd
from contracts.outcome import ContainerEnd, Outcome, OutputReceipt
from contracts.request import RunRequest, WakeContext
from tests.workflows.steps import Agent, Steps
from tests.workflows.working import working
from workflows.agent_run import AgentRunWorkflow
from workflows.attributes import ALL


def on(task: str | None, request: RunRequest, run_id: str | None = None) -> RunRequest:
    """A wake of a task, whose outcome waits for its caller."""
    changes = {"context": WakeContext(task_id=task), "linger_sec": 24 * 3600}
    return request.model_copy(update=changes | ({"run_id": run_id} if run_id else {}))


async def test_the_next_wake_of_a_task_joins_the_run_that_goes_on(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    agent, settings = Agent(), ClientSettings(task_queue=queue)
    steps = Steps(agent.answers)
    async with working(temporal, queue, steps) as start:
        first = on("task", request_of_a_run)
        lost = await start(first)
        again = [await attach(temporal, settings, on("task", request_of_a_run, "second")) for _ in range(2)]
        await agent.end()
        outcome = await outcome_of(again[0].handle(temporal), collect=True)
        assert await lost.result() == outcome
        after = await attach(temporal, settings, on("task", request_of_a_run, "second"))
        found = await find(temporal, "second")
    assert [(ticket.kind, ticket.run_id) for ticket in again] == [("joined", first.run_id)] * 2
    assert (after.kind, after.closed, after.workflow_run_id) == ("joined", True, again[0].workflow_run_id)
    assert found.key.run_id == first.run_id
    assert steps.names.count("create_job") == 1


async def test_another_task_is_told_who_holds_the_agent_and_may_wait(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    agent, settings, told = Agent(), ClientSettings(task_queue=queue), asyncio.Event()
    other = on("another", request_of_a_run, "other")
    async with working(temporal, queue, Steps(agent.answers)) as start:
        first = on("task", request_of_a_run)
        held = await start(first)
        busy = await attach(temporal, settings, other)
        waiting = asyncio.create_task(attach_when_free(temporal, settings, other, lambda _: told.set()))
        given_up = asyncio.create_task(attach_when_free(temporal, settings, other, lambda _: None))
        await told.wait()
        given_up.cancel()
        await agent.end()
        await outcome_of(held, collect=True)
        ticket = await waiting
        await outcome_of(ticket.handle(temporal), collect=True)
    assert (busy.kind, busy.run_id) == ("busy", first.run_id)
    assert busy.holder is not None
    assert busy.holder.task == "task"
    assert ticket.kind == "started"
    assert (await asyncio.wait([given_up]))[0].pop().cancelled()


async def test_an_outcome_that_nobody_fetched_is_given_to_the_next_wake_of_its_task(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    settings, steps = ClientSettings(task_queue=queue), Steps()
    async with working(temporal, queue, steps) as start:
        handle = await start(on("task", request_of_a_run))
        looked = await outcome_of(handle, collect=False)  # whoever merely looks does not take it away
        ticket = await attach(temporal, settings, on("task", request_of_a_run, "second"))
        assert ticket.kind == "joined"
        taken = await outcome_of(ticket.handle(temporal), collect=True)
        assert await handle.result() == taken == looked
    assert steps.names.count("create_job") == 1


async def test_an_outcome_that_nobody_fetched_gives_way_to_another_task(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    settings = ClientSettings(task_queue=queue)
    async with working(temporal, queue, Steps()) as start:
        handle = await start(on("task", request_of_a_run))
        await outcome_of(handle, collect=False)
        ticket = await attach(temporal, settings, on("another", request_of_a_run, "other"))
        assert (await handle.result()).exit_code == 0
        assert (await outcome_of(ticket.handle(temporal), collect=True)).exit_code == 0
    assert ticket.kind == "started"


async def test_a_cancel_does_not_take_an_outcome_away(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    async with working(temporal, queue, Steps()) as start:
        handle = await start(on("task", request_of_a_run))
        await outcome_of(handle, collect=False)
        assert (await cancel(handle, "too late")).outcome == "ended before"
        assert (await outcome_of(handle, collect=True)).exit_code == 0
        await handle.result()


async def test_a_wake_without_a_task_joins_nothing(temporal: Client, queue: str, request_of_a_run: RunRequest) -> None:
    agent = Agent()
    async with working(temporal, queue, Steps(agent.answers)) as start:
        handle = await start(on(None, request_of_a_run))
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(talk.JOIN, talk.Join(run_id="second"))
        await agent.end()
        await outcome_of(handle, collect=True)


# long clocks with no activity open


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server whose clock jumps while nothing is open; one for each test."""
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(Path(sys.executable).with_name("temporal-test-server")),
        data_converter=pydantic_data_converter,
    ) as environment:
        kinds = {
            SearchAttributeIndexedValueType.KEYWORD: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
            SearchAttributeIndexedValueType.KEYWORD_LIST: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
        }
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace="default", search_attributes={key.name: kinds[key.indexed_value_type] for key in ALL}
            )
        )
        yield environment


async def told(client: Client, queue: str, steps: Steps, request: RunRequest) -> tuple[Outcome, timedelta]:
    """A run's outcome, and how long the run was open by the server's clock."""
    async with working(client, queue, steps):
        handle = await client.start_workflow(
            AgentRunWorkflow.run, request, id=workflow_id(request.agent.id), task_queue=queue
        )
        outcome, description = await handle.result(), await handle.describe()
    assert description.close_time is not None
    return outcome, description.close_time - description.start_time


async def test_an_outcome_waits_a_day_and_no_longer(
    skipping: WorkflowEnvironment, queue: str, request_of_a_run: RunRequest
) -> None:
    outcome, took = await told(skipping.client, queue, Steps(), on("task", request_of_a_run))
    assert outcome.exit_code == 0
    assert timedelta(hours=24) <= took < timedelta(hours=25)


async def test_a_broken_node_gets_time_between_attempts(
    skipping: WorkflowEnvironment, queue: str, request_of_a_run: RunRequest
) -> None:
    async def lost(_order: object) -> StreamEnd:
        failure = PodLost.as_failure("node lost")
        return StreamEnd(container=ContainerEnd(), receipt=OutputReceipt(), failure=failure)

    config = request_of_a_run.config.model_copy(update={"infrastructure_retries": 6})
    request = request_of_a_run.model_copy(update={"config": config})
    outcome, took = await told(skipping.client, queue, Steps({"stream_logs": lost}), request)
    assert len(outcome.attempts) == 7
    assert took >= timedelta(seconds=10 + 20 + 40 + 80 + 160 + 300)
