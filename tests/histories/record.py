"""Records a history of each shape of run that has none yet, with stand-ins for the steps on a real dev server.

A patch in the workflow makes a new generation: give `GENERATION` its name, and every shape is recorded once more,
beside those of the code before it. A recorded one is never made again: it stands for the runs of its day. Takes two
minutes, because the clocks of the story are not shortened.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from client.attach import attach
from client.connection import run_to_end
from client.history import build_id
from client.outcome import cancel, outcome_of
from client.settings import ClientSettings
from contracts.errors import PodLost, PodScheduleFailed, PromptTooLarge, SealedFieldUnreadable, SessionUnavailable
from contracts.messages import Silence, StreamEnd
from contracts.outcome import ContainerEnd, Outcome, OutputReceipt, Report
from contracts.request import AgentRef, RunConfig, RunRequest, Runtime, SessionParams, WakeContext
from tests.workflows.steps import DEFAULTS, GOOD, THROTTLE, Agent, Answer, Steps, answering, until_cancelled
from workflows.agent_run import AgentRunWorkflow
from workflows.attributes import ALL

HERE: Final = Path(__file__).parent
GENERATION: Final = "deadlines"
"""The folder for what is recorded now, named after the newest patch of the workflow."""

Handle = WorkflowHandle[AgentRunWorkflow, Outcome]
Attaching = Callable[[RunRequest], Awaitable[Handle]]


@dataclass
class Stage:
    """A run that is being recorded."""

    handle: Handle
    request: RunRequest
    attach: Attaching
    """Another caller."""

    async def another_wake(self, task: str) -> Handle:
        """Attaches a later wake of the same agent."""
        wake = {"run_id": str(uuid.uuid4()), "context": WakeContext(task_id=task)}
        return await self.attach(self.request.model_copy(update=wake))

    async def collected(self) -> None:
        """The caller fetches the outcome."""
        await outcome_of(self.handle, collect=True)


Drive = Callable[[Stage], Awaitable[Any]]


async def ended(stage: Stage) -> None:
    """Nobody does anything."""
    await stage.handle.result()


@dataclass(frozen=True)
class Shape:
    """One shape of run.

    Attributes:
        drive: what its callers do; the run must have ended, or be about to, when it returns.
        queued: what they do before a worker takes the run.
    """

    request: RunRequest
    steps: Steps
    drive: Drive = ended
    queued: Drive | None = None


def request(*, linger: timedelta = timedelta(), session: str | None = None, **config: Any) -> RunRequest:
    """A valid request; nobody opens its sealed fields."""
    return RunRequest(
        run_id=str(uuid.uuid4()),
        agent=AgentRef(id=str(uuid.uuid4()), company_id="acme", name="Ada"),
        runtime=Runtime(session_params=SessionParams(session_id=session) if session else None),
        config=RunConfig.model_validate({"model": "fake/scenario/text", **config}),
        context=WakeContext(task_id="task"),
        sealed_secrets="sealed",
        sealed_prompt="sealed",
        linger_sec=int(linger.total_seconds()),
    )


def shapes() -> dict[str, Callable[[], Shape]]:
    """Every shape of run, by the name of its file."""
    return {
        "normal": lambda: Shape(request(), Steps()),
        "unschedulable": lambda: Shape(
            request(), Steps({"await_schedule": failing(PodScheduleFailed("0/3 nodes are available"))})
        ),
        "prompt-failed": lambda: Shape(request(), Steps({"bundle_prompt": failing(PromptTooLarge("over 1 MB"))})),
        "cleanup-failed": lambda: Shape(request(), Steps({"finish": failing(away())})),
        "judging-failed": lambda: Shape(request(), Steps({"parse_transcript": failing(away())})),
        "fresh-restart": _fresh_restart,
        **_clocks(),
        **_cancels(),
        **_cluster_failures(),
        **_callers(),
    }


LOST: Final = StreamEnd(
    container=ContainerEnd(), receipt=OutputReceipt(), failure=PodLost.as_failure("the node went away")
)


def away() -> ApplicationError:
    """A failure that no retry helps."""
    return ApplicationError("the API server is away", non_retryable=True)


def failing(error: Exception) -> Answer:
    """A step that fails for good."""

    async def answer(_order: object) -> None:
        raise error

    return answer


def _fresh_restart() -> Shape:
    async def parse(order: Any) -> Report:
        refused = SessionUnavailable.as_failure("Session not found")
        return Report(failure=refused, unknown_session=True, exit_code=1) if order.resumed_session else GOOD

    return Shape(request(session="ses_old"), Steps({"parse_transcript": parse}))


# clocks


def _clocks() -> dict[str, Callable[[], Shape]]:
    quiet = Silence(silent_for=timedelta(hours=2), spoke=True, last_words="compiling", processes=("make",))
    return {
        "timeout": lambda: Shape(request(timeout_sec=1), Steps(Agent().answers)),
        "timeout-deaf-agent": lambda: Shape(request(timeout_sec=1, grace_sec=0), Steps(Agent(deaf=True).answers)),
        "silence": lambda: Shape(
            request(first_output_timeout_sec=1),
            Steps({**Agent().answers, "examine_silence": answering(lambda _: quiet)}),
        ),
        "lost-contact-is-no-silence": _lost_contact,
        "start-hung-then-works": lambda: _hung(then_works=True),
        "start-hung-twice": lambda: _hung(then_works=False),
        "overdue-for-a-node": lambda: _overdue("scheduled"),
        "overdue-to-start": lambda: _overdue("running"),
    }


def _lost_contact() -> Shape:
    agent, looks = Agent(), iter(range(3))

    async def look(_order: object) -> Silence:
        match next(looks):
            case 0:
                return Silence(spoke=True)  # nobody could tell
            case 1:
                raise away()
        await agent.end()  # it was at work all the time, and now it is done
        return Silence(silent_for=timedelta(), spoke=True)

    steps = Steps({**agent.answers, "examine_silence": look})
    return Shape(request(first_output_timeout_sec=1, silence_timeout_sec=1), steps)


def _hung(*, then_works: bool) -> Shape:
    agents = [Agent(), Agent()]

    async def stream(order: Any) -> Any:
        if then_works and order.attempt.attempt == 2:
            return Steps.ended(order)
        return await agents[order.attempt.attempt - 1].answers["stream_logs"](order)

    async def stop(order: Any) -> Any:
        return await agents[int(order.job.uid == "uid-2")].answers["stop_agent"](order)

    hung = answering(lambda _: Silence(silent_for=timedelta(minutes=9)))
    steps = Steps({"stream_logs": stream, "stop_agent": stop, "examine_silence": hung})
    return Shape(request(first_output_timeout_sec=1), steps)


def _overdue(until: str) -> Shape:
    async def wait(order: Any) -> Any:
        if order.until == until:
            await until_cancelled(order)
        return Steps.pod(order)

    return Shape(request(schedule_timeout_sec=1, start_timeout_sec=1), Steps({"await_schedule": wait}))


# cancels


async def by_temporal(stage: Stage) -> None:
    """An operator's cancel in Temporal's Web UI."""
    await stage.handle.cancel(reason="wrong branch")


async def by_update(stage: Stage) -> None:
    """A caller's cancel, which is answered when the agent has stopped."""
    await cancel(stage.handle, "wrong branch")


