"""A cancel works in every phase, also twice, and reports whether the agent stopped and its session is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.client.outcome import cancel, fetch_outcome, outcome_at_close, request_cancel
from agent_runs.contracts.errors import PodLost
from agent_runs.contracts.messages import AwaitSchedule, Ended, EndJob, EndUnreportedJob, Finished, StreamEnd
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import DEFAULTS, FakeActivities, FakeAgent, until_cancelled
from tests.workflows.fake_worker import Handle, reached, running_worker


async def by_client(handle: Handle) -> None:
    answer = await cancel(handle, "wrong branch")
    assert answer.outcome == "cancelled"
    assert answer.stop.agent_stopped


async def by_operator(handle: Handle) -> None:
    await handle.cancel(reason="wrong branch")


@pytest.mark.parametrize("how", [by_client, by_operator])
@pytest.mark.parametrize("phase", ["introspect_pod", "bundle_prompt", "create_job", "await_schedule", "stream_logs"])
async def test_a_cancel_ends_the_run_in_every_phase(
    temporal: Client,
    queue: str,
    request_of_a_run: FakeRequest,
    phase: str,
    how: Callable[[Handle], Awaitable[None]],
) -> None:
    begun, agent = asyncio.Event(), FakeAgent()

    async def slow(input: Any) -> Any:
        begun.set()
        if phase == "await_schedule":
            await until_cancelled(input)
        await asyncio.sleep(0.5)  # an activity without heartbeats does not learn of the cancel and ends by itself
        return await DEFAULTS[phase][1](input)

    steps = FakeActivities({**agent.answers, **({} if phase == "stream_logs" else {phase: slow})})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started if phase == "stream_logs" else begun)
        await how(handle)
        outcome = await outcome_at_close(handle)
    assert outcome.error_code == "cancelled"
    assert "wrong branch" in (outcome.error_message or "")
    assert outcome.stop is not None
    assert outcome.stop.agent_started == (phase == "stream_logs")
    assert outcome.stop.agent_stopped
    assert steps.names[-1] == "finish"
    if phase != "stream_logs":
        assert "stream_logs" not in steps.names
    if phase in {"await_schedule", "stream_logs"}:
        assert isinstance(steps.last_input("finish"), EndJob)
    if phase == "create_job":  # on a slow machine the cancel interrupts it: then whatever it has created is looked for
        assert isinstance(steps.last_input("finish"), EndJob | EndUnreportedJob)


async def test_a_cancel_that_comes_as_the_agent_starts_is_not_lost(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    begun, may_end, agent = asyncio.Event(), asyncio.Event(), FakeAgent()

    async def starts(input: AwaitSchedule) -> Any:
        begun.set()
        await may_end.wait()
        return FakeActivities.pod(input)

    steps = FakeActivities({**agent.answers, "await_schedule": starts})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(begun)
        await request_cancel(handle, "wrong branch")
        may_end.set()
        async with asyncio.timeout(60):
            outcome = await outcome_at_close(handle)
    assert outcome.error_code == "cancelled"
    assert outcome.stop is not None
    assert outcome.stop.agent_stopped
    # of an agent whose start was not reported before the cancel came, the clean-up ends the pod
    assert steps.names.count("stop_agent") == int(outcome.stop.agent_started)
    assert steps.names[-1] == "finish"


@pytest.mark.parametrize("phase", ["introspect_pod", "bundle_prompt", "create_job"])
async def test_a_cancel_reaches_an_activity_that_waits_for_the_cluster_and_sends_no_heartbeats_itself(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, phase: str
) -> None:
    begun, interrupted = asyncio.Event(), asyncio.Event()

    async def never_answered(_input: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.set()

    async with running_worker(temporal, queue, FakeActivities({phase: never_answered})) as start:
        handle = await start(request_of_a_run)
        await reached(begun)
        await handle.cancel()
        await reached(interrupted)
        outcome = await outcome_at_close(handle)
    assert outcome.error_code == "cancelled"
    assert outcome.stop is not None
    assert not outcome.stop.agent_started


async def test_a_cancelled_agent_keeps_its_session_and_its_last_output(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    steps = FakeActivities(agent.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started)
        first, second = await asyncio.gather(cancel(handle, "the first reason"), cancel(handle, "the second"))
        third = await cancel(handle, "the third")
        outcome = await outcome_at_close(handle)
    assert first == second == third
    assert first.stop.session_preserved
    assert first.session_id == "ses_1"
    assert outcome.error_message in {"Run cancelled; the first reason", "Run cancelled; the second"}
    assert outcome.receipt is not None
    assert outcome.receipt.lines == 7
    assert steps.names.count("stop_agent") == 1


async def test_a_late_cancel_reports_how_the_run_ended(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    parsing, may_end = asyncio.Event(), asyncio.Event()

    async def parse(input: Any) -> Any:
        parsing.set()
        await may_end.wait()
        return await DEFAULTS["parse_transcript"][1](input)

    async with running_worker(temporal, queue, FakeActivities({"parse_transcript": parse})) as start:
        handle = await start(request_of_a_run)
        await reached(parsing)
        cancelling = asyncio.create_task(cancel(handle, "too late"))
        await handle.cancel()
        may_end.set()
        answer, outcome = await cancelling, await outcome_at_close(handle)
    assert answer.outcome == "ended before"
    assert answer.stop.agent_stopped
    assert answer.failure_code is None
    assert outcome.exit_code == 0


async def test_a_cancel_of_a_run_that_temporal_no_longer_knows_does_nothing(temporal: Client) -> None:
    async with asyncio.timeout(60):
        await request_cancel(temporal.get_workflow_handle("agent-run/forgotten"), "wrong branch")


async def test_a_cancel_that_temporal_refuses_is_not_repeated(temporal: Client) -> None:
    with pytest.raises(RPCError) as refused:
        async with asyncio.timeout(60):
            await request_cancel(temporal.get_workflow_handle(""), "wrong branch")
    assert refused.value.status is RPCStatusCode.INVALID_ARGUMENT


async def test_a_caller_may_stop_waiting_for_an_outcome(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(request_of_a_run)
        waiting = asyncio.create_task(fetch_outcome(handle, collect=False))
        await outcome_requested(handle)
        waiting.cancel()
        done, _ = await asyncio.wait([waiting], timeout=30)
        await agent.end()
        await outcome_at_close(handle)
    assert [task.cancelled() for task in done] == [True]


async def outcome_requested(handle: Handle) -> None:
    """Waits until the run has accepted the Update that returns its outcome; only its history shows it."""
    async with asyncio.timeout(60):
        while not any(  # noqa: ASYNC110 - no event of ours: only the server knows
            event.HasField("workflow_execution_update_accepted_event_attributes")
            for event in (await handle.fetch_history()).events
        ):
            await asyncio.sleep(0.05)


async def test_a_cancel_between_two_attempts_prevents_the_next_one(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async def lost(_input: object) -> StreamEnd:
        failure = PodLost.as_failure("evicted")
        return Ended(failure=failure)

    cleaned = asyncio.Event()

    async def finish(_input: object) -> Finished:
        cleaned.set()
        return Finished(deleted=True)

    steps = FakeActivities({"stream_logs": lost, "finish": finish})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(cleaned)
        answer, outcome = await cancel(handle, "enough"), await outcome_at_close(handle)
    assert answer.outcome == "cancelled"
    assert outcome.error_code == "cancelled"
    assert [attempt.failure_code for attempt in outcome.attempts] == ["k8s_pod_lost"]
    assert steps.names.count("create_job") == 1
