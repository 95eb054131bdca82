"""What somebody tells an agent reaches it once, while it works, or is refused in words."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from agent_runs.client.outcome import fetch_outcome, outcome_at_close
from agent_runs.client.tell import tell
from agent_runs.contracts import updates
from agent_runs.contracts.errors import InvalidRequest, MessageNotDelivered
from agent_runs.contracts.start import MESSAGE_LIMIT, Binding, SealedMessage
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import DEFAULTS, FakeActivities, FakeAgent, fail_with
from tests.workflows.fake_worker import reached, running_worker

KEY = SealingKey.generate()
SEALER = Sealer(KEY.public)


def messages_in(steps: FakeActivities) -> list[Any]:
    return [input for name, input in steps.calls if name == "tell_agent"]


async def test_an_agent_gets_a_message_while_it_works_and_the_history_does_not_have_its_text(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    steps = FakeActivities(agent.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started)
        answer = await tell(handle, request_of_a_run.key, SEALER, "the branch is heron", "ada")
        await agent.end()
        outcome = await outcome_at_close(handle)
    assert (answer.run_id, answer.attempt) == (request_of_a_run.run_id, 1)
    (input,) = messages_in(steps)
    assert (input.by, input.attempt.attempt) == ("ada", 1)
    binding = Binding.of_message(request_of_a_run.key, input.message_id)
    assert Opener([KEY]).open(input.sealed, SealedMessage, binding).text == "the branch is heron"
    assert "ada sent the agent a message in attempt 1" in outcome.warnings
    history = b"".join([event.SerializeToString() for event in (await handle.fetch_history()).events])
    assert (b"ada sent" in history, b"heron" in history) == (True, False)


async def test_a_message_waits_for_the_agent_to_work_and_is_delivered_once(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, scheduled = FakeAgent(), asyncio.Event()

    async def schedule(input: Any) -> Any:
        await scheduled.wait()
        return await DEFAULTS["await_schedule"][1](input)

    steps = FakeActivities({**agent.answers, "await_schedule": schedule})
    message = updates.Tell(message_id="m1", run_id=request_of_a_run.run_id, by="ada", sealed="sealed")
    once: dict[str, Any] = {"id": "tell:m1", "result_type": updates.Delivery}
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        asked = [asyncio.create_task(handle.execute_update(updates.TELL, message, **once)) for _ in range(3)]
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.HasField("workflow_execution_update_accepted_event_attributes"):
                break
        assert messages_in(steps) == []
        scheduled.set()
        answers = await asyncio.gather(*asked)
        await agent.end()
        await outcome_at_close(handle)
    assert len(messages_in(steps)) == 1
    assert len({each.at for each in answers}) == 1


async def test_a_message_that_does_not_reach_the_agent_says_why_and_changes_nothing(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    steps = FakeActivities({**agent.answers, "tell_agent": fail_with(MessageNotDelivered("pi takes no message"))})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started)
        with pytest.raises(MessageNotDelivered) as refused:
            await tell(handle, request_of_a_run.key, SEALER, "hello", "ada")
        for text in ("", " \n", "x" * (MESSAGE_LIMIT + 1)):
            with pytest.raises(InvalidRequest):
                await tell(handle, request_of_a_run.key, SEALER, text, "ada")
        other = request_of_a_run.key.model_copy(update={"run_id": "another"})
        with pytest.raises(MessageNotDelivered, match="run another does not have the agent"):
            await tell(handle, other, SEALER, "hello", "ada")
        wrong: list[Any]
        for wrong in ([], [None], ["x"], [{}], [7]):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(updates.TELL, args=wrong)
        await agent.end()
        outcome = await fetch_outcome(handle, collect=True)
        await outcome_at_close(handle)
        with pytest.raises(MessageNotDelivered, match="the run has ended"):
            await tell(handle, request_of_a_run.key, SEALER, "hello", "ada")
    assert refused.value.message == "pi takes no message"
    assert (outcome.failure, outcome.warnings) == (None, ())


async def test_a_message_that_waits_when_the_run_ends_is_refused(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    asked = asyncio.Event()

    async def schedule(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    steps = FakeActivities({"await_schedule": schedule})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(asked)
        waiting = asyncio.create_task(tell(handle, request_of_a_run.key, SEALER, "hello", "ada"))
        await handle.cancel()
        with pytest.raises(MessageNotDelivered, match="the run has ended"):
            await waiting
    assert messages_in(steps) == []