PREPARING: Final = {"preparing": "bundle_prompt", "creating": "create_job"}
HOW: Final[dict[str, Drive]] = {"by-temporal": by_temporal, "by-update": by_update}


def _cancels() -> dict[str, Callable[[], Shape]]:
    found: dict[str, Callable[[], Shape]] = {}
    for name, how in HOW.items():
        phases: dict[str, Callable[[Drive], Shape]] = {
            "queued": _cancelled_in_queue,
            **{phase: _in(step) for phase, step in PREPARING.items()},
            "scheduling": _awaiting("scheduled"),
            "starting": _awaiting("running"),
            "running": _cancelled_at_work,
            "pausing": _cancelled_in_pause,
            "finishing": _in("parse_transcript"),
            "lingering": _cancelled_lingering,
        }
        found |= {f"cancel-{phase}-{name}": _given(make, how) for phase, make in phases.items()}
    return found


def _given(make: Callable[[Drive], Shape], how: Drive) -> Callable[[], Shape]:
    return lambda: make(how)


def _cancelled_in_queue(how: Drive) -> Shape:
    return Shape(request(), Steps(), queued=how)


def _in(step: str) -> Callable[[Drive], Shape]:
    """While a step goes on that does not hear of it: it ends by itself."""

    def made(how: Drive) -> Shape:
        there, go_on = asyncio.Event(), asyncio.Event()

        async def slow(order: Any) -> Any:
            there.set()
            await go_on.wait()
            return await DEFAULTS[step][1](order)

        async def drive(stage: Stage) -> None:
            await there.wait()
            saying = asyncio.create_task(_said(how, stage))
            await _told(stage.handle)
            go_on.set()
            await saying

        return Shape(request(), Steps({step: slow}), drive)

    return made


