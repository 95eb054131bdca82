"""The next wake of a task joins its run or gets its outcome; an outcome that nobody fetched blocks no other task."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from agent_runs.client.attach import attach, attach_when_free
from agent_runs.client.obstacles import open_questions
from agent_runs.client.outcome import cancel, fetch_outcome, outcome_at_close
from agent_runs.client.runs import find_run
from agent_runs.client.settings import ClientSettings
from agent_runs.client.tell import answer
from agent_runs.contracts import updates
from agent_runs.contracts.errors import Failure, PodLost, ProviderUnavailable
from agent_runs.contracts.identity import workflow_id
from agent_runs.contracts.messages import Ended, StreamEnd, StreamLogs
from agent_runs.contracts.outcome import Outcome, Report
from agent_runs.paperclip.sealing import Sealer, SealingKey
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import DEFAULTS, PERMISSION, FakeActivities, FakeAgent, answer_with
from tests.workflows.fake_worker import Handle, configured, reached, running_worker, wake
from workflows.agent_run import AgentRunWorkflow
from workflows.attributes import ALL


async def test_the_next_wake_of_a_task_joins_its_open_run(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, settings, second = FakeAgent(), ClientSettings(task_queue=queue), str(uuid.uuid4())
    steps = FakeActivities(agent.answers)
    async with running_worker(temporal, queue, steps) as start:
        first = wake("task", request_of_a_run)
        lost = await start(first)
        tickets = [await attach(temporal, settings, wake("task", request_of_a_run, second).wake) for _ in range(2)]
        await agent.end()
        outcome = await fetch_outcome(tickets[0].handle(temporal), collect=True)
        assert await outcome_at_close(lost) == outcome
        after = await attach(temporal, settings, wake("task", request_of_a_run, second).wake)
        found = await find_run(temporal, second)
    assert [(ticket.kind, ticket.run_id) for ticket in tickets] == [("joined", first.run_id)] * 2
    assert (after.kind, after.closed, after.workflow_run_id) == ("joined", True, tickets[0].workflow_run_id)
    assert found.key.run_id == first.run_id
    assert steps.names.count("create_job") == 1


async def test_another_task_learns_which_run_holds_the_agent_and_may_wait(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, settings, waits = FakeAgent(), ClientSettings(task_queue=queue), asyncio.Event()
    other = wake("another", request_of_a_run, "other")
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        first = wake("task", request_of_a_run)
        held = await start(first)
        busy = await attach(temporal, settings, other.wake)
        waiting = asyncio.create_task(attach_when_free(temporal, settings, other.wake, lambda _: waits.set()))
        given_up = asyncio.create_task(attach_when_free(temporal, settings, other.wake, lambda _: None))
        await waits.wait()
        given_up.cancel()
        await agent.end()
        await fetch_outcome(held, collect=True)
        ticket = await waiting
        await fetch_outcome(ticket.handle(temporal), collect=True)
    assert (busy.kind, busy.run_id) == ("busy", first.run_id)
    assert busy.holder is not None
    assert busy.holder.task == "task"
    assert ticket.kind == "started"
    assert (await asyncio.wait([given_up]))[0].pop().cancelled()


async def test_an_outcome_that_nobody_fetched_is_given_to_the_next_wake_of_its_task(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings, steps = ClientSettings(task_queue=queue), FakeActivities()
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(wake("task", request_of_a_run))
        read = await fetch_outcome(handle, collect=False)  # reading it does not collect it
        ticket = await attach(temporal, settings, wake("task", request_of_a_run, "second").wake)
        assert ticket.kind == "joined"
        collected = await fetch_outcome(ticket.handle(temporal), collect=True)
        assert await outcome_at_close(handle) == collected == read
    assert steps.names.count("create_job") == 1


async def test_a_wake_after_a_collected_outcome_gets_a_run_of_its_own_also_while_no_worker_runs(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings, steps = ClientSettings(task_queue=queue), FakeActivities()
    async with running_worker(temporal, queue, steps) as start:
        first = await start(wake("task", request_of_a_run))
        delivered = await fetch_outcome(first, collect=False)
    await first.signal(updates.COLLECTED)  # stored, and seen by no worker yet
    second = wake("task", request_of_a_run, "second")
    attaching = asyncio.create_task(attach_when_free(temporal, settings, second.wake, lambda _: None))
    await join_requested(first)
    async with running_worker(temporal, queue, steps):
        ticket = await attaching
        outcome = await fetch_outcome(ticket.handle(temporal), collect=True)
    assert (ticket.kind, ticket.run_id) == ("started", "second")
    assert ticket.workflow_run_id != first.run_id
    assert await outcome_at_close(first) == delivered
    assert outcome.result_json["transcript"].startswith("second/")
    assert steps.names.count("create_job") == 2


async def join_requested(handle: Handle) -> None:
    """The server waits for a worker to answer the Update `join`; only that pending workflow task shows it."""
    async with asyncio.timeout(60):
        while not (await handle.describe()).raw_description.HasField("pending_workflow_task"):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "failure", [None, ProviderUnavailable.as_failure("it answers 503")], ids=["success", "failure"]
)
async def test_an_outcome_that_nobody_fetched_is_released_for_another_task(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, failure: Failure | None
) -> None:
    settings, code = ClientSettings(task_queue=queue), 1 if failure else 0
    report = Report(failure=failure, exit_code=code)
    steps = FakeActivities({"parse_transcript": answer_with(lambda _: report)})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(wake("task", request_of_a_run))
        await fetch_outcome(handle, collect=False)
        ticket = await attach(temporal, settings, wake("another", request_of_a_run, "other").wake)
        assert (await outcome_at_close(handle)).exit_code == code
        assert (await fetch_outcome(ticket.handle(temporal), collect=True)).exit_code == code
    assert ticket.kind == "started"


async def test_a_cancel_does_not_collect_the_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async with running_worker(temporal, queue, FakeActivities()) as start:
        handle = await start(wake("task", request_of_a_run))
        await fetch_outcome(handle, collect=False)
        assert (await cancel(handle, "too late")).outcome == "ended before"
        assert (await fetch_outcome(handle, collect=True)).exit_code == 0
        await outcome_at_close(handle)


async def test_a_wake_after_a_cancelled_run_whose_outcome_nobody_fetched_gets_a_run_of_its_own(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings, agent = ClientSettings(task_queue=queue), FakeAgent()
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        first = await start(wake("task", request_of_a_run))
        await reached(agent.started)
        await first.cancel(reason="Interrupted by a comment")
        assert (await fetch_outcome(first, collect=False)).error_code == "cancelled"
        ticket = await attach(temporal, settings, wake("task", request_of_a_run, "later").wake)
        agent.stopped.set()
        outcome = await fetch_outcome(ticket.handle(temporal), collect=True)
        assert (await outcome_at_close(first)).error_code == "cancelled"
    assert (ticket.kind, ticket.run_id, outcome.exit_code) == ("started", "later", 0)


async def test_a_wake_that_comes_while_a_cancelled_run_cleans_up_gets_a_run_of_its_own(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings, stopped, go = ClientSettings(task_queue=queue), asyncio.Event(), asyncio.Event()
    parse = DEFAULTS["parse_transcript"][1]

    async def parse_slowly(input: object) -> object:
        stopped.set()
        await go.wait()
        return await parse(input)

    agent = FakeAgent()
    steps = FakeActivities({**agent.answers, "parse_transcript": parse_slowly})
    later = wake("task", request_of_a_run, "later")
    company = request_of_a_run.agent.company_id
    runs = ("earlier", "earlier", "later")
    joins = [updates.Join(run_id=run_id, company_id=company, task="task") for run_id in runs]
    async with running_worker(temporal, queue, steps) as start:
        first = await start(wake("task", request_of_a_run))
        await reached(agent.started)
        answers = [await first.execute_update(updates.JOIN, joins[0], result_type=updates.Joined)]
        await first.cancel(reason="Interrupted by a comment")
        await reached(stopped)
        for join in joins[1:]:  # with the id that a client uses, so that `attach` below gets this answer
            update_id = f"join:{join.company_id}:{join.run_id}"
            answers.append(await first.execute_update(updates.JOIN, join, id=update_id, result_type=updates.Joined))
        attaching = asyncio.create_task(attach_when_free(temporal, settings, later.wake, lambda _: None))
        go.set()
        ticket = await attaching
        outcome = await fetch_outcome(ticket.handle(temporal), collect=True)
        cancelled = await outcome_at_close(first)
    assert [answer.kind for answer in answers] == ["joined", "joined", "released"]
    assert answers[-1].phase == "finishing"
    assert (ticket.kind, ticket.run_id, outcome.exit_code) == ("started", "later", 0)
    assert cancelled.error_code == "cancelled"


async def test_a_wake_after_a_cancel_that_no_worker_has_seen_gets_a_run_of_its_own(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings, agent = ClientSettings(task_queue=queue), FakeAgent()
    steps = FakeActivities(agent.answers)
    async with running_worker(temporal, queue, steps, replays=False) as start:
        first = await start(wake("task", request_of_a_run))
        await reached(agent.started)
    await first.cancel(reason="Interrupted by a comment")  # stored, and seen by no worker yet
    later = wake("task", request_of_a_run, "later")
    attaching = asyncio.create_task(attach_when_free(temporal, settings, later.wake, lambda _: None))
    await join_requested(first)
    async with running_worker(temporal, queue, steps):
        ticket = await attaching
        agent.stopped.set()
        outcome = await fetch_outcome(ticket.handle(temporal), collect=True)
        cancelled = await outcome_at_close(first)
    assert (ticket.kind, ticket.run_id, outcome.exit_code) == ("started", "later", 0)
    assert cancelled.error_code == "cancelled"


async def test_a_wake_without_a_task_joins_nothing(temporal: Client, queue: str, request_of_a_run: FakeRequest) -> None:
    agent = FakeAgent()
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(wake(None, request_of_a_run))
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(updates.JOIN, updates.Join(run_id="second", company_id="acme"))
        await agent.end()
        await fetch_outcome(handle, collect=True)


# long timers with no activity open


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server that skips time while no activity is open; one for each test."""
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(Path(sys.executable).with_name("temporal-test-server")),
        data_converter=pydantic_data_converter,
    ) as environment:
        kinds = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in ALL}
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace="default", search_attributes=kinds)
        )
        yield environment


