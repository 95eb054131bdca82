"""Each clock has a name, ends the agent gently, and leaves session, usage and transcript in the outcome."""

from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from contracts.messages import Silence
from contracts.request import RunRequest
from tests.workflows.steps import GOOD, Agent, Steps, answering, until_cancelled
from tests.workflows.working import Handle, configured, working


async def timers(handle: Handle) -> list[str]:
    """The names of the timers the run has started."""
    events = (await handle.fetch_history()).events
    started = [event for event in events if event.HasField("timer_started_event_attributes")]
    return [event.user_metadata.summary.data.decode().strip('"') for event in started]


async def test_a_run_that_takes_too_long_is_stopped_and_its_last_words_count(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    steps = Steps(Agent().answers)
    async with working(temporal, queue, steps) as start:
        handle = await start(configured(request_of_a_run, timeout_sec=1))
        outcome = await handle.result()
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
    assert not outcome.stop.forced
    assert steps.order("parse_transcript").stopped.code == "timeout"
    assert steps.names[-3:] == ["stop_agent", "parse_transcript", "finish"]


async def test_an_agent_that_ignores_sigterm_is_killed_after_its_grace(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    steps = Steps(Agent(deaf=True).answers)
    async with working(temporal, queue, steps) as start:
        outcome = await (await start(configured(request_of_a_run, timeout_sec=1, grace_sec=0))).result()
    assert outcome.timed_out
    assert outcome.stop is not None
    assert outcome.stop.forced
    assert outcome.stop.agent_stopped
    assert steps.order("finish").grace == timedelta()


async def test_a_step_that_nobody_answers_is_ended_by_the_named_timer(
    temporal: Client, queue: str, request_of_a_run: RunRequest, monkeypatch: Any
) -> None:
    monkeypatch.setattr("workflows.clocks.SLACK", timedelta())
    for until, code, timer in (
        ("scheduled", "k8s_pod_schedule_failed", "scheduling patience"),
        ("running", "k8s_pod_start_failed", "start patience"),
    ):

        async def wait(order: Any, until: str = until) -> Any:
            if order.until == until:
                await until_cancelled(order)
            return Steps.pod(order)

        steps = Steps({"await_schedule": wait})
        request = configured(request_of_a_run, schedule_timeout_sec=1, start_timeout_sec=1)
        async with working(temporal, f"{queue}-{until}", steps, sandboxed=False) as start:
            handle = await start(request.model_copy(update={"run_id": until}))
            outcome = await handle.result()
            assert timer in await timers(handle)
        assert outcome.error_code == code
        assert steps.names[-1] == "finish"


async def test_a_silent_agent_is_looked_at_before_it_is_stopped(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    silent = Silence(silent_for=timedelta(hours=1), spoke=True, last_words="compiling", processes=("cc1plus", "make"))
    steps = Steps({**Agent().answers, "examine_silence": answering(lambda _: silent)})
    async with working(temporal, queue, steps) as start:
        handle = await start(configured(request_of_a_run, first_output_timeout_sec=1, silence_timeout_sec=2))
        outcome = await handle.result()
        assert "silence before the first line" in await timers(handle)
    assert outcome.error_code == "agent_silent"
    assert "last words: compiling; processes: cc1plus, make" in (outcome.error_message or "")
    assert steps.names.index("examine_silence") < steps.names.index("stop_agent")
    assert (outcome.session_id, outcome.usage) == ("ses_1", GOOD.usage)


async def test_lost_contact_is_not_silence(temporal: Client, queue: str, request_of_a_run: RunRequest) -> None:
    agent, looks = Agent(), 0

    async def look(_order: object) -> Silence:
        nonlocal looks
        looks += 1
        if looks == 1:
            return Silence(spoke=True)  # nobody could tell
        if looks == 2:
            raise ApplicationError("the API server is away", non_retryable=True)
        await agent.end()  # it was at work all the time, and now it is done
        return Silence(silent_for=timedelta(), spoke=True)

    steps = Steps({**agent.answers, "examine_silence": look})
    async with working(temporal, queue, steps) as start:
        request = configured(request_of_a_run, first_output_timeout_sec=1, silence_timeout_sec=1)
        outcome = await (await start(request)).result()
    assert outcome.failure is None
    assert "stop_agent" not in steps.names
    assert looks == 3


async def test_opencode_that_hangs_before_its_first_line_is_tried_once_more(
    temporal: Client, queue: str, request_of_a_run: RunRequest, monkeypatch: Any
) -> None:
    monkeypatch.setattr("workflows.budgets.FIRST_PAUSE", timedelta(milliseconds=1))
    hung = answering(lambda _: Silence(silent_for=timedelta(minutes=9)))
    agents = [Agent(), Agent()]

    def steps_for(works_at_last: bool) -> Steps:  # a parameter of this test
        async def stream(order: Any) -> Any:
            if works_at_last and order.attempt.attempt == 2:
                return Steps.ended(order)
            return await agents[order.attempt.attempt - 1].answers["stream_logs"](order)

        async def stop(order: Any) -> Any:
            second = order.job.uid == "uid-2"
            return await agents[int(second)].answers["stop_agent"](order)

        return Steps({"stream_logs": stream, "stop_agent": stop, "examine_silence": hung})

    request = configured(request_of_a_run, first_output_timeout_sec=1)
    async with working(temporal, queue, steps_for(works_at_last=True), sandboxed=False) as start:
        outcome = await (await start(request)).result()
    assert [attempt.failure_code for attempt in outcome.attempts] == ["opencode_start_hung", None]
    assert outcome.exit_code == 0

    agents = [Agent(), Agent()]
    async with working(temporal, f"{queue}-again", steps_for(works_at_last=False), sandboxed=False) as start:
        outcome = await (await start(request.model_copy(update={"run_id": "again"}))).result()
    assert [attempt.failure_code for attempt in outcome.attempts] == ["opencode_start_hung"] * 2
    assert outcome.error_code == "opencode_start_hung"