def _awaiting(until: str) -> Callable[[Drive], Shape]:
    def made(how: Drive) -> Shape:
        there = asyncio.Event()

        async def wait(order: Any) -> Any:
            if order.until == until:
                there.set()
                await until_cancelled(order)
            return Steps.pod(order)

        async def drive(stage: Stage) -> None:
            await there.wait()
            await _said(how, stage)

        return Shape(request(), Steps({"await_schedule": wait}), drive)

    return made


def _cancelled_at_work(how: Drive) -> Shape:
    agent = Agent()

    async def drive(stage: Stage) -> None:
        await agent.working.wait()
        await _said(how, stage)

    return Shape(request(), Steps(agent.answers), drive)


def _cancelled_in_pause(how: Drive) -> Shape:
    async def drive(stage: Stage) -> None:
        async for event in stage.handle.fetch_history_events(wait_new_event=True):
            started = event.timer_started_event_attributes
            if b"back-off" in event.user_metadata.summary.data and started.timer_id:
                break
        await _said(how, stage)

    return Shape(request(), Steps({"stream_logs": answering(lambda _: LOST)}), drive)


def _cancelled_lingering(how: Drive) -> Shape:
    async def drive(stage: Stage) -> None:
        await outcome_of(stage.handle, collect=False)
        await how(stage)
        if how is by_update:  # an answer takes no outcome away
            await stage.collected()
        await stage.handle.result()

    return Shape(request(linger=timedelta(days=1)), Steps(), drive)


async def _said(how: Drive, stage: Stage) -> None:
    await how(stage)
    await stage.handle.result()


async def _told(handle: Handle) -> None:
    """Returns once the workflow has been told of a cancel."""
    async for event in handle.fetch_history_events(wait_new_event=True):
        if event.HasField("workflow_execution_cancel_requested_event_attributes") or event.HasField(
            "workflow_execution_update_accepted_event_attributes"
        ):
            return


# what the cluster breaks


def _cluster_failures() -> dict[str, Callable[[], Shape]]:
    async def once(order: Any) -> StreamEnd:
        return LOST if order.attempt.attempt == 1 else Steps.ended(order)

    lost = answering(lambda _: LOST)
    return {
        "infrastructure-retry": lambda: Shape(request(), Steps({"stream_logs": once})),
        "infrastructure-budget-spent": lambda: Shape(request(infrastructure_retries=1), Steps({"stream_logs": lost})),
        "pod-may-still-run": lambda: Shape(request(), Steps({"stream_logs": lost, "finish": failing(away())})),
    }


# callers that come and go


def _callers() -> dict[str, Callable[[], Shape]]:
    day = timedelta(days=1)

    async def released(stage: Stage) -> None:
        await outcome_of(stage.handle, collect=False)
        await outcome_of(await stage.another_wake("another task"), collect=True)

    async def joined_late(stage: Stage) -> None:
        await outcome_of(stage.handle, collect=False)
        await outcome_of(await stage.another_wake("task"), collect=True)

    return {
        "joined": lambda: _at_work("task", times=2),
        "busy": lambda: _at_work("another task", times=2),
        "joined-token-exchanged": lambda: _exchanged(answering(lambda _: True)),
        "joined-token-not-seen": lambda: _exchanged(answering(lambda _: False)),
        "joined-token-refused": lambda: _exchanged(failing(SealedFieldUnreadable("another key"))),
        "joined-token-without-a-proxy": lambda: _exchanged(answering(lambda _: True), rotates=False),
        "joined-token-while-creating": _joined_while_creating,
        "joined-token-at-the-end": _joined_at_the_end,
        "lingering-collected": lambda: Shape(request(linger=day), Steps(), Stage.collected),
        "lingering-joined": lambda: Shape(request(linger=day), Steps(), joined_late),
        "lingering-released": lambda: Shape(request(linger=day), Steps(), released),
        "lingering-timed-out": lambda: Shape(request(linger=timedelta(seconds=1)), Steps()),
    }


