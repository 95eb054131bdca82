"""Each timer has a name, ends the agent gracefully, and the outcome keeps session, usage and transcript."""

from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.messages import Silence
from agent_runs.contracts.request import RunRequest
from tests.workflows.fake_activities import GOOD, FakeActivities, FakeAgent, answer_with, until_cancelled
from tests.workflows.fake_worker import Handle, configured, running_worker


async def timers(handle: Handle) -> list[str]:
    """The names of the timers the run has started."""
    events = (await handle.fetch_history()).events
    started = [event for event in events if event.HasField("timer_started_event_attributes")]
    return [event.user_metadata.summary.data.decode().strip('"') for event in started]


async def test_a_run_that_takes_too_long_is_stopped_and_its_last_output_counts(
    temporal: Client, queue: str, request_of_a_run: RunRequest
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
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    steps = FakeActivities(FakeAgent(ignores_sigterm=True).answers)
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(configured(request_of_a_run, timeout_sec=1, grace_sec=0)))
    assert outcome.timed_out
    assert outcome.stop is not None
    assert outcome.stop.killed
    assert outcome.stop.agent_stopped
    assert steps.last_input("finish").grace == timedelta()


async def test_an_activity_that_does_not_return_is_ended_by_the_named_timer(
    temporal: Client, queue: str, request_of_a_run: RunRequest, monkeypatch: Any
) -> None:
    monkeypatch.setattr("workflows.timers.TIMER_MARGIN", timedelta())
    for until, code, timer in (
        ("scheduled", "k8s_pod_schedule_failed", "schedule timeout"),
        ("running", "k8s_pod_start_failed", "start timeout"),
    ):

        async def wait(input: Any, until: str = until) -> Any:
            if input.until == until:
                await until_cancelled(input)
            return FakeActivities.pod(input)

        steps = FakeActivities({"await_schedule": wait})
        request = configured(request_of_a_run, schedule_timeout_sec=1, start_timeout_sec=1)
        async with running_worker(temporal, f"{queue}-{until}", steps, sandboxed=False) as start:
            handle = await start(request.model_copy(update={"run_id": until}))
            outcome = await outcome_at_close(handle)
            assert timer in await timers(handle)
        assert outcome.error_code == code
        assert steps.names[-1] == "finish"


async def test_a_silent_agent_is_examined_before_it_is_stopped(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    silent = Silence(
        silent_for=timedelta(hours=1), has_output=True, last_output="compiling", processes=("cc1plus", "make")
    )
    steps = FakeActivities({**FakeAgent().answers, "examine_silence": answer_with(lambda _: silent)})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(configured(request_of_a_run, first_output_timeout_sec=1, silence_timeout_sec=2))
        outcome = await outcome_at_close(handle)
        assert "silence before the first line" in await timers(handle)
    assert outcome.error_code == "agent_silent"
    assert "last output: compiling; processes: cc1plus, make" in (outcome.error_message or "")
    assert steps.names.index("examine_silence") < steps.names.index("stop_agent")
    assert (outcome.session_id, outcome.usage) == ("ses_1", GOOD.usage)


async def test_lost_contact_is_not_silence(temporal: Client, queue: str, request_of_a_run: RunRequest) -> None:
    agent, calls = FakeAgent(), 0

    async def examine(_input: object) -> Silence:
        nonlocal calls
        calls += 1
        if calls == 1:
            return Silence(has_output=True)  # it could not be learned
        if calls == 2:
            raise ApplicationError("the API server is unavailable", non_retryable=True)
        await agent.end()  # it worked all the time, and now it has ended
        return Silence(silent_for=timedelta(), has_output=True)

    steps = FakeActivities({**agent.answers, "examine_silence": examine})
    async with running_worker(temporal, queue, steps) as start:
        request = configured(request_of_a_run, first_output_timeout_sec=1, silence_timeout_sec=1)
        outcome = await outcome_at_close(await start(request))
    assert outcome.failure is None
    assert "stop_agent" not in steps.names
    assert calls == 3


async def test_opencode_that_hangs_before_its_first_line_is_retried_once(
    temporal: Client, queue: str, request_of_a_run: RunRequest, monkeypatch: Any
) -> None:
    monkeypatch.setattr("workflows.retries.FIRST_RETRY_PAUSE", timedelta(milliseconds=1))
    hung = answer_with(lambda _: Silence(silent_for=timedelta(minutes=9)))
    agents = [FakeAgent(), FakeAgent()]

    def steps_for(then_succeeds: bool) -> FakeActivities:  # a parameter of this test
        async def stream(input: Any) -> Any:
            if then_succeeds and input.attempt.attempt == 2:
                return FakeActivities.ended(input)
            return await agents[input.attempt.attempt - 1].answers["stream_logs"](input)

        async def stop(input: Any) -> Any:
            second = input.job.uid == "uid-2"
            return await agents[int(second)].answers["stop_agent"](input)

        return FakeActivities({"stream_logs": stream, "stop_agent": stop, "examine_silence": hung})

    request = configured(request_of_a_run, first_output_timeout_sec=1)
    async with running_worker(temporal, queue, steps_for(then_succeeds=True), sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request))
    assert [attempt.failure_code for attempt in outcome.attempts] == ["opencode_start_hung", None]
    assert outcome.exit_code == 0

    agents = [FakeAgent(), FakeAgent()]
    async with running_worker(temporal, f"{queue}-second", steps_for(then_succeeds=False), sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request.model_copy(update={"run_id": "second"})))
    assert [attempt.failure_code for attempt in outcome.attempts] == ["opencode_start_hung"] * 2
    assert outcome.error_code == "opencode_start_hung"
