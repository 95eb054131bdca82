"""`agent-runs cancel` and `answer`, and `start` when another task has the agent."""

import io
import json
from pathlib import Path

import pytest
from temporalio.client import Client

from agent_runs.cli import runs
from agent_runs.cli.display import JsonDisplay
from agent_runs.cli.program import Refused
from agent_runs.client.attach import attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.errors import InvalidRequest, MessageNotDelivered
from agent_runs.paperclip.sealing import load_or_create
from dev_stack.demo import context
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import PERMISSION, FakeActivities, FakeAgent
from tests.workflows.fake_worker import reached, running_worker


@pytest.fixture(autouse=True)
def _settings(temporal: Client, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.service_client.config.target_host)
    monkeypatch.setenv("AGENT_RUNS_TASK_QUEUE", queue)
    monkeypatch.setenv("AGENT_RUNS_SEALING_KEY_FILE", str(tmp_path / "key.json"))


async def test_a_cancel_reports_that_the_agent_stopped_and_its_session_is_kept(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, output = FakeAgent(), io.StringIO()
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started)
        code = await runs.cancel(request_of_a_run.run_id, "wrong branch", JsonDisplay(output))
        outcome = await outcome_at_close(handle)
        second_code = await runs.cancel(request_of_a_run.run_id, "once more", JsonDisplay(output))
    shown = [json.loads(line) for line in output.getvalue().splitlines()]
    first, second = (each for each in shown if each["type"] == "cancelled")
    assert [each["text"] for each in shown if each["type"] == "note"][:1] == ["waits for: stopping the agent"]
    assert (code, second_code) == (0, 0)
    assert first == second
    assert first["answer"]["outcome"] == "cancelled"
    assert first["answer"]["stop"]["agentStopped"]
    assert first["answer"]["stop"]["sessionPreserved"]
    assert "wrong branch" in (outcome.error_message or "")


async def test_questions_are_shown_without_an_answer_and_answered_or_rejected_with_one(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, tmp_path: Path
) -> None:
    second = PERMISSION.model_copy(update={"id": "1-per_2"})
    agent, output = FakeAgent(questions=(PERMISSION, second)), io.StringIO()
    steps, run = FakeActivities(agent.answers), request_of_a_run.run_id
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.asked)
        await runs.answer(run, [], JsonDisplay(output), question=None, reject=False)  # needs no key
        load_or_create(tmp_path / "key.json")
        with pytest.raises(InvalidRequest, match="takes Allow once, Always allow"):
            await runs.answer(run, ["never"], JsonDisplay(output), question=None, reject=False)
        await runs.answer(run, ["2"], JsonDisplay(output), question="1-per_2", reject=False)
        await runs.answer(run, [], JsonDisplay(output), question=None, reject=True)
        with pytest.raises(MessageNotDelivered, match="the agent does not ask anything"):
            await runs.answer(run, ["1"], JsonDisplay(output), question=None, reject=False)
        await agent.end()
        await outcome_at_close(handle)
    shown = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [each["id"] for each in shown if each["type"] == "question"] == ["1-per_1", "1-per_2"]
    assert [each["type"] for each in shown if each["type"] != "question"] == ["delivered", "delivered"]
    sent = [(input.question, input.sealed is None) for name, input in steps.calls if name == "tell_agent"]
    assert sent == [("1-per_2", False), ("1-per_1", True)]


async def test_a_start_for_another_task_is_refused_with_the_holder_of_the_agent(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, tmp_path: Path
) -> None:
    raw = context(agent_id=request_of_a_run.agent.id)
    (tmp_path / "context.json").write_text(json.dumps(raw))
    load_or_create(tmp_path / "key.json")
    held = await attach(temporal, ClientSettings(task_queue=queue), request_of_a_run.wake)
    with pytest.raises(Refused, match=f"held by run {request_of_a_run.run_id}.*--wait.*agent-runs cancel"):
        await runs.start(tmp_path / "context.json", JsonDisplay(io.StringIO()), follow=False, wait=False)
    await held.handle(temporal).terminate()