async def run_to_close(
    client: Client, queue: str, steps: FakeActivities, request: FakeRequest
) -> tuple[Outcome, timedelta]:
    """Returns a run's outcome, and how long the run was open by the server's clock."""
    async with running_worker(client, queue, steps):
        handle = await client.start_workflow(
            AgentRunWorkflow.__name__,
            request.wake.start,
            id=workflow_id(request.agent.id),
            task_queue=queue,
            result_type=Outcome,
        )
        outcome, description = await outcome_at_close(handle), await handle.describe()
    assert description.close_time is not None
    return outcome, description.close_time - description.start_time


async def test_an_outcome_is_kept_for_a_day_and_no_longer(
    skipping: WorkflowEnvironment, queue: str, request_of_a_run: FakeRequest
) -> None:
    outcome, duration = await run_to_close(skipping.client, queue, FakeActivities(), wake("task", request_of_a_run))
    assert outcome.exit_code == 0
    assert timedelta(hours=24) <= duration < timedelta(hours=25)


async def test_pauses_between_attempts_become_longer(
    skipping: WorkflowEnvironment, queue: str, request_of_a_run: FakeRequest
) -> None:
    async def lost(_input: object) -> StreamEnd:
        failure = PodLost.as_failure("node lost")
        return Ended(failure=failure)

    config = request_of_a_run.config.model_copy(update={"infrastructure_retries": 6})
    request = request_of_a_run.model_copy(update={"config": config})
    outcome, duration = await run_to_close(skipping.client, queue, FakeActivities({"stream_logs": lost}), request)
    assert len(outcome.attempts) == 7
    assert duration >= timedelta(seconds=10 + 20 + 40 + 80 + 160 + 300)


