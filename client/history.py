"""A run's history under the workflow code that is here: does it replay, and if not, at which event do they part?

Temporal's own answer to that names either two commands or an event, never both, and quotes payloads. So the commands of
each workflow task are noted while it is replayed, and laid beside the recorded events.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import (
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

import workflows
from opencode.events import printable
from workflows.agent_run import AgentRunWorkflow

NOTHING: Final = "nothing"
NAME: Final = 80
"""Characters of a name shown: a history of somebody else's making may hold anything."""


class NoHistory(Exception):
    """This is no history of a run. The text says why."""


@dataclass(frozen=True)
class Difference:
    """Where a history and the code part.

    Attributes:
        event: id of the first event that the code would not have made; where the history has none, of the task's last.
        expected: the command in the history.
        found: the command the code makes instead.
    """

    event: int
    expected: str
    found: str


@dataclass(frozen=True)
class Replay:
    """What came of a replay.

    Attributes:
        tasks: workflow tasks in the history; a run that no worker has taken yet has none, and replays.
        builds: of the workers that wrote the history, in their order.
        ended: the history is complete.
    """

    events: int
    tasks: int
    builds: tuple[str, ...]
    ended: bool
    difference: Difference | None


def build_id() -> str:
    """Names the workflow code: the image's build, else a digest of the files."""
    if given := os.environ.get("BUILD_ID"):
        return given
    digest = hashlib.sha256()
    for file in sorted(Path(workflows.__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return f"dev-{digest.hexdigest()[:8]}"


def read(text: str) -> WorkflowHistory:
    """A history as `temporal workflow show --output json`, the Web UI or `agent-runs replay --save` wrote it.

    Raises:
        NoHistory: not JSON of this kind, or of another workflow.
    """
    try:
        history = WorkflowHistory.from_json("replayed", text)
    except Exception as error:  # noqa: BLE001  # the SDK's converter raises whatever it stumbles over
        raise NoHistory(f"not a history in Temporal's JSON ({type(error).__name__})") from None
    first = history.events[0] if history.events else HistoryEvent()
    kind = first.workflow_execution_started_event_attributes.workflow_type.name
    if kind != AgentRunWorkflow.__name__:
        raise NoHistory(f"the first event does not start {AgentRunWorkflow.__name__}")
    return history


async def replay(history: WorkflowHistory, *, debug: bool = False, workflow: type = AgentRunWorkflow) -> Replay:
    """Replays a history, also one that still grows, under the code that is here. No payload leaves this function.

    Args:
        debug: in this thread, without sandbox and limit on the time a task may take, so that `breakpoint()` and pdb
            stop in the workflow's code; its errors are logged with their trace.
    """
    tasks = [event for event in history.events if event.HasField("workflow_task_completed_event_attributes")]
    builds = [event.workflow_task_completed_event_attributes.worker_version.build_id for event in tasks]
    difference = await _difference(history, debug=debug, workflow=workflow) if tasks else None
    return Replay(
        events=len(history.events),
        tasks=len(tasks),
        builds=tuple(printable(build, NAME) for build in dict.fromkeys(builds) if build),
        ended=history.events[-1].event_type in ENDS,
        difference=difference,
    )


async def _difference(history: WorkflowHistory, *, debug: bool, workflow: type) -> Difference | None:
    notes = Notes(UnsandboxedWorkflowRunner() if debug else SandboxedWorkflowRunner())
    with ThreadPoolExecutor(1) as thread, _quiet(unless=debug):
        replayer = Replayer(
            workflows=[workflow],
            workflow_task_executor=thread,
            workflow_runner=notes,
            data_converter=pydantic_data_converter,
            workflow_failure_exception_types=[ValidationError],
            build_id=build_id(),
            debug_mode=debug,
            runtime=_silent(),
        )
        failure = (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    return notes.difference(history.events, str(failure)) if failure else None


@cache
def _silent() -> Runtime:
    """Temporal's native part prints failures of workflow tasks, payloads included, unless it is told not to."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


@contextmanager
def _quiet(*, unless: bool) -> Iterator[None]:
    """The SDK logs the same failures with their text."""
    log = logging.getLogger("temporalio")
    level = log.level
    if not unless:
        log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


# what the code does


@dataclass(frozen=True)
class Command:
    """One command, or the event that it became. Two are the same when their `what` is; `name` is for people."""

    what: str
    name: str = ""
    event: int = 0

    def __str__(self) -> str:
        return f"{self.what} '{printable(self.name, NAME)}'" if self.name else self.what


@dataclass
class Notes(WorkflowRunner):
    """Runs workflow code as another runner does, and notes the commands of each workflow task.

    Attributes:
        made: commands by the id of the event that started their workflow task.
    """

    runner: WorkflowRunner
    made: dict[int, list[Command]] = field(default_factory=dict)

    def prepare_workflow(self, defn: Any) -> None:
        """As the runner does."""
        self.runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """As the runner does."""
        self.runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """As the runner does; the instance notes what it is asked to do."""
        instance = self.runner.create_instance(det)
        activate = instance.activate

        def noting(activation: Any) -> Any:
            completion = activate(activation)
            if any(job.WhichOneof("variant") != "remove_from_cache" for job in activation.jobs):
                self.made.setdefault(activation.history_length, []).extend(_commands(completion))
            return completion

        vars(instance)["activate"] = noting  # a wrapper would have to follow the SDK's base class
        return instance

    def difference(self, events: Sequence[HistoryEvent], told: str) -> Difference:
        """The first command of the last workflow task that is not the history's.

        Args:
            told: by Temporal; an event's id is read from it where the commands look the same.
        """
        started = max(self.made, default=0)
        task = _recorded(events, after=started)
        for expected, found in zip_longest(task, self.made.get(started, [])):
            if expected is None or found is None or expected.what != found.what:
                event = expected.event if expected else (task[-1].event if task else started)
                return Difference(event, str(expected or NOTHING), str(found or NOTHING))
        at = re.search(r"HistoryEvent\(id: (\d+)", told)
        return Difference(int(at[1]) if at else started, "what was recorded", "something else")


def _commands(completion: Any) -> list[Command]:
    """The commands of one activation that leave an event."""
    if completion.HasField("failed"):
        return [Command("an error", _place(completion.failed.failure))]
    commands = completion.successful.commands
    undone = {
        (kind, getattr(command, cancel).seq)
        for kind, cancel in (("start_timer", "cancel_timer"), ("schedule_activity", "request_cancel_activity"))
        for command in commands
        if command.HasField(cancel)
    } & {
        (kind, getattr(command, kind).seq)
        for kind in ("start_timer", "schedule_activity")
        for command in commands
        if command.HasField(kind)
    }
    return [made for command in commands if (made := _command(command, undone))]


def _command(command: Any, undone: set[tuple[str, int]]) -> Command | None:
    """As the event that it becomes; None when it becomes none."""
    kind: str = command.WhichOneof("variant")
    content = getattr(command, kind)
    if (UNDOES.get(kind, kind), getattr(content, "seq", None)) in undone:
        return None  # begun and cancelled at once: Temporal never hears of it
    match kind:
        case "schedule_activity":
            return Command(f"activity {printable(content.activity_type, NAME)}")
        case "start_timer":
            return Command("timer", _text(command.user_metadata.summary.data))
        case "set_patch_marker":
            return Command(f"patch '{printable(content.patch_id, NAME)}'")
        case "update_response":
            answer = content.WhichOneof("response")
            return None if answer == "rejected" else Command(f"update {answer}")
        case "respond_to_query":
            return None
    return Command(MADE.get(kind, kind.replace("_", " ")))


UNDOES: Final = {"cancel_timer": "start_timer", "request_cancel_activity": "schedule_activity"}
MADE: Final = {
    "cancel_timer": "timer cancelled",
    "request_cancel_activity": "activity cancelled",
    "upsert_workflow_search_attributes": "search attributes",
    "complete_workflow_execution": "end",
    "fail_workflow_execution": "end by failure",
    "cancel_workflow_execution": "end by cancel",
    "continue_as_new_workflow_execution": "continue as new",
}


def _place(failure: Any) -> str:
    """An error's kind and place; its text may quote a payload."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', failure.stack_trace)
    where = f" at {Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
    return f"{failure.application_failure_info.type or 'error'}{where}"


# what the history says

RECORDED: Final = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED: "activity cancelled",
    EventType.EVENT_TYPE_TIMER_CANCELED: "timer cancelled",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "search attributes",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "update accepted",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: "update completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "end",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "end by failure",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "end by cancel",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continue as new",
}
"""Events that commands leave, beside those with a name of their own."""
ENDS: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)
VERSIONS: Final = "TemporalChangeVersion"
"""Search attribute that Temporal sets beside each patch, without a command."""


