"""Each timer has a name, ends the agent gracefully, and the outcome keeps session, usage and transcript."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio import activity
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.messages import OverQuota, Silence, StreamEnd, StreamLogs, StreamProgress
from agent_runs.logs.follower import Follower
from agent_runs.logs.silence import SilenceLimits
from tests.logs.scripted_log import JOB
from tests.logs.timed_container import TimedContainer, worker_clock
from tests.support.requests import FakeRequest
from tests.support.virtual_time import run_in_virtual_time
from tests.workflows.fake_activities import GOOD, STOPPED, FakeActivities, FakeAgent, answer_with
from tests.workflows.fake_worker import Handle, configured, running_worker


async def timers(handle: Handle) -> list[str]:
    """The names of the timers the run has started."""
    events = (await handle.fetch_history()).events
    started = [event for event in events if event.HasField("timer_started_event_attributes")]
    return [event.user_metadata.summary.data.decode().strip('"') for event in started]


async def test_a_run_that_takes_too_long_is_stopped_and_its_last_output_counts(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    steps = FakeActivities(FakeAgent().answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(configured(request_of_a_run, timeout_sec=1))
        outcome = await outcome_at_close(handle)
        assert {"run timeout", "grace"} <= set(await timers(handle))
    assert outcome.timed_out
    assert outcome.error_code == "timeout"
    assert (outcome.error_message or "").startswith("Timed out after 1s")
    assert (outcome.session_id, outcome.usage) == ("ses_1", GOOD.usage)
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"
    assert outcome.stop is not None
    assert outcome.stop.agent_stopped
    assert outcome.stop.session_preserved
    assert not outcome.stop.killed
    assert steps.last_input("parse_transcript").stopped.code == "timeout"
    assert steps.names[-3:] == ["stop_agent", "parse_transcript", "finish"]


async def test_an_agent_that_ignores_sigterm_is_killed_after_its_grace(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    steps = FakeActivities(FakeAgent(ignores_sigterm=True).answers)
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(configured(request_of_a_run, timeout_sec=1, grace_sec=0)))
    assert outcome.timed_out
    assert outcome.stop is not None
    assert outcome.stop.killed
    assert outcome.stop.agent_stopped
    assert steps.last_input("finish").grace == timedelta()


async def test_a_silent_agent_is_stopped_and_followed_to_its_end(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    progress = StreamProgress(sequence=7, needed_from=8, last_output="compiling")
    silence = Silence(limit=timedelta(hours=1), progress=progress, processes=("cc1plus", "make"))
    steps = FakeActivities(FakeAgent(silence=silence).answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(configured(request_of_a_run, first_output_timeout_sec=1, silence_timeout_sec=3600))
        outcome = await outcome_at_close(handle)
        assert await timers(handle) == ["grace"]
    assert outcome.error_code == "agent_silent"
    assert outcome.error_message is not None
    assert "no progress for 3600s; last output: compiling; processes: cc1plus, make" in outcome.error_message
    first, rest = [input for name, input in steps.calls if name == "stream_logs"]
    assert (first.first_output_timeout, first.silence_timeout) == (timedelta(seconds=1), timedelta(hours=1))
    assert (rest.first_output_timeout, rest.silence_timeout, rest.resume) == (timedelta(), timedelta(), progress)
    assert steps.last_input("parse_transcript").end == STOPPED
    assert (outcome.session_id, outcome.usage) == ("ses_1", GOOD.usage)


async def test_an_agent_that_is_stopped_because_it_stays_after_its_answer_has_succeeded(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    silence = Silence(limit=timedelta(seconds=30), progress=StreamProgress(sequence=7, needed_from=8))
    stayed = answer_with(lambda _: GOOD.model_copy(update={"stayed": True}))
    steps = FakeActivities(FakeAgent(silence=silence).answers | {"parse_transcript": stayed})
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert (outcome.failure, outcome.exit_code) == (None, 0)
    first, rest = [input for name, input in steps.calls if name == "stream_logs"]
    assert (first.answered_timeout, rest.answered_timeout) == (timedelta(seconds=30), timedelta())
    assert steps.last_input("parse_transcript").stopped.code == "agent_silent"


@pytest.mark.parametrize(
    ("cause", "detail", "code", "message"),
    [
        (
            "provider",
            "",
            "provider_hung",
            "the provider has not answered for 3600s; last output: compiling; processes: ",
        ),
        ("tool", "read", "tool_hung", "read has not ended for 3600s; last output: compiling"),
        ("chatter", "retry", "no_progress", "no step and no tool has ended for 3600s, only output like 'retry'; last"),
    ],
)
async def test_what_an_agent_without_progress_waits_for_names_the_failure(
    cause: Any, detail: str, code: str, message: str, temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    progress = StreamProgress(sequence=7, needed_from=8, last_output="compiling")
    silence = Silence(
        limit=timedelta(hours=1), cause=cause, detail=detail, progress=progress, processes=("opencode", "make")
    )
    steps = FakeActivities(FakeAgent(silence=silence).answers)
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert outcome.error_code == code
    assert (outcome.error_message or "").startswith(message)
    assert len(outcome.attempts) == 1
    assert outcome.failure is not None
    assert outcome.failure.next_step


async def test_an_agent_that_writes_too_much_is_stopped_and_what_follows_is_not_stored(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    progress = StreamProgress(sequence=7, needed_from=8)
    steps = FakeActivities(FakeAgent(over_quota=OverQuota(limit=1_000_000, progress=progress)).answers)
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert outcome.error_code == "output_quota_exceeded"
    assert "more than 1000000 bytes of this run are stored; what followed is not" in (outcome.error_message or "")
    first, rest = [input for name, input in steps.calls if name == "stream_logs"]
    assert (first.over_quota, rest.over_quota, rest.resume) == (False, True, progress)
    assert steps.names.index("stop_agent") > steps.names.index("stream_logs")
    assert steps.last_input("parse_transcript").end == STOPPED


async def test_a_cancelled_agent_that_writes_too_much_in_its_grace_is_followed_to_its_end(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()

    async def stream(input: StreamLogs) -> StreamEnd:
        if input.over_quota:
            return cast("StreamEnd", await agent.answers["stream_logs"](input))
        agent.started.set()
        await agent.stopped.wait()
        return OverQuota(limit=1)

    steps = FakeActivities({**agent.answers, "stream_logs": stream})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await agent.started.wait()
        await handle.cancel()
        outcome = await outcome_at_close(handle)
    assert outcome.error_code == "cancelled"
    assert steps.names.count("stream_logs") == 2
    assert steps.last_input("parse_transcript").end == STOPPED


async def test_a_week_of_short_silences_adds_nothing_to_the_history(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    week = timedelta(days=7).total_seconds()

    async def follow(input: StreamLogs) -> Any:
        """Follow a week of output, in virtual time: 59 s of silence, then a line."""
        container = TimedContainer([(at, "stdout") for at in range(1, int(week), 59)], ends_at=week)
        limits = SilenceLimits(input.first_output_timeout, input.silence_timeout)
        async with Follower(container, JOB, container.pod_ref, limits=limits, wall_clock=worker_clock) as follower:
            lines = sum([len(batch.lines) async for batch in follower])
        assert (lines, follower.silence.exceeded) == (len(container.outputs), None)
        return FakeActivities.ended(input)

    async def stream(input: StreamLogs) -> Any:
        following = asyncio.ensure_future(asyncio.to_thread(run_in_virtual_time, follow(input)))
        while not following.done():  # a week takes a slow machine longer than the heartbeat timeout
            activity.heartbeat()
            await asyncio.wait([following], timeout=1)
        return await following

    steps = FakeActivities({"stream_logs": stream})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(configured(request_of_a_run, silence_timeout_sec=60))
        outcome = await outcome_at_close(handle)
        history = await handle.fetch_history()
        assert await timers(handle) == []
    assert outcome.failure is None
    assert steps.last_input("stream_logs").silence_timeout == timedelta(seconds=60)
    assert len(history.events) < 60


async def test_opencode_that_hangs_before_its_first_line_is_retried_once(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: Any
) -> None:
    monkeypatch.setattr("workflows.retries.FIRST_RETRY_PAUSE", timedelta(milliseconds=1))
    hung = Silence(limit=timedelta(minutes=7), has_output=False)
    agents = [FakeAgent(silence=hung), FakeAgent(silence=hung)]

    def steps_for(then_succeeds: bool) -> FakeActivities:  # a parameter of this test
        async def stream(input: Any) -> Any:
            if then_succeeds and input.attempt.attempt == 2:
                return FakeActivities.ended(input)
            return await agents[input.attempt.attempt - 1].answers["stream_logs"](input)

        async def stop(input: Any) -> Any:
            second = input.job.uid == "uid-2"
            return await agents[int(second)].answers["stop_agent"](input)

        return FakeActivities({"stream_logs": stream, "stop_agent": stop})

    request = configured(request_of_a_run, first_output_timeout_sec=1)
    async with running_worker(temporal, queue, steps_for(then_succeeds=True), sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request))
    assert [attempt.failure_code for attempt in outcome.attempts] == ["opencode_start_hung", None]
    assert outcome.exit_code == 0

    agents = [FakeAgent(silence=hung), FakeAgent(silence=hung)]
    async with running_worker(temporal, f"{queue}-second", steps_for(then_succeeds=False), sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request.model_copy(update={"run_id": "second"})))
    assert [attempt.failure_code for attempt in outcome.attempts] == ["opencode_start_hung"] * 2
    assert outcome.error_code == "opencode_start_hung"
