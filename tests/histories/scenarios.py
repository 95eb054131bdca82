"""The scenarios of a run of which a history is recorded: fake activities, and what the callers do."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from temporalio.client import WorkflowHandle
from temporalio.exceptions import ApplicationError

from agent_runs.client.obstacles import open_questions
from agent_runs.client.outcome import fetch_outcome, outcome_at_close
from agent_runs.client.tell import answer, tell
from agent_runs.contracts.errors import (
    BudgetExceeded,
    InvalidRequest,
    MessageNotDelivered,
    PodLost,
    PodScheduleFailed,
    PodStartFailed,
    PromptTooLarge,
    SealedFieldUnreadable,
    SessionUnavailable,
)
from agent_runs.contracts.messages import Ended, OverBudget, OverQuota, Silence, StreamEnd
from agent_runs.contracts.outcome import Outcome, Report
from agent_runs.contracts.request import AgentRef, Capabilities, RunConfig, Runtime, SessionParams, WakeContext
from agent_runs.contracts.updates import BudgetWarning
from agent_runs.paperclip.sealing import Sealer, SealingKey
from tests.support.requests import FakeRequest, prepared
from tests.workflows.fake_activities import (
    DEFAULTS,
    GOOD,
    PERMISSION,
    Answer,
    FakeActivities,
    FakeAgent,
    FakeCleanup,
    answer_with,
    fail_with,
    until_cancelled,
)
from workflows.agent_run import AgentRunWorkflow

Handle = WorkflowHandle[AgentRunWorkflow, Outcome]
Attach = Callable[[FakeRequest], Awaitable[Handle]]


@dataclass
class RecordedRun:
    """A run that is being recorded.

    Attributes:
        attach: attaches another caller.
    """

    handle: Handle
    request: FakeRequest
    attach: Attach

    async def attach_later_wake(self, task: str) -> Handle:
        """Attaches a later wake of the same agent."""
        wake = {"run_id": str(uuid.uuid4()), "context": WakeContext(task_id=task)}
        return await self.attach(self.request.model_copy(update=wake))

    async def collect(self) -> None:
        """Fetches the outcome as its caller does."""
        await fetch_outcome(self.handle, collect=True)


Callers = Callable[[RecordedRun], Awaitable[Any]]


async def wait_for_end(run: RecordedRun) -> None:
    """The callers do nothing."""
    await outcome_at_close(run.handle)


@dataclass(frozen=True)
class Scenario:
    """One scenario of a run.

    Attributes:
        callers: what the callers do; when it returns, the run must have ended or be about to.
        while_queued: what they do before a worker takes the run.
    """

    request: FakeRequest
    steps: FakeActivities
    callers: Callers = wait_for_end
    while_queued: Callers | None = None


def request(*, retention: timedelta = timedelta(), session: str | None = None, **config: Any) -> FakeRequest:
    """A valid request."""
    return FakeRequest(
        run_id=str(uuid.uuid4()),
        agent=AgentRef(id=str(uuid.uuid4()), company_id="acme", name="Ada"),
        runtime=Runtime(session_params=SessionParams(session_id=session) if session else None),
        config=RunConfig.model_validate({"model": "fake/scenario/text", **config}),
        context=WakeContext(task_id="task"),
        outcome_retention_sec=int(retention.total_seconds()),
    )


def scenarios() -> dict[str, Callable[[], Scenario]]:
    """Every scenario, by the name of its history."""
    return {
        "normal": lambda: Scenario(request(), FakeActivities()),
        "start-timeout": partial(
            _failing,
            "await_schedule",
            PodStartFailed("Timed out waiting for pod containers to start (600s): phase=Pending"),
        ),
        "unschedulable": partial(_failing, "await_schedule", PodScheduleFailed("0/3 nodes are available")),
        "request-refused": partial(_failing, "prepare_run", InvalidRequest("config.model is missing")),
        "prompt-failed": partial(_failing, "bundle_prompt", PromptTooLarge("over 1 MB")),
        "cleanup-failed": lambda: _failing("finish", api_unavailable()),
        "parsing-failed": lambda: _failing("parse_transcript", api_unavailable()),
        "fresh-restart": _fresh_restart,
        "early-outcome": _early_outcome,
        "contradicted-end": partial(_early_outcome, "the container's status says: exit code 137, OOMKilled"),
        **_limits(),
        **_cancels(),
        **_cluster_failures(),
        **_callers(),
    }


def _failing(step: str, error: Exception) -> Scenario:
    return Scenario(request(), FakeActivities({step: fail_with(error)}))


DAY: Final = timedelta(days=1)
POD_LOST: Final = Ended(failure=PodLost.as_failure("the node went away"))


def api_unavailable() -> ApplicationError:
    """An error that is not retried."""
    return ApplicationError("the API server is unavailable", non_retryable=True)


def _fresh_restart() -> Scenario:
    async def parse(input: Any) -> Report:
        refused = SessionUnavailable.as_failure("Session not found")
        return Report(failure=refused, unknown_session=True, exit_code=1) if input.resumed_session else GOOD

    return Scenario(request(session="ses_old"), FakeActivities({"parse_transcript": parse}))


def _early_outcome(contradiction: str | None = None) -> Scenario:
    """The caller has the outcome before `finish` has ended."""
    cleanup = FakeCleanup(contradiction=contradiction)

    async def callers(run: RecordedRun) -> None:
        await cleanup.begun.wait()
        await run.collect()
        cleanup.may_end.set()
        await outcome_at_close(run.handle)

    return Scenario(request(retention=DAY), FakeActivities(cleanup.answers), callers)


# limits


def _limits() -> dict[str, Callable[[], Scenario]]:
    silence = Silence(limit=timedelta(hours=1), processes=("make",))
    warned = BudgetWarning(limit="maxSteps", text="maxSteps: 4 of 5 steps; at all of it the agent is stopped")
    exceeded = OverBudget(exceeded=BudgetExceeded.as_failure("maxSteps: 5 of 5 steps"))
    return {
        "budget-exceeded": lambda: Scenario(
            request(max_steps=5), FakeActivities(FakeAgent(budget=[warned, exceeded]).answers)
        ),
        "timeout": lambda: Scenario(request(timeout_sec=1), FakeActivities(FakeAgent().answers)),
        "timeout-ignored-sigterm": lambda: Scenario(
            request(timeout_sec=1, grace_sec=0), FakeActivities(FakeAgent(ignores_sigterm=True).answers)
        ),
        "silence": lambda: Scenario(request(), FakeActivities(FakeAgent(silence=silence).answers)),
        "over-quota": lambda: Scenario(request(), FakeActivities(FakeAgent(over_quota=OverQuota(limit=1)).answers)),
        "start-hung-once": partial(_hung, then_succeeds=True),
        "start-hung-twice": partial(_hung, then_succeeds=False),
    }


def _hung(*, then_succeeds: bool) -> Scenario:
    hung = Silence(limit=timedelta(minutes=7), has_output=False)
    agents = [FakeAgent(silence=hung), FakeAgent(silence=hung)]

    async def stream(input: Any) -> Any:
        if then_succeeds and input.attempt.attempt == 2:
            return FakeActivities.ended(input)
        return await agents[input.attempt.attempt - 1].answers["stream_logs"](input)

    async def stop(input: Any) -> Any:
        return await agents[int(input.job.uid == "uid-2")].answers["stop_agent"](input)

    return Scenario(request(), FakeActivities({"stream_logs": stream, "stop_agent": stop}))


# cancels


async def request_cancel(run: RecordedRun) -> None:
    """As callers and operators do it, in every phase."""
    await run.handle.cancel(reason="wrong branch")


def _cancels() -> dict[str, Callable[[], Scenario]]:
    phases: dict[str, Callable[[], Scenario]] = {
        "queued": lambda: Scenario(request(), FakeActivities(), while_queued=request_cancel),
        "preparing": partial(_cancelled_during, "bundle_prompt"),
        "creating": partial(_cancelled_during, "create_job"),
        "starting": _cancelled_starting,
        "started": lambda: _cancelled_during("await_schedule", **FakeAgent().answers),
        "running": _cancelled_running,
        "pausing": _cancelled_pausing,
        "finishing": partial(_cancelled_during, "parse_transcript"),
        "retaining": _cancelled_retaining,
    }
    return {f"cancel-{phase}": make for phase, make in phases.items()}


def _cancelled_during(step: str, **others: Answer) -> Scenario:
    """The cancel comes during an activity without heartbeats, which ends by itself."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(input: Any) -> Any:
        begun.set()
        await may_end.wait()
        return await DEFAULTS[step][1](input)

    async def callers(run: RecordedRun) -> None:
        await begun.wait()
        cancelling = asyncio.create_task(_cancel_and_wait(run))
        await _until_cancel_requested(run.handle)
        may_end.set()
        await cancelling

    return Scenario(request(), FakeActivities({**others, step: slow}), callers)


