"""The steps of a run, on a real Temporal server with fake activities."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.errors import (
    ClusterForbidden,
    InvalidRequest,
    JobCreateFailed,
    PodScheduleFailed,
    RunError,
    SealedFieldUnreadable,
    SessionUnavailable,
)
from agent_runs.contracts.identity import workflow_id
from agent_runs.contracts.messages import Finished, PromptBundle
from agent_runs.contracts.outcome import Outcome, Report, Stop
from agent_runs.contracts.request import Runtime, SessionParams
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import GOOD, FakeActivities, fail_with
from tests.workflows.fake_worker import running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.attributes import FAILURE_KIND, RUN_PHASE


async def test_a_run_calls_every_activity_in_order(temporal: Client, queue: str, request_of_a_run: FakeRequest) -> None:
    steps = FakeActivities()
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert steps.names[0] == "prepare_run"
    assert sorted(steps.names[1:3]) == ["bundle_prompt", "introspect_pod"]
    assert steps.names[3:6] == ["create_job", "await_schedule", "stream_logs"]
    assert sorted(steps.names[6:]) == ["finish", "parse_transcript"]
    assert outcome.exit_code == 0
    assert outcome.failure is None
    assert outcome.session_id == "ses_1"
    assert outcome.usage == GOOD.usage


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("config.model is missing; config.cwd must be an absolute path"), SealedFieldUnreadable("damaged")],
    ids=["wrong fields", "unreadable"],
)
async def test_a_request_that_is_refused_ends_the_run_by_name_and_nothing_else_is_done(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, error: RunError
) -> None:
    steps = FakeActivities({"prepare_run": fail_with(error)})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        outcome = await outcome_at_close(handle)
        shown = (await handle.describe()).typed_search_attributes
    assert steps.names == ["prepare_run"]
    assert outcome.failure == error.as_failure(error.message)
    assert outcome.error_message == error.message
    assert (outcome.exit_code, outcome.attempts, outcome.session_params) == (None, (), None)
    assert outcome.stop == Stop(agent_started=False, agent_stopped=True)
    assert (shown[RUN_PHASE], shown[FAILURE_KIND]) == ("failed", error.code)


async def test_the_history_of_a_normal_run_stays_small(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    sealed = request_of_a_run.model_copy(update={"sealed": "s" * 24_000})
    async with running_worker(temporal, queue, FakeActivities()) as start:
        handle = await start(sealed)
        await outcome_at_close(handle)
        description = await handle.describe()
        history = await handle.fetch_history()
    assert len(history.events) <= 60
    assert description.raw_description.workflow_execution_info.history_size_bytes <= 60 * 1024


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("introspect_pod", ClusterForbidden("may not get pods")),
        ("bundle_prompt", JobCreateFailed("Secret refused")),
        ("create_job", JobCreateFailed("exceeded quota")),
        ("await_schedule", PodScheduleFailed("0/3 nodes are available")),
        ("stream_logs", ClusterForbidden("may not get pods/log")),
    ],
)
async def test_a_failing_activity_names_the_failure_and_is_cleaned_up(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, step: str, error: Any
) -> None:
    steps = FakeActivities({step: fail_with(error)})
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert outcome.error_code == error.code
    assert error.message in (outcome.error_message or "")
    assert outcome.failure is not None
    assert outcome.failure.next_step == error.next_step
    assert outcome.exit_code != 0
    assert steps.names[-1] == "finish"


@pytest.mark.parametrize("step", ["introspect_pod", "create_job"])
async def test_what_an_unreported_job_has_left_is_looked_for_where_its_prompt_is(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, step: str
) -> None:
    async def bundle(input: Any) -> PromptBundle:
        return PromptBundle(namespace="agents", secret_name=input.attempt.prompt_secret_name, sha256="0", size=1)

    steps = FakeActivities({"bundle_prompt": bundle, step: fail_with(JobCreateFailed("no answer"))})
    async with running_worker(temporal, queue, steps) as start:
        await outcome_at_close(await start(request_of_a_run))
    assert steps.last_input("finish").namespace == "agents"


async def test_cleanup_waits_for_the_activity_concurrent_to_the_failed_one(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    refused, bundled = asyncio.Event(), asyncio.Event()

    async def introspect(_input: object) -> None:
        refused.set()
        raise ClusterForbidden("may not get pods")

    async def bundle(input: Any) -> PromptBundle:
        await refused.wait()
        bundled.set()
        return PromptBundle(namespace="default", secret_name=input.attempt.prompt_secret_name, sha256="0", size=1)

    async def finish(_input: object) -> Finished:
        assert bundled.is_set()
        return Finished(deleted=True)

    steps = FakeActivities({"introspect_pod": introspect, "bundle_prompt": bundle, "finish": finish})
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert outcome.error_code == "k8s_forbidden"
    assert steps.names.count("finish") == 1


async def test_a_refused_session_is_followed_by_a_fresh_attempt_in_the_same_run(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async def parse(input: Any) -> Report:
        if input.resumed_session:
            refused = SessionUnavailable.as_failure("Session not found")
            return Report(failure=refused, unknown_session=True, clear_session=True, exit_code=1)
        return GOOD

    resumed = Runtime(session_params=SessionParams(session_id="ses_old"))
    steps = FakeActivities({"parse_transcript": parse})
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_at_close(await start(request_of_a_run.model_copy(update={"runtime": resumed})))
    assert [input.session for name, input in steps.calls if name == "create_job"] == [resumed.session_params, None]
    assert [input.resuming for name, input in steps.calls if name == "bundle_prompt"] == [True, False]
    assert outcome.exit_code == 0
    assert outcome.session_id == "ses_1"
    assert [attempt.failure_code for attempt in outcome.attempts] == ["session_unavailable", None]


STARTED = {"runId": "r", "agentId": "a", "companyId": "c", "sealed": "s"}


@pytest.mark.parametrize(
    ("start", "named"),
    [
        ({"runId": "r"}, "agentId, companyId, sealed"),
        ({**STARTED, "image": "mine:1"}, "fields: image"),
        ({**STARTED, "config": {"serviceAccountName": "admin"}}, "fields: config"),
        ("text", "input"),
        ([], "input"),
    ],
    ids=["missing fields", "an image", "a configuration", "text", "list"],
)
async def test_an_input_that_cannot_be_read_fails_the_run_at_once_and_names_the_fields(
    temporal: Client, queue: str, start: Any, named: str
) -> None:
    async with running_worker(temporal, queue, FakeActivities()):
        handle = await temporal.start_workflow(
            AgentRunWorkflow.__name__, start, id=workflow_id(queue), task_queue=queue, result_type=Outcome
        )
        outcome = await outcome_at_close(handle)
        status = (await handle.describe()).status
    assert status is WorkflowExecutionStatus.FAILED
    assert (outcome.error_code, outcome.never_started) == (InvalidRequest.code, True)
    assert named in (outcome.error_message or "")