def _at_work(task: str, *, times: int) -> Shape:
    """Later wakes while the agent works: those of its task join, others are refused without a trace."""
    agent = Agent()

    async def drive(stage: Stage) -> None:
        await agent.working.wait()
        for _ in range(times):
            await stage.another_wake(task)
        await agent.end()
        await stage.collected()

    return Shape(request(linger=timedelta(days=1)), Steps(agent.answers), drive)


def _exchanged(rotate: Answer, *, rotates: bool = True) -> Shape:
    """Two later wakes of the task, each with its token; the run's second attempt gets the newest one."""
    agent = Agent()

    async def stream(order: Any) -> StreamEnd:
        found: StreamEnd = await agent.answers["stream_logs"](order)
        return LOST if order.attempt.attempt == 1 else found

    async def drive(stage: Stage) -> None:
        await agent.working.wait()
        for _ in range(2):
            await stage.another_wake("task")
        await _told_of(stage.handle, "rotate_token", times=2 if rotates else 0)
        await agent.end()
        await stage.collected()

    steps = Steps({**agent.answers, "stream_logs": stream, "create_job": _job_that(rotates), "rotate_token": rotate})
    return Shape(request(linger=timedelta(days=1)), steps, drive)


def _job_that(rotates: bool) -> Answer:
    async def create(order: Any) -> Any:
        job = await DEFAULTS["create_job"][1](order)
        return job.model_copy(update={"rotates": rotates})

    return create


def _joined_while_creating() -> Shape:
    there, go_on = asyncio.Event(), asyncio.Event()

    async def create(order: Any) -> Any:
        there.set()
        await go_on.wait()
        return await _job_that(rotates=True)(order)

    async def drive(stage: Stage) -> None:
        await there.wait()
        await stage.another_wake("task")
        go_on.set()
        await stage.collected()

    return Shape(request(linger=timedelta(days=1)), Steps({"create_job": create}), drive)


def _joined_at_the_end() -> Shape:
    """The agent ends while its token is exchanged."""
    agent = Agent()

    async def drive(stage: Stage) -> None:
        await agent.working.wait()
        await stage.another_wake("task")
        await _told_of(stage.handle, "rotate_token", times=1)
        await agent.end()
        await stage.collected()

    steps = Steps({**agent.answers, "create_job": _job_that(rotates=True), "rotate_token": until_cancelled})
    return Shape(request(linger=timedelta(days=1)), steps, drive)


async def _told_of(handle: Handle, step: str, *, times: int) -> None:
    """Returns once the history has this step so many times."""
    left = times
    if not left:
        return
    async for event in handle.fetch_history_events(wait_new_event=True):
        left -= event.activity_task_scheduled_event_attributes.activity_type.name == step
        if not left:
            return


# recording


async def record(client: Client, name: str, shape: Shape) -> None:
    """Runs one shape and writes its history."""
    queue = f"record-{name}"

    async def attached(asked: RunRequest) -> Handle:
        return (await attach(client, ClientSettings(task_queue=queue), asked)).handle(client)

    stage = Stage(await attached(shape.request), shape.request, attached)
    before = asyncio.create_task(_before(shape, stage))
    if shape.queued is by_temporal:
        await before
    async with Worker(
        client,
        task_queue=queue,
        workflows=[AgentRunWorkflow],
        activities=shape.steps.activities,
        build_id=build_id(),
        max_heartbeat_throttle_interval=THROTTLE,
    ):
        await before
        await shape.drive(stage)
        await stage.handle.result()
    file(name).write_text(written(await stage.handle.fetch_history()))


def written(history: WorkflowHistory) -> str:
    """One event a line; without stack traces, which name files of this machine and mean nothing to a replay."""
    events = json.loads(
        history.to_json(), object_hook=lambda found: {k: v for k, v in found.items() if k != "stackTrace"}
    )
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events["events"])
    return f'{{"events":[\n{lines}\n]}}\n'


async def _before(shape: Shape, stage: Stage) -> None:
    if shape.queued is not None:
        await shape.queued(stage)


def file(name: str) -> Path:
    """Where a shape's history is kept."""
    return HERE / GENERATION / f"{name}.json"


async def main() -> None:
    """Records what is missing."""
    (HERE / GENERATION).mkdir(exist_ok=True)
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
        data_converter=pydantic_data_converter,
        search_attributes=list(ALL),
        dev_server_log_level="error",
    ) as environment:
        missing = {name: make for name, make in shapes().items() if not file(name).exists()}
        await asyncio.gather(*(record(environment.client, name, make()) for name, make in missing.items()))


if __name__ == "__main__":
    run_to_end(main)
