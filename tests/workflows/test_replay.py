"""Recorded histories replay under the current code, wherever the run is."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from agent_runs.client.replay import Replay, read, replay
from tests.histories.commands import SNAPSHOT
from tests.histories.record import HERE
from tests.histories.scenarios import scenarios
from workflows.agent_run import AgentRunWorkflow

HISTORIES = sorted(HERE.glob("*.json"))
FIRST_TASK = 4
"""Events until the first task has ended: before that there is nothing to replay."""


COMMAND_EVENTS = frozenset(
    {
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
        EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_TIMER_CANCELED,
        EventType.EVENT_TYPE_MARKER_RECORDED,
        EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    }
)
"""Events that the server writes together with the end of a workflow task, because the code asked for them."""


def name(file: Path) -> str:
    return file.stem


def recorded(file: Path) -> WorkflowHistory:
    return read(file.read_text())


def beginnings(history: WorkflowHistory) -> list[WorkflowHistory]:
    """The history as it was when each task had just ended with its commands, and when the next had begun."""
    events = history.events
    return [
        WorkflowHistory(history.workflow_id, events[:end])
        for end in range(FIRST_TASK, len(events))
        if events[end].event_type not in COMMAND_EVENTS
        and (
            events[end - 1].event_type in COMMAND_EVENTS
            or events[end - 1].HasField("workflow_task_started_event_attributes")
        )
    ]


@pytest.mark.parametrize("file", HISTORIES, ids=name)
async def test_a_recorded_history_replays(file: Path) -> None:
    replayer = Replayer(workflows=[AgentRunWorkflow], data_converter=pydantic_data_converter, debug_mode=True)
    await replayer.replay_workflow(recorded(file))


@pytest.mark.parametrize("file", HISTORIES, ids=name)
async def test_an_open_run_replays_wherever_it_is(file: Path) -> None:
    found = beginnings(recorded(file))
    assert len(found) >= 2

    async def each() -> AsyncIterator[WorkflowHistory]:
        for history in found:
            yield history

    replayer = Replayer(
        workflows=[AgentRunWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=UnsandboxedWorkflowRunner(),  # some twenty replays each: a sandbox costs most of their time
        debug_mode=True,  # as `agent_runs.client.replay`
    )
    await replayer.replay_workflows(each())


def patch(marker: HistoryEvent) -> str:
    """The patch id, which the SDK keeps as JSON."""
    payloads = marker.marker_recorded_event_attributes.details["patch-data"].payloads
    return str(json.loads(payloads[0].data)["id"])


def test_every_scenario_is_recorded() -> None:
    assert {name(file) for file in HISTORIES} == set(scenarios())


def test_every_patch_of_the_workflow_is_in_a_recorded_history() -> None:
    events = (event for file in HISTORIES for event in recorded(file).events)
    markers = {patch(event) for event in events if event.HasField("marker_recorded_event_attributes")}
    assert markers >= set(re.findall(r"patched '(.+)'", SNAPSHOT.read_text()))


async def test_a_run_that_no_worker_has_taken_yet_replays() -> None:
    whole = recorded(HERE / "normal.json")
    found = await replay(WorkflowHistory(whole.workflow_id, whole.events[:2]))
    assert found == Replay(events=2, builds=(), closed=False, difference=None)


async def test_a_replay_names_the_build_that_wrote_the_history() -> None:
    history = recorded(HERE / "normal.json")
    found = await replay(history)
    (build,) = found.builds
    assert re.fullmatch(r"dev-[0-9a-f]{8}", build)
    assert (found.events, found.closed, found.difference) == (len(history.events), True, None)