def _cancelled_starting() -> Scenario:
    begun = asyncio.Event()

    async def wait(input: object) -> None:
        begun.set()
        await until_cancelled(input)

    async def callers(run: RecordedRun) -> None:
        await begun.wait()
        await _cancel_and_wait(run)

    return Scenario(request(), FakeActivities({"await_schedule": wait}), callers)


def _cancelled_running() -> Scenario:
    agent = FakeAgent()

    async def callers(run: RecordedRun) -> None:
        await agent.started.wait()
        await _cancel_and_wait(run)

    return Scenario(request(), FakeActivities(agent.answers), callers)


def _cancelled_pausing() -> Scenario:
    """The cancel comes in the pause between two attempts."""

    async def callers(run: RecordedRun) -> None:
        async for event in run.handle.fetch_history_events(wait_new_event=True):
            started = event.timer_started_event_attributes
            if b"back-off" in event.user_metadata.summary.data and started.timer_id:
                break
        await _cancel_and_wait(run)

    return Scenario(request(), FakeActivities({"stream_logs": answer_with(lambda _: POD_LOST)}), callers)


def _cancelled_retaining() -> Scenario:
    """The cancel comes while the outcome is kept."""

    async def callers(run: RecordedRun) -> None:
        await fetch_outcome(run.handle, collect=False)
        await _cancel_and_wait(run)

    return Scenario(request(retention=DAY), FakeActivities(), callers)


