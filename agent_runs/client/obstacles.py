"""What keeps an open run from going on now: a step that fails or waits, no worker, no free worker.

Temporal has all of it in the description of a workflow, even while no worker runs: pending activities with their try,
last failure and last heartbeat, and a pending workflow task. Pollers are listed for some minutes after their process
has ended, so the time of their last poll decides. Source: Temporal 1.32, observed; a poll lasts up to 60 s.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import AwareDatetime
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError

from agent_runs.client.amounts import duration_text
from agent_runs.client.runs import RunSummary
from agent_runs.client.timeline import STEPS, Step
from agent_runs.contracts import updates
from agent_runs.contracts.base import Contract
from agent_runs.contracts.errors import FAILURES
from agent_runs.transcript.events import printable
from workflows import attributes
from workflows.current_details import Phase

UNUSUAL_WAIT: Final = timedelta(seconds=5)
"""A worker takes a task within a tenth of a second."""
POLL_LENGTH: Final = timedelta(seconds=70)
"""A worker that lives has polled within this time: a poll's 60 s, and some for the network."""
HANDED_OVER: Final = "WorkerShutdown"
"""With this error a worker that stops gives a step to the next one, where it just goes on."""
UNUSUAL_START: Final = timedelta(seconds=2)
"""Most pods start sooner."""
SETTLED_AFTER: Final = timedelta(seconds=20)
"""A repeated step that has run for so long is no obstacle any more."""
CALL_TIMEOUT: Final = timedelta(seconds=5)
MAX_DESCRIBED: Final = 50
"""Runs of a list that are looked at: as many as are on one page."""
DESCRIBED_AT_ONCE: Final = 10
MESSAGE_LIMIT: Final = 300

RUN: Final = "the run"

Kind = Literal["step_fails", "step_waits", "no_worker", "worker_busy", "workflow_task_fails", "asks"]


@dataclass(frozen=True)
class Obstacle:
    """One reason why a run does not go on.

    Attributes:
        subject: the step, in words for people, or `the run`.
        text: some sentences, for people.
        reason: what a step waits for; two obstacles with equal reasons have the same cause.
    """

    kind: Kind
    subject: str
    text: str
    since: datetime
    reason: str = ""


class StepProgress(Contract):
    """What the heartbeats of steps that may wait have in common."""

    reason: str = ""
    since: AwareDatetime | None = None


@dataclass(frozen=True)
class Workers:
    """Who polls a task queue, as Temporal knows it. None: nobody within some minutes."""

    queue: str
    last_poll: datetime | None = None

    def absence(self, now: datetime) -> tuple[Kind, str]:
        """Why nobody takes a task of this queue."""
        if self.last_poll is None:
            return "no_worker", f"none polls task queue {self.queue}. Start one (`agent-runs worker`)"
        if now - self.last_poll > POLL_LENGTH:
            ago = duration_text(now - self.last_poll)
            return (
                "no_worker",
                f"the last one polled task queue {self.queue} {ago} ago. Start one (`agent-runs worker`)",
            )
        return "worker_busy", f"those of task queue {self.queue} are busy or have just ended"


async def read_obstacles(
    client: Client, handle: WorkflowHandle[Any, Any], steps: Sequence[Step] = ()
) -> Sequence[Obstacle]:
    """What keeps the run from going on now; nothing for one that is closed.

    Args:
        steps: the run's, which say since when one is tried; a description only has its last try.

    Raises:
        RPCError: Temporal does not answer, or does not know the run.
    """
    description = await handle.describe()
    if description.status is not WorkflowExecutionStatus.RUNNING:
        return ()
    now = datetime.now(UTC)
    queue, kinds = description.task_queue, _kinds_that_wait(description, now)
    workers = {kind: Workers(queue, await last_poll(client, queue, kind)) for kind in kinds}
    phase = description.typed_search_attributes.get(attributes.RUN_PHASE)
    run_id = description.typed_search_attributes.get(attributes.PAPERCLIP_RUN_ID)
    asked = await _questions(handle, run_id, now) if phase == Phase.ASKING else ()
    began = {step.name: step.started for step in steps if step.ended is None}
    return *asked, *obstacles_of(description, workers, began, now)


