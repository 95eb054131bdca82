"""Replays a run's history under the workflow code that is installed here.

The SDK's `Replayer` decides. Its error text may quote payloads, so nothing but event ids and names is taken out of it.
"""

import logging
import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from agent_runs.client.timeline import CLOSING_EVENTS
from agent_runs.contracts.identity import WORKFLOW_TYPE
from agent_runs.transcript.events import printable
from workflows.agent_run import AgentRunWorkflow

# Texts of temporalio 1.35 (sdk-core); tests/workflows/test_commands.py provokes each of them.
_OTHER_ACTIVITY: Final = re.compile(r"scheduled event '(.*?)' does not match activity type of activity command '(.*?)'")
_OTHER_COMMAND: Final = re.compile(
    r"([A-Z][\w ]*?) ?[Mm]achine (?:does not handle|in state).*?(?:HistoryEvent\(id|event_id): (\d+)"
)
_NO_COMMAND: Final = re.compile(r"No command scheduled for event HistoryEvent\(id: (\d+)")
_EXCEPTION: Final = re.compile(r'r#type: "(\w+)"')
_FRAME: Final = re.compile(r'(\w+\.py)\\*", line (\d+)')


class InvalidHistory(Exception):
    """This is not the history of a run. The text is the reason."""


@dataclass(frozen=True)
class Difference:
    """Where history and code differ: `event` is None where the SDK names no event.

    Attributes:
        raised: the code raises an error before it gets there.
    """

    event: int | None
    expected: str
    found: str
    raised: bool = False


@dataclass(frozen=True)
class Replay:
    """The result of a replay.

    Attributes:
        builds: build ids of the workers that wrote the history, in order; empty when no worker has taken the run yet.
        closed: the history is complete.
    """

    events: int
    builds: tuple[str, ...]
    closed: bool
    difference: Difference | None


def read(text: str) -> WorkflowHistory:
    """Parse a history as written by `temporal workflow show --output json`, the Web UI or `agent-runs replay --save`.

    Raises:
        InvalidHistory: not JSON of this kind, or of another workflow.
    """
    try:
        history = WorkflowHistory.from_json("replayed", text)
    except Exception as error:  # noqa: BLE001  # the SDK's converter raises many types
        raise InvalidHistory(f"not a history in Temporal's JSON ({type(error).__name__})") from None
    first = history.events[0] if history.events else HistoryEvent()
    if first.workflow_execution_started_event_attributes.workflow_type.name != WORKFLOW_TYPE:
        raise InvalidHistory(f"the first event does not start {WORKFLOW_TYPE}")
    return history


async def replay(history: WorkflowHistory, *, debug: bool = False, workflow: type = AgentRunWorkflow) -> Replay:
    """Replay a history, also of an open run. No payload leaves this function.

    Args:
        debug: replay without the sandbox, so that `breakpoint()` and pdb stop in workflow code; failures are logged
            with their traceback.
    """
    tasks = [event for event in history.events if event.HasField("workflow_task_completed_event_attributes")]
    builds = [event.workflow_task_completed_event_attributes.worker_version.build_id for event in tasks]
    failure = await _failure(history, debug=debug, workflow=workflow) if tasks else None
    return Replay(
        events=len(history.events),
        builds=tuple(printable(build, 80) for build in dict.fromkeys(builds) if build),
        closed=history.events[-1].event_type in CLOSING_EVENTS,
        difference=None if failure is None else _difference(history, str(failure)),
    )


async def _failure(history: WorkflowHistory, *, debug: bool, workflow: type) -> Exception | None:
    replayer = Replayer(
        workflows=[workflow],
        workflow_runner=UnsandboxedWorkflowRunner() if debug else SandboxedWorkflowRunner(),
        data_converter=pydantic_data_converter,
        build_id="replay",  # else the SDK hashes every loaded module: 3 CPU seconds
        debug_mode=True,  # no limit of 2 s for a workflow task: a busy machine would not replay
        runtime=_silent_runtime(),
    )
    logging.disable(logging.NOTSET if debug else logging.CRITICAL)  # the SDK logs failures with their payloads
    try:
        return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    finally:
        logging.disable(logging.NOTSET)


@cache
def _silent_runtime() -> Runtime:
    """The SDK's native part logs the same failures."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


def _difference(history: WorkflowHistory, failure: str) -> Difference:
    if activities := _OTHER_ACTIVITY.search(failure):
        expected, found = (printable(name, 80) for name in activities.groups())
        return Difference(None, f"activity {expected}", f"activity {found}")
    if command := _OTHER_COMMAND.search(failure):
        return Difference(int(command[2]), _event(history, int(command[2])), f"command {command[1]}")
    if missing := _NO_COMMAND.search(failure):
        return Difference(int(missing[1]), _event(history, int(missing[1])), "no command")
    if raised := _EXCEPTION.search(failure):
        frames = _FRAME.findall(failure.partition("encoded_attributes")[0])
        return Difference(None, "no error", raised[1] + (" at {}:{}".format(*frames[-1]) if frames else ""), True)
    return Difference(None, "other commands", "different ones")


def _event(history: WorkflowHistory, event_id: int) -> str:
    """The event's type, and for an activity its name."""
    event = next((event for event in history.events if event.event_id == event_id), HistoryEvent())
    kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").title().replace("_", "")
    activity = event.activity_task_scheduled_event_attributes.activity_type.name
    return f"{kind} ({printable(activity, 80)})" if activity else kind
