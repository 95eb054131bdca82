"""A cancel works in every phase, twice too, and says whether the agent really stopped and its session is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import Client

from client.outcome import cancel
from contracts.errors import PodLost
from contracts.messages import StreamEnd
from contracts.outcome import ContainerEnd, OutputReceipt
from contracts.request import RunRequest
from tests.workflows.steps import DEFAULTS, Agent, Steps, until_cancelled
from tests.workflows.working import Handle, reached, working


async def by_update(handle: Handle) -> None:
    answer = await cancel(handle, "wrong branch")
    assert answer.outcome == "cancelled"
    assert answer.stop.agent_stopped


async def by_temporal(handle: Handle) -> None:
    await handle.cancel(reason="wrong branch")


@pytest.mark.parametrize("how", [by_update, by_temporal])
@pytest.mark.parametrize("phase", ["introspect_pod", "bundle_prompt", "create_job", "await_schedule", "stream_logs"])
async def test_a_cancel_ends_the_run_in_every_phase(
    temporal: Client,
    queue: str,
    request_of_a_run: RunRequest,
    phase: str,
    how: Callable[[Handle], Awaitable[None]],
) -> None:
    there, agent = asyncio.Event(), Agent()

    async def slow(order: Any) -> Any:
        there.set()
        if phase == "await_schedule":
            await until_cancelled(order)
        await asyncio.sleep(0.5)  # a step without heartbeats does not hear of the cancel and ends by itself
        return await DEFAULTS[phase][1](order)

    steps = Steps({**agent.answers, **({} if phase == "stream_logs" else {phase: slow})})
    async with working(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.working if phase == "stream_logs" else there)
        await how(handle)
        outcome = await handle.result()
    assert outcome.error_code == "cancelled"
    assert "wrong branch" in (outcome.error_message or "")
    assert outcome.stop is not None
    assert outcome.stop.agent_started == (phase == "stream_logs")
    assert outcome.stop.agent_stopped
    assert steps.names[-1] == "finish"
    if phase != "stream_logs":
        assert "stream_logs" not in steps.names
    if phase in {"create_job", "await_schedule", "stream_logs"}:
        assert steps.order("finish").job is not None


async def test_a_cancelled_agent_keeps_its_session_and_its_last_words(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    agent = Agent()
    steps = Steps(agent.answers)
    async with working(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.working)
        first, second = await asyncio.gather(cancel(handle, "the first reason"), cancel(handle, "the second"))
        third = await cancel(handle, "the third")
        outcome = await handle.result()
    assert first == second == third
    assert first.stop.session_preserved
    assert first.session_id == "ses_1"
    assert outcome.error_message in {"Run cancelled; the first reason", "Run cancelled; the second"}
    assert outcome.receipt is not None
    assert outcome.receipt.lines == 7
    assert steps.names.count("stop_agent") == 1


async def test_a_cancel_that_comes_too_late_says_how_the_run_ended(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    parsing, go_on = asyncio.Event(), asyncio.Event()

    async def parse(order: Any) -> Any:
        parsing.set()
        await go_on.wait()
        return await DEFAULTS["parse_transcript"][1](order)

    async with working(temporal, queue, Steps({"parse_transcript": parse})) as start:
        handle = await start(request_of_a_run)
        await reached(parsing)
        answering = asyncio.create_task(cancel(handle, "too late"))
        await handle.cancel()
        go_on.set()
        answer, outcome = await answering, await handle.result()
    assert answer.outcome == "ended before"
    assert answer.stop.agent_stopped
    assert answer.failure_code is None
    assert outcome.exit_code == 0


async def test_a_cancel_between_two_attempts_starts_no_other_one(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    async def lost(_order: object) -> StreamEnd:
        failure = PodLost.as_failure("evicted")
        return StreamEnd(container=ContainerEnd(), receipt=OutputReceipt(), failure=failure)

    cleaned = asyncio.Event()

    async def finish(_order: object) -> bool:
        cleaned.set()
        return True

    steps = Steps({"stream_logs": lost, "finish": finish})
    async with working(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(cleaned)
        answer, outcome = await cancel(handle, "enough"), await handle.result()
    assert answer.outcome == "cancelled"
    assert outcome.error_code == "cancelled"
    assert [attempt.failure_code for attempt in outcome.attempts] == ["k8s_pod_lost"]
    assert steps.names.count("create_job") == 1