async def obstacles_of_runs(client: Client, runs: Sequence[RunSummary]) -> Mapping[str, str]:
    """What keeps each of these runs from going on, in one text, by the run's name; runs that go on are left out.

    Of a run that Temporal cannot describe in time nothing is known, which is no error of the list that it is on.
    """
    at_once = asyncio.Semaphore(DESCRIBED_AT_ONCE)

    async def texts(run: RunSummary) -> str:
        with suppress(RPCError):
            async with at_once:
                return " ".join(each.text for each in await read_obstacles(client, run.handle(client)))
        return ""

    working = [run for run in runs if not run.decided][:MAX_DESCRIBED]
    found: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(CALL_TIMEOUT.total_seconds()):
            found = await asyncio.gather(*map(texts, working))
    return {run.key.name: text for run, text in zip(working, found, strict=False) if text}


def obstacles_of(
    description: WorkflowExecutionDescription,
    workers: Mapping[TaskQueueType.ValueType, Workers],
    began: Mapping[str, datetime],
    now: datetime,
) -> Sequence[Obstacle]:
    """The obstacles in a description. Pure.

    Args:
        workers: for each kind of task that waits, who polls its queue.
        began: when each open activity was first scheduled, as far as that is known.
    """
    found = []
    raw = description.raw_description
    if raw.HasField("pending_workflow_task"):
        task = raw.pending_workflow_task
        since = _time(task.original_scheduled_time) or now
        if task.attempt > 1:
            text = (
                f"the run's workflow task was tried {task.attempt} times since {duration_text(now - since)}: its "
                "worker ended, or its code does not fit the history, which `agent-runs replay` shows"
            )
            found.append(Obstacle("workflow_task_fails", RUN, text, since))
        elif (who := workers.get(TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)) and now - since > UNUSUAL_WAIT:
            found.append(_waits(RUN, who, since, now))
    for activity in raw.pending_activities:
        name = STEPS.get(activity.activity_type.name, activity.activity_type.name)
        since = _time(activity.scheduled_time) or now
        if activity.attempt > 1 and _fails(activity, now):
            first = began.get(activity.activity_type.name)
            found.append(Obstacle("step_fails", name, _failing(activity, name, first, now), first or since))
        elif _waits_for_worker(activity, now) and (who := workers.get(TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)):
            found.append(_waits(name, who, since, now))
        elif (waiting := _reported(activity, name, now)) is not None:
            found.append(waiting)
    return found


async def open_questions(handle: WorkflowHandle[Any, Any]) -> list[updates.Question]:
    """What the agent asks and waits for, oldest first.

    Raises:
        RPCError: no such run, or no worker answers.
    """
    found: list[updates.Question] = await handle.query(updates.QUESTIONS, result_type=list[updates.Question])
    return found


async def _questions(handle: WorkflowHandle[Any, Any], run_id: str | None, now: datetime) -> Sequence[Obstacle]:
    """What the agent asks; nothing while no worker says it."""
    how = f"Answer on its task, on the run's page, or with: agent-runs answer {run_id}"
    with suppress(RPCError, WorkflowQueryRejectedError, WorkflowQueryFailedError, TimeoutError):
        async with asyncio.timeout(CALL_TIMEOUT.total_seconds()):
            asked = await open_questions(handle)
        return [_question(each, how, now) for each in asked]
    return ()


def _question(asked: updates.Question, how: str, now: datetime) -> Obstacle:
    text = f"The agent asks: {printable(asked.title, MESSAGE_LIMIT)}. {how}"
    return Obstacle("asks", RUN, text, asked.asked_at or now, asked.id)


