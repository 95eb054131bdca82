"""Runs whose OpenCode is driven through its server: the real OpenCode with the scripted model."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.attach import Ticket
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from tests.runs.real_opencode import opencode_agent, playing, real_system
from tests.runs.system import System

pytestmark = pytest.mark.slow
SAYS_ITS_RUN = (
    {"tools": [{"name": "bash", "args": {"command": "echo $PAPERCLIP_RUN_ID", "description": "say the run"}}]},
    {"text": "Two."},
)


@pytest.fixture(scope="module")
async def system(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with real_system(temporal, tmp_path_factory.mktemp("served")) as opened:
        yield opened


async def ended(system: System, ticket: Ticket) -> Outcome:
    return await outcome_at_close(ticket.handle(system.temporal))


async def events(system: System, raw: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in await system.stdout(raw)]


async def types(system: System, raw: dict[str, Any]) -> list[str]:
    """The types of the events of a run."""
    return [event["type"] for event in await events(system, raw)]


async def jobs(system: System, raw: dict[str, Any]) -> list[str]:
    found = await system.kubernetes.jobs_of_agent(system.kubernetes.namespace, raw["agent"]["id"])
    return [job.metadata.name for job in found]


def next_run(raw: dict[str, Any]) -> dict[str, Any]:
    """The agent's next run for the same task."""
    return {**raw, "runId": str(uuid.uuid4())}


async def test_a_served_run_is_a_whole_run(system: System) -> None:
    raw = playing(
        await opencode_agent(system, "script"),
        {"tools": [{"name": "bash", "args": {"command": "echo works", "description": "say it"}}]},
        {"text": "Done."},
    )
    outcome = await system.outcome(raw)
    assert outcome.failure is None, outcome
    assert outcome.summary == "Done."
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"
    seen = await types(system, raw)
    assert [kind for kind in seen if kind in ("step_start", "tool_use", "text", "step_finish")] == [
        *("step_start", "tool_use", "step_finish"),
        *("step_start", "text", "step_finish"),
    ]
    assert await jobs(system, raw) == []


async def test_the_next_run_of_the_task_gets_the_pod_that_rests(system: System) -> None:
    first = playing(await opencode_agent(system, "script", keepWarmSec=60), {"text": "One."})
    one = await system.outcome(first)
    assert (one.failure, one.summary) == (None, "One.")
    resting = await jobs(system, first)
    second = playing(next_run(first), *SAYS_ITS_RUN)
    two = await system.outcome(second)
    assert two.failure is None, two
    assert two.receipt is not None
    assert two.receipt.state == "verified"
    assert await jobs(system, first) == resting
    (command,) = [event for event in await events(system, second) if event["type"] == "tool_use"]
    assert command["part"]["state"]["output"].strip() == second["runId"]
    assert two.attempts[0].job_name == resting[0]
