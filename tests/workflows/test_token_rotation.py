"""A join brings its token: the running agent gets it, and so does every later attempt; nothing waits for it."""

import asyncio
from typing import Any

from temporalio.client import Client

from agent_runs.client.attach import attach
from agent_runs.client.outcome import fetch_outcome, outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.errors import PodLost, SealedFieldUnreadable
from agent_runs.contracts.messages import Ended, StreamEnd
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import DEFAULTS, Answer, FakeActivities, FakeAgent, fail_with
from tests.workflows.fake_worker import running_worker, wake

POD_LOST = Ended(failure=PodLost.as_failure("the node was lost"))


def join(request: FakeRequest, run_id: str) -> FakeRequest:
    """A later wake of the task, sealed for its own run."""
    return wake("task", request, run_id).model_copy(update={"sealed": f"sealed for {run_id}"})


def create_job(*, has_api_proxy: bool) -> Answer:
    async def create(input: Any) -> Any:
        return (await DEFAULTS["create_job"][1](input)).model_copy(update={"has_api_proxy": has_api_proxy})

    return create


class FakeRotation:
    """A fake of `rotate_token` that records its inputs."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self._called = asyncio.Condition()

    async def __call__(self, input: Any) -> bool:
        async with self._called:
            self.inputs.append(input)
            self._called.notify_all()
        return True

    async def wait_for_calls(self, times: int) -> None:
        async with self._called:
            await self._called.wait_for(lambda: len(self.inputs) >= times)

    @property
    def runs(self) -> list[str]:
        return [input.joined.run_id for input in self.inputs]


async def test_the_running_agent_and_the_next_attempt_get_the_newest_token(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, rotation, settings = FakeAgent(), FakeRotation(), ClientSettings(task_queue=queue)

    async def stream(input: Any) -> StreamEnd:
        end: StreamEnd = await agent.answers["stream_logs"](input)
        return POD_LOST if input.attempt.attempt == 1 else end

    answers: dict[str, Answer] = {
        **agent.answers,
        "stream_logs": stream,
        "create_job": create_job(has_api_proxy=True),
        "rotate_token": rotation,
    }
    steps = FakeActivities(answers)
    async with running_worker(temporal, queue, steps) as start:
        first = await start(wake("task", request_of_a_run))
        await agent.started.wait()
        await attach(temporal, settings, join(request_of_a_run, "second").wake)
        await rotation.wait_for_calls(1)
        await attach(temporal, settings, join(request_of_a_run, "second").wake)
        await attach(temporal, settings, join(request_of_a_run, "third").wake)
        await rotation.wait_for_calls(2)
        await agent.end()
        outcome = await fetch_outcome(first, collect=True)
        await outcome_at_close(first)
    assert rotation.runs == ["second", "third"]
    assert {input.attempt.attempt for input in rotation.inputs} == {1}
    assert rotation.inputs[1].joined.sealed == "sealed for third"
    created = [input.joined and input.joined.run_id for name, input in steps.calls if name == "create_job"]
    assert created == [None, "third"]
    assert [note for note in outcome.warnings if "joined" in note] == []


async def test_a_failed_rotation_is_a_note_and_no_failure(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, settings = FakeAgent(), ClientSettings(task_queue=queue)
    refused = asyncio.Event()

    async def refuse(input: Any) -> bool:
        refused.set()
        await fail_with(SealedFieldUnreadable("sealed with another key"))(input)
        return False

    steps = FakeActivities({**agent.answers, "create_job": create_job(has_api_proxy=True), "rotate_token": refuse})
    async with running_worker(temporal, queue, steps) as start:
        first = await start(wake("task", request_of_a_run))
        await agent.started.wait()
        ticket = await attach(temporal, settings, join(request_of_a_run, "second").wake)
        await refused.wait()
        await agent.end()
        outcome = await fetch_outcome(first, collect=True)
        await outcome_at_close(first)
    assert ticket.kind == "joined"
    assert outcome.failure is None
    (note,) = [note for note in outcome.warnings if "joined" in note]
    assert note.startswith("run second joined, but the agent keeps the old token: ")
    assert "sealed for second" not in note


async def test_an_agent_without_a_proxy_keeps_its_token_and_a_note_says_so(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, settings = FakeAgent(), ClientSettings(task_queue=queue)
    steps = FakeActivities({**agent.answers, "create_job": create_job(has_api_proxy=False)})
    async with running_worker(temporal, queue, steps) as start:
        first = await start(wake("task", request_of_a_run))
        await agent.started.wait()
        await attach(temporal, settings, join(request_of_a_run, "second").wake)
        await agent.end()
        outcome = await fetch_outcome(first, collect=True)
        await outcome_at_close(first)
    assert "rotate_token" not in steps.names
    assert any("AGENT_RUNS_PAPERCLIP_API_URL" in note for note in outcome.warnings)