async def _cancel_and_wait(run: RecordedRun) -> None:
    await request_cancel(run)
    await outcome_at_close(run.handle)


async def _until_cancel_requested(handle: Handle) -> None:
    """Returns once the cancel is in the history."""
    async for event in handle.fetch_history_events(wait_new_event=True):
        if event.HasField("workflow_execution_cancel_requested_event_attributes"):
            return


# failures of the cluster


def _cluster_failures() -> dict[str, Callable[[], Scenario]]:
    async def once(input: Any) -> StreamEnd:
        return POD_LOST if input.attempt.attempt == 1 else FakeActivities.ended(input)

    always = {"stream_logs": answer_with(lambda _: POD_LOST)}
    return {
        "infrastructure-retry": lambda: Scenario(request(), FakeActivities({"stream_logs": once})),
        "infrastructure-budget-spent": lambda: Scenario(request(infrastructure_retries=1), FakeActivities({**always})),
        "pod-may-still-run": lambda: Scenario(
            request(), FakeActivities({**always, "finish": fail_with(api_unavailable())})
        ),
    }


# later wakes and lost callers


def _callers() -> dict[str, Callable[[], Scenario]]:
    async def released(run: RecordedRun) -> None:
        await fetch_outcome(run.handle, collect=False)
        await fetch_outcome(await run.attach_later_wake("another task"), collect=True)

    async def joined_late(run: RecordedRun) -> None:
        await fetch_outcome(run.handle, collect=False)
        await fetch_outcome(await run.attach_later_wake("task"), collect=True)

    return {
        "joined": lambda: _later_wakes("task"),
        "busy": lambda: _later_wakes("another task"),
        "token-rotated": lambda: _token_rotated(answer_with(lambda _: True)),
        "token-not-seen": lambda: _token_rotated(answer_with(lambda _: False)),
        "token-refused": lambda: _token_rotated(fail_with(SealedFieldUnreadable("another key"))),
        "token-without-api-proxy": lambda: _token_rotated(answer_with(lambda _: True), has_api_proxy=False),
        "token-while-creating": _token_while_creating,
        "token-at-the-end": _token_at_the_end,
        "message": lambda: _message(answer_with(lambda _: None)),
        "message-queued": lambda: _message(answer_with(lambda _: None), takes_messages=False),
        "question-answered": lambda: _question(answered=True),
        "question-not-answered": lambda: _question(answered=False),
        "message-not-delivered": lambda: _message(fail_with(MessageNotDelivered("its turn had ended"))),
        "outcome-collected": lambda: Scenario(request(retention=DAY), FakeActivities(), RecordedRun.collect),
        "outcome-joined": lambda: Scenario(request(retention=DAY), FakeActivities(), joined_late),
        "outcome-released": lambda: Scenario(request(retention=DAY), FakeActivities(), released),
        "outcome-retention-expired": lambda: Scenario(request(retention=timedelta(seconds=1)), FakeActivities()),
    }


