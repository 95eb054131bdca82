"""A join brings its token: the agent at work gets it, and so does every later attempt; nothing ever waits for it."""

import asyncio
from typing import Any

from temporalio.client import Client

from client.attach import attach
from client.outcome import outcome_of
from client.settings import ClientSettings
from contracts.errors import PodLost, SealedFieldUnreadable
from contracts.messages import StreamEnd
from contracts.outcome import ContainerEnd, Outcome, OutputReceipt
from contracts.request import RunRequest, WakeContext
from tests.workflows.steps import DEFAULTS, Agent, Answer, Steps
from tests.workflows.working import raising, working

LOST = StreamEnd(container=ContainerEnd(), receipt=OutputReceipt(), failure=PodLost.as_failure("the node went away"))


def wake(request: RunRequest, run_id: str | None = None) -> RunRequest:
    """A wake of one task, sealed for its own run."""
    changes: dict[str, Any] = {"context": WakeContext(task_id="task"), "linger_sec": 24 * 3600}
    later = {"run_id": run_id, "sealed_secrets": f"sealed for {run_id}"} if run_id else {}
    return request.model_copy(update=changes | later)


def creating(*, rotates: bool) -> Answer:
    async def create(order: Any) -> Any:
        return (await DEFAULTS["create_job"][1](order)).model_copy(update={"rotates": rotates})

    return create


class Rotation:
    """Stands in for `rotate_token` and tells the test of each order."""

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self._came = asyncio.Condition()

    async def __call__(self, order: Any) -> bool:
        async with self._came:
            self.orders.append(order)
            self._came.notify_all()
        return True

    async def came(self, times: int) -> None:
        async with self._came:
            await self._came.wait_for(lambda: len(self.orders) >= times)

    @property
    def runs(self) -> list[str]:
        return [order.joined.run_id for order in self.orders]


def notes(outcome: Outcome) -> list[str]:
    found: list[str] = (outcome.result_json or {}).get("notes") or []
    return found


async def test_the_agent_at_work_and_its_next_attempt_get_the_newest_token(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    agent, rotation, settings = Agent(), Rotation(), ClientSettings(task_queue=queue)

    async def stream(order: Any) -> StreamEnd:
        found: StreamEnd = await agent.answers["stream_logs"](order)
        return LOST if order.attempt.attempt == 1 else found

    answers: dict[str, Answer] = {
        **agent.answers,
        "stream_logs": stream,
        "create_job": creating(rotates=True),
        "rotate_token": rotation,
    }
    steps = Steps(answers)
    async with working(temporal, queue, steps) as start:
        first = await start(wake(request_of_a_run))
        await agent.working.wait()
        await attach(temporal, settings, wake(request_of_a_run, "second"))
        await rotation.came(1)
        await attach(temporal, settings, wake(request_of_a_run, "second"))
        await attach(temporal, settings, wake(request_of_a_run, "third"))
        await rotation.came(2)
        await agent.end()
        outcome = await outcome_of(first, collect=True)
        await first.result()
    assert rotation.runs == ["second", "third"]
    assert {order.attempt.attempt for order in rotation.orders} == {1}
    assert rotation.orders[1].joined.sealed_secrets == "sealed for third"
    created = [order.joined and order.joined.run_id for name, order in steps.calls if name == "create_job"]
    assert created == [None, "third"]
    assert [note for note in notes(outcome) if "joined" in note] == []


async def test_an_exchange_that_fails_is_a_note_and_no_failure(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    agent, settings = Agent(), ClientSettings(task_queue=queue)
    refused = asyncio.Event()

    async def refuse(order: Any) -> bool:
        refused.set()
        await raising(SealedFieldUnreadable("sealed with another key"))(order)
        return False

    steps = Steps({**agent.answers, "create_job": creating(rotates=True), "rotate_token": refuse})
    async with working(temporal, queue, steps) as start:
        first = await start(wake(request_of_a_run))
        await agent.working.wait()
        ticket = await attach(temporal, settings, wake(request_of_a_run, "second"))
        await refused.wait()
        await agent.end()
        outcome = await outcome_of(first, collect=True)
        await first.result()
    assert ticket.kind == "joined"
    assert outcome.failure is None
    (note,) = [note for note in notes(outcome) if "joined" in note]
    assert note.startswith("run second joined, but the agent goes on with the old token: ")
    assert "sealed for second" not in note


async def test_an_agent_without_a_proxy_keeps_its_token_and_the_run_says_so(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    agent, settings = Agent(), ClientSettings(task_queue=queue)
    steps = Steps({**agent.answers, "create_job": creating(rotates=False)})
    async with working(temporal, queue, steps) as start:
        first = await start(wake(request_of_a_run))
        await agent.working.wait()
        await attach(temporal, settings, wake(request_of_a_run, "second"))
        await agent.end()
        outcome = await outcome_of(first, collect=True)
        await first.result()
    assert "rotate_token" not in steps.names
    assert any("AGENT_RUNS_API_PROXY_IMAGE" in note for note in notes(outcome))
