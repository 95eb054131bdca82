"""Runs that were started by earlier code go on under the current one."""

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from tests.histories.record import shapes
from workflows.agent_run import AgentRunWorkflow

HISTORIES = sorted((Path(__file__).parents[1] / "histories").glob("*.json"))


@pytest.mark.parametrize(
    ("name", "text"), [(file.stem, file.read_text()) for file in HISTORIES], ids=[file.stem for file in HISTORIES]
)
async def test_a_recorded_history_replays(name: str, text: str) -> None:
    replayer = Replayer(workflows=[AgentRunWorkflow], data_converter=pydantic_data_converter)
    await replayer.replay_workflow(WorkflowHistory.from_json(f"agent-run:{name}", text))


def test_every_shape_of_run_is_recorded() -> None:
    assert {file.stem for file in HISTORIES} >= set(shapes())
