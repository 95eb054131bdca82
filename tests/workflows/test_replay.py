"""Runs that were started by earlier code go on under the current one, wherever they stand."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from client.history import Replay, _patch, is_command, read, replay
from tests.histories.commands import SNAPSHOT
from tests.histories.record import GENERATION, HERE, shapes
from workflows.agent_run import AgentRunWorkflow

HISTORIES = sorted(HERE.rglob("*.json"))
FIRST = ("cancel-while-running", "fresh-restart", "normal", "timeout", "unschedulable")
"""Made by the code before the first patch."""
FIRST_TASK = 4
"""Events until the first task has ended: before that there is nothing to replay."""


def name(file: Path) -> str:
    return str(file.relative_to(HERE).with_suffix(""))


def recorded(file: Path) -> WorkflowHistory:
    return read(file.read_text())


def beginnings(history: WorkflowHistory) -> list[WorkflowHistory]:
    """The history as it was when each task had just ended with its commands, and when the next had begun."""
    events = history.events
    return [
        WorkflowHistory(history.workflow_id, events[:end])
        for end in range(FIRST_TASK, len(events))
        if not is_command(events[end])
        and (is_command(events[end - 1]) or events[end - 1].HasField("workflow_task_started_event_attributes"))
    ]


@pytest.mark.parametrize("file", HISTORIES, ids=name)
async def test_a_recorded_history_replays(file: Path) -> None:
    replayer = Replayer(workflows=[AgentRunWorkflow], data_converter=pydantic_data_converter)
    await replayer.replay_workflow(recorded(file))


@pytest.mark.parametrize("file", HISTORIES, ids=name)
async def test_a_run_that_goes_on_replays_wherever_it_stands(file: Path) -> None:
    found = beginnings(recorded(file))
    assert len(found) > 2

    async def each() -> AsyncIterator[WorkflowHistory]:
        for history in found:
            yield history

    replayer = Replayer(
        workflows=[AgentRunWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=UnsandboxedWorkflowRunner(),  # some twenty replays each: a sandbox costs most of their time
    )
    await replayer.replay_workflows(each())


def test_every_shape_of_run_is_recorded() -> None:
    assert {name(file) for file in HISTORIES} == {*FIRST, *(f"{GENERATION}/{shape}" for shape in shapes())}


def test_every_patch_of_the_workflow_is_in_a_recorded_history() -> None:
    events = (event for file in HISTORIES for event in recorded(file).events)
    markers = {_patch(event) for event in events if event.HasField("marker_recorded_event_attributes")}
    assert markers >= set(re.findall(r"patched '(.+)'", SNAPSHOT.read_text()))


async def test_a_run_that_no_worker_has_taken_yet_replays() -> None:
    whole = recorded(HERE / "normal.json")
    found = await replay(WorkflowHistory(whole.workflow_id, whole.events[:2]))
    assert found == Replay(events=2, tasks=0, builds=(), ended=False, difference=None)


async def test_a_replay_knows_who_wrote_the_history() -> None:
    found = await replay(recorded(HERE / "normal.json"))
    assert found == Replay(
        events=47, tasks=7, builds=("45ee13af503a54292d7d4394e8849e18",), ended=True, difference=None
    )