async def test_a_question_waits_a_day_for_its_answer(
    skipping: WorkflowEnvironment, queue: str, request_of_a_run: FakeRequest
) -> None:
    request = configured(request_of_a_run, ask_timeout_sec=25 * 3600, timeout_sec=3600)
    agent, sealer = FakeAgent(questions=(PERMISSION,)), Sealer(SealingKey.generate().public)

    async def stream(input: StreamLogs) -> StreamEnd:
        if not agent.asked.is_set():
            await agent.ask()
            raise ApplicationError("nobody follows the agent for a day", next_retry_delay=timedelta(hours=24))
        end: StreamEnd = await agent.answers["stream_logs"](input)
        return end

    steps = FakeActivities({**agent.answers, "stream_logs": stream})
    async with running_worker(skipping.client, queue, steps):
        handle = await skipping.client.start_workflow(
            AgentRunWorkflow.__name__,
            request.wake.start,
            id=workflow_id(request.agent.id),
            task_queue=queue,
            result_type=Outcome,
        )
        await reached(agent.asked)
        asked = await open_questions(handle)
        await skipping.sleep(timedelta(hours=24))
        assert await open_questions(handle) == asked
        await answer(handle, request.key, sealer, asked[0], (("Allow once",),), "ada")
        await agent.end()
        outcome = await outcome_at_close(handle)
    assert (outcome.failure, len(outcome.attempts)) == (None, 1)
    assert [input.by for name, input in steps.calls if name == "tell_agent"] == ["ada"]