def _kinds_that_wait(description: WorkflowExecutionDescription, now: datetime) -> Sequence[TaskQueueType.ValueType]:
    raw = description.raw_description
    kinds = []
    if raw.HasField("pending_workflow_task"):
        kinds.append(TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
    if any(_waits_for_worker(each, now) for each in raw.pending_activities):
        kinds.append(TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
    return kinds


def _waits_for_worker(activity: PendingActivityInfo, now: datetime) -> bool:
    """Whether a worker could take it, and none has for an unusual time. One that waits for its retry is not."""
    due = _time(activity.scheduled_time) or now
    if activity.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        return False
    return now - due > UNUSUAL_WAIT


def _reported(activity: PendingActivityInfo, name: str, now: datetime) -> Obstacle | None:
    """Why the step waits, as its last heartbeat says (`StartProgress`, `StreamProgress`)."""
    if activity.state != PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
        return None
    try:
        progress = StepProgress.model_validate_json(activity.heartbeat_details.payloads[0].data)
    except (IndexError, ValueError):
        return None
    since = progress.since or _time(activity.last_started_time) or now
    if not progress.reason or now - since < UNUSUAL_START:
        return None
    reason = printable(progress.reason, MESSAGE_LIMIT)
    return Obstacle("step_waits", name, f"{name}, for {duration_text(now - since)}: {reason}", since, reason)


def _fails(activity: PendingActivityInfo, now: datetime) -> bool:
    """Whether a repeated step has not come further than before."""
    if activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        due = _time(activity.scheduled_time)
        return due is None or due > now - UNUSUAL_WAIT
    if is_handed_over(activity.last_failure):
        return False
    began = _time(activity.last_started_time)
    return began is None or now - began < SETTLED_AFTER


def _failing(activity: PendingActivityInfo, name: str, first: datetime | None, now: datetime) -> str:
    due = _time(activity.scheduled_time)
    waits = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    again = (
        f"Next try in {duration_text(due - now)}" if waits and due is not None and due > now else "It is tried again"
    )
    cause, remedy = cause_of(activity.last_failure)
    times = "once" if activity.attempt == 2 else f"{activity.attempt - 1} times"
    within = f" in {duration_text(now - first)}" if first else ""
    return f"{name} failed {times}{within}: {cause}. {again}. {remedy}".strip()


def is_handed_over(failure: Failure) -> bool:
    """Whether a step's last try ended because its worker was stopped, which is no failure. Pure."""
    return failure.application_failure_info.type == HANDED_OVER


def cause_of(failure: Failure) -> tuple[str, str]:
    """A step's last failure in our words, and what to do about it. Pure."""
    kind = failure.application_failure_info.type
    if is_handed_over(failure):
        return "its worker was stopped", ""
    if failure.HasField("timeout_failure_info"):
        if failure.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT:
            return "its worker no longer answered", "Look whether workers are killed or hang"
        return "it did not end in time", "Look at the workers' log"
    message = printable(failure.message, MESSAGE_LIMIT).removeprefix(f"{kind}: ").rstrip(".")
    known = FAILURES.get(kind)
    return (f"{message} ({kind})", known.next_step) if known else (f"{kind}: {message}", "Look at the workers' log")


def _waits(what: str, who: Workers, since: datetime, now: datetime) -> Obstacle:
    kind, reason = who.absence(now)
    return Obstacle(kind, what, f"{what} has waited {duration_text(now - since)} for a worker: {reason}", since)


def _time(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(tzinfo=UTC) if stamp.seconds else None


async def last_poll(client: Client, queue: str, kind: TaskQueueType.ValueType) -> datetime | None:
    """When a worker last polled for this kind of task; None: none is listed.

    Raises:
        RPCError: Temporal does not answer.
    """
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    answer = await client.workflow_service.describe_task_queue(request, timeout=CALL_TIMEOUT)
    return max((each.last_access_time.ToDatetime(tzinfo=UTC) for each in answer.pollers), default=None)
