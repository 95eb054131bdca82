"""`agent-runs cancel`, and `start` when another task has the agent."""

import io
import json
from pathlib import Path

import pytest
from temporalio.client import Client

from cli import runs
from cli.display import Machines
from cli.refusals import Refused
from client.attach import attach
from client.settings import ClientSettings
from contracts.request import RunRequest
from local.demo import context
from tests.workflows.steps import Agent, Steps
from tests.workflows.working import reached, working


@pytest.fixture(autouse=True)
def _settings(temporal: Client, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_RUNS_TEMPORAL_ADDRESS", temporal.service_client.config.target_host)
    monkeypatch.setenv("AGENT_RUNS_TASK_QUEUE", queue)
    monkeypatch.setenv("AGENT_RUNS_SEALING_KEY_FILE", str(tmp_path / "key.json"))


async def test_a_cancel_says_that_the_agent_stopped_and_its_session_is_kept(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    agent, told = Agent(), io.StringIO()
    async with working(temporal, queue, Steps(agent.answers)) as start:
        handle = await start(request_of_a_run)
        await reached(agent.working)
        code = await runs.cancel(request_of_a_run.run_id, "wrong branch", Machines(told))
        outcome = await handle.result()
        again = await runs.cancel(request_of_a_run.run_id, "once more", Machines(told))
    first, second = (json.loads(line) for line in told.getvalue().splitlines())
    assert (code, again) == (0, 0)
    assert first == second
    assert first["answer"]["outcome"] == "cancelled"
    assert first["answer"]["stop"]["agentStopped"]
    assert first["answer"]["stop"]["sessionPreserved"]
    assert "wrong branch" in (outcome.error_message or "")


async def test_a_start_for_another_task_is_told_who_has_the_agent(
    temporal: Client, queue: str, request_of_a_run: RunRequest, tmp_path: Path
) -> None:
    raw = context(agent_id=request_of_a_run.agent.id)
    (tmp_path / "context.json").write_text(json.dumps(raw))
    held = await attach(temporal, ClientSettings(task_queue=queue), request_of_a_run)
    with pytest.raises(Refused, match=f"held by run {request_of_a_run.run_id}.*--wait.*agent-runs cancel"):
        await runs.start(tmp_path / "context.json", Machines(io.StringIO()), follow=False, wait=False)
    await held.handle(temporal).terminate()