def _later_wakes(task: str) -> Scenario:
    """Two later wakes while the agent runs: those of its task join, others are refused and leave no event."""
    agent = FakeAgent()

    async def callers(run: RecordedRun) -> None:
        await agent.started.wait()
        for _ in range(2):
            await run.attach_later_wake(task)
        await agent.end()
        await run.collect()

    return Scenario(request(retention=DAY), FakeActivities(agent.answers), callers)


def _token_rotated(rotate: Answer, *, has_api_proxy: bool = True) -> Scenario:
    """Two later wakes of the task, each with its token; the second attempt starts with the newest one."""
    agent = FakeAgent()

    async def stream(input: Any) -> StreamEnd:
        end: StreamEnd = await agent.answers["stream_logs"](input)
        return POD_LOST if input.attempt.attempt == 1 else end

    async def callers(run: RecordedRun) -> None:
        await agent.started.wait()
        for _ in range(2):
            await run.attach_later_wake("task")
        if has_api_proxy:
            await _until_rotations(run.handle, 2)
        await agent.end()
        await run.collect()

    steps = FakeActivities(
        {**agent.answers, "stream_logs": stream, "create_job": _job(has_api_proxy), "rotate_token": rotate}
    )
    return Scenario(request(retention=DAY), steps, callers)


def _message(tell_agent: Answer, *, takes_messages: bool = True) -> Scenario:
    agent = FakeAgent()
    can = Capabilities(resumes=True, rests=True, takes_messages=takes_messages, tokens=None, cost=False)
    prepare = answer_with(lambda input: prepared(input).model_copy(update={"capabilities": can}))

    async def callers(run: RecordedRun) -> None:
        await agent.started.wait()
        with contextlib.suppress(MessageNotDelivered):
            sealer = Sealer(SealingKey.generate().public)
            await tell(run.handle, run.request.key, sealer, "the branch is release-2", "ada")
        await agent.end()

    answers = {**agent.answers, "prepare_run": prepare, "tell_agent": tell_agent}
    return Scenario(request(), FakeActivities(answers), callers)


def _question(*, answered: bool) -> Scenario:
    agent, rejected = FakeAgent(questions=(PERMISSION,)), asyncio.Event()

    async def tell_agent(_: Any) -> None:
        rejected.set()

    async def callers(run: RecordedRun) -> None:
        await agent.asked.wait()
        if answered:
            (question,) = await open_questions(run.handle)
            sealer = Sealer(SealingKey.generate().public)
            await answer(run.handle, run.request.key, sealer, question, (("Allow once",),), "ada")
        await rejected.wait()
        await agent.end()

    wake = request(ask_timeout_sec=3600 if answered else 1, timeout_sec=600)
    return Scenario(wake, FakeActivities({**agent.answers, "tell_agent": tell_agent}), callers)


def _job(has_api_proxy: bool) -> Answer:
    async def create(input: Any) -> Any:
        job = await DEFAULTS["create_job"][1](input)
        return job.model_copy(update={"has_api_proxy": has_api_proxy})

    return create


def _token_while_creating() -> Scenario:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def create(input: Any) -> Any:
        begun.set()
        await may_end.wait()
        return await _job(has_api_proxy=True)(input)

    async def callers(run: RecordedRun) -> None:
        await begun.wait()
        await run.attach_later_wake("task")
        may_end.set()
        await run.collect()

    return Scenario(request(retention=DAY), FakeActivities({"create_job": create}), callers)


def _token_at_the_end() -> Scenario:
    """The agent ends while its token is rotated."""
    agent = FakeAgent()

    async def callers(run: RecordedRun) -> None:
        await agent.started.wait()
        await run.attach_later_wake("task")
        await _until_rotations(run.handle, 1)
        await agent.end()
        await run.collect()

    steps = FakeActivities({**agent.answers, "create_job": _job(has_api_proxy=True), "rotate_token": until_cancelled})
    return Scenario(request(retention=DAY), steps, callers)


async def _until_rotations(handle: Handle, count: int) -> None:
    """Returns once so many rotations of the token have been scheduled."""
    async for event in handle.fetch_history_events(wait_new_event=True):
        count -= event.activity_task_scheduled_event_attributes.activity_type.name == "rotate_token"
        if not count:
            return
