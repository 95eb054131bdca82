"""How long steps are retried."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from temporalio.client import Client

from agent_runs.client.obstacles import open_questions
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.tell import answer
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import PodProfile, PromptBundle
from agent_runs.contracts.request import RunConfig
from tests.activities.fake_preparations import REQUEST
from tests.paperclip.contexts import SEALER
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import PERMISSION, FakeActivities, FakeAgent
from tests.workflows.fake_worker import reached, running_worker
from workflows import finalization, preparation
from workflows.attempt import Attempt
from workflows.run_state import RunState
from workflows.token_rotation import TokenRotation

SCHEDULED: Final = "activity_task_scheduled_event_attributes"
KEY = RunKey(agent_id="agent-1", company_id="company-1", run_id="run-1")
HOUR = timedelta(hours=1)
PROFILE = PodProfile(namespace="default", image="agent:1")
PROMPT = PromptBundle(namespace="default", secret_name="prompt", sha256="0", size=1)


def noted(options: dict[str, Any]) -> Callable[..., Any]:
    """Stands for a call of an activity; notes its options, and fails."""

    def call(*_: object, **given: Any) -> None:
        options.update(given)
        raise NotImplementedError

    return call


async def test_a_request_that_no_worker_can_prepare_ends_its_run_within_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr("workflows.preparation.workflow.execute_activity", noted(options))
    run = SimpleNamespace(show=lambda _: None, key=KEY, start=SimpleNamespace(task=None))
    with pytest.raises(NotImplementedError):
        await preparation.prepare_run(cast("RunState", run))
    assert options["schedule_to_close_timeout"] == timedelta(days=1)


async def test_people_wait_ten_seconds_at_most_for_another_worker_in_place_of_a_killed_one(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent(questions=(PERMISSION,))
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(request_of_a_run)
        await reached(agent.asked)
        (question,) = await open_questions(handle)
        await answer(handle, request_of_a_run.key, SEALER, question, (), "ada")
        await agent.end()
        await outcome_at_close(handle)
        events = (await handle.fetch_history()).events
    scheduled = [each.activity_task_scheduled_event_attributes for each in events if each.HasField(SCHEDULED)]
    limits = {each.activity_type.name: each.heartbeat_timeout.ToTimedelta() for each in scheduled}
    waited_for = {"prepare_run", "introspect_pod", "bundle_prompt", "create_job", "stream_logs", "tell_agent"}
    assert {name for name, limit in limits.items() if timedelta() < limit <= timedelta(seconds=10)} >= waited_for


async def test_a_job_that_a_quota_refuses_is_retried_for_as_long_as_its_pod_might_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr("workflows.preparation.workflow.start_activity", noted(options))
    config = RunConfig(model="fake/x", schedule_timeout_sec=7 * 24 * 3600, grace_sec=3600)
    run = SimpleNamespace(config=config, request=REQUEST, attempts=[], grace=HOUR)
    tokens = SimpleNamespace(newest=None, newest_run_id=None)
    attempt = Attempt(AttemptKey(run=KEY), None)
    with pytest.raises(NotImplementedError):
        await preparation.create_job(cast("RunState", run), cast("TokenRotation", tokens), attempt, PROFILE, PROMPT)
    assert options["schedule_to_close_timeout"] > timedelta(days=7) + HOUR  # first pods of previous runs may end


async def test_a_cleanup_waits_for_as_long_as_the_agent_may_take_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr("workflows.finalization.workflow.execute_activity", noted(options))
    run = SimpleNamespace(show=lambda _: None, config=RunConfig(model="fake/x"), grace=HOUR)
    with pytest.raises(NotImplementedError):
        await finalization.finalize(cast("RunState", run), Attempt(AttemptKey(run=KEY), None))
    assert options["schedule_to_close_timeout"] > options["start_to_close_timeout"] > HOUR