def _recorded(events: Sequence[HistoryEvent], after: int) -> list[Command]:
    """The commands of the workflow task that the event with this id started."""
    later = (event for event in events if event.event_id > after + 1)
    return [made for event in takewhile(is_command, later) if (made := _event(event))]


def is_command(event: HistoryEvent) -> bool:
    """The event was written together with the end of a workflow task, because the code asked for it."""
    named = ("activity_task_scheduled", "timer_started", "marker_recorded")
    return event.event_type in RECORDED or any(event.HasField(f"{name}_event_attributes") for name in named)  # type: ignore[arg-type]  # names are literals in the stub


def _event(event: HistoryEvent) -> Command | None:
    at = event.event_id
    if event.HasField("activity_task_scheduled_event_attributes"):
        kind = event.activity_task_scheduled_event_attributes.activity_type.name
        return Command(f"activity {printable(kind, NAME)}", event=at)
    if event.HasField("timer_started_event_attributes"):
        return Command("timer", _text(event.user_metadata.summary.data), at)
    if event.HasField("marker_recorded_event_attributes"):
        return Command(f"patch '{printable(_patch(event), NAME)}'", event=at)
    if VERSIONS in event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields:
        return None
    return Command(RECORDED[event.event_type], event=at)


def _patch(event: HistoryEvent) -> str:
    """The id in a patch's marker, which the SDK keeps as JSON."""
    payloads: Iterable[Any] = event.marker_recorded_event_attributes.details["patch-data"].payloads
    for payload in payloads:
        try:
            return str(json.loads(payload.data)["id"])
        except (ValueError, KeyError, TypeError):
            break
    return "?"


def _text(data: bytes) -> str:
    """The name our own code gave a timer."""
    try:
        told = json.loads(data)
    except ValueError:
        return ""
    return told if isinstance(told, str) else ""
