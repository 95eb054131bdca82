"""Failures of the cluster cost the infrastructure budget, and only those are retried."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.errors import (
    AgentFailed,
    ExitUnknown,
    Failure,
    ImageRegistryThrottled,
    JobDeletedExternally,
    PodLost,
    ServerUnusable,
)
from agent_runs.contracts.messages import Ended, JobRef, Restored, StreamEnd
from agent_runs.contracts.outcome import Interruption, LostWork, Report
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import GOOD, FakeActivities, answer_with, fail_with
from tests.workflows.fake_worker import configured, running_worker


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.retries.FIRST_RETRY_PAUSE", timedelta(milliseconds=1))


def losing(count: int, failure: Failure) -> Any:
    """The first `count` attempts end from outside."""

    async def stream(input: Any) -> StreamEnd:
        if input.attempt.attempt > count:
            return FakeActivities.ended(input)
        return Ended(failure=failure)

    return stream


async def test_a_lost_pod_is_followed_by_an_attempt_with_the_same_session(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    steps = FakeActivities({"stream_logs": losing(1, PodLost.as_failure("evicted"))})
    async with running_worker(temporal, queue, steps, sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    jobs = [input for name, input in steps.calls if name == "create_job"]
    assert [input.session.session_id if input.session else None for input in jobs] == [None, "ses_1"]
    assert [input.resuming for name, input in steps.calls if name == "bundle_prompt"] == [False, True]
    assert steps.names.index("finish") < len(steps.names) - 1 - steps.names[::-1].index("create_job")
    assert [attempt.failure_code for attempt in outcome.attempts] == ["k8s_pod_lost", None]
    assert outcome.exit_code == 0
    assert outcome.usage is not None
    assert outcome.usage.input_tokens == 2 * GOOD.usage.input_tokens
    assert any("k8s_pod_lost" in note for note in outcome.result_json["notes"])


RESTORED = Restored(number=3, attempt=1, steps=2, at=datetime(2026, 1, 2, 12, 0, tzinfo=UTC))
INTERRUPTION = Interruption(steps=3, at=RESTORED.at + timedelta(seconds=14), tools=("bash: make all",))


@pytest.mark.parametrize(
    ("restored", "lost"),
    [
        (RESTORED, LostWork(steps=1, seconds=14)),
        (
            RESTORED.model_copy(update={"steps": 3, "at": RESTORED.at + timedelta(minutes=1)}),
            LostWork(steps=0, seconds=0),
        ),
        (RESTORED.model_copy(update={"attempt": 0}), None),
        (None, None),
    ],
)
async def test_an_outcome_says_what_was_lost_since_the_checkpoint(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, restored: Restored | None, lost: LostWork | None
) -> None:
    interrupted = GOOD.model_copy(update={"interruption": INTERRUPTION})
    steps = FakeActivities(
        {
            "stream_logs": losing(1, PodLost.as_failure("evicted")),
            "parse_transcript": answer_with(lambda input: interrupted if input.stopped else GOOD),
            "create_job": answer_with(
                lambda input: JobRef(
                    namespace="default", name=input.attempt.job_name, uid="u", keeps_sessions=True, restored=restored
                )
            ),
        }
    )
    async with running_worker(temporal, queue, steps, sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert [attempt.lost for attempt in outcome.attempts] == [lost, None]
    named = any("of work, with bash: make all at work" in note for note in outcome.warnings)
    assert named is (lost is not None)
    prompts = [input.interruption for name, input in steps.calls if name == "bundle_prompt"]
    assert prompts == [None, INTERRUPTION]


@pytest.mark.parametrize(("transport", "then"), [("auto", "run"), ("serve", "serve")])
async def test_after_a_server_that_could_not_be_used_the_command_line_is_unless_the_server_is_wanted(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, transport: str, then: str
) -> None:
    steps = FakeActivities({"stream_logs": losing(1, ServerUnusable.as_failure("server_not_started"))})
    async with running_worker(temporal, queue, steps, sandboxed=False) as start:
        await outcome_at_close(await start(configured(request_of_a_run, transport=transport)))
    jobs = [input for name, input in steps.calls if name == "create_job"]
    assert [input.config.transport for input in jobs] == [transport, then]


async def test_the_infrastructure_budget_has_an_end(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    steps = FakeActivities({"stream_logs": losing(9, PodLost.as_failure("evicted"))})
    async with running_worker(temporal, queue, steps, sandboxed=False) as start:
        outcome = await outcome_at_close(await start(configured(request_of_a_run, infrastructure_retries=2)))
    assert [attempt.failure_code for attempt in outcome.attempts] == ["k8s_pod_lost"] * 3
    assert outcome.error_code == "k8s_pod_lost"


async def test_a_throttled_registry_is_followed_by_another_attempt(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async def wait(input: Any) -> Any:
        if input.attempt.attempt == 1:
            raise ImageRegistryThrottled("429 Too Many Requests")
        return FakeActivities.pod(input)

    async with running_worker(temporal, queue, FakeActivities({"await_schedule": wait}), sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert [attempt.failure_code for attempt in outcome.attempts] == ["k8s_image_registry_throttled", None]


@pytest.mark.parametrize(
    "failure",
    [JobDeletedExternally.as_failure("somebody deleted it"), AgentFailed.as_failure("exit 1")],
    ids=lambda failure: failure.code,
)
async def test_other_failures_are_not_retried(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, failure: Failure
) -> None:
    steps = FakeActivities({"stream_logs": losing(9, failure)})
    async with running_worker(temporal, queue, steps, sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert outcome.error_code == failure.code
    assert steps.names.count("create_job") == 1


async def test_an_unknown_exit_code_is_never_a_success(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async def parse(_input: object) -> Report:
        return GOOD.model_copy(update={"failure": ExitUnknown.as_failure("no exit code"), "exit_code": 1})

    async with running_worker(temporal, queue, FakeActivities({"parse_transcript": parse}), sandboxed=False) as start:
        outcome = await outcome_at_close(await start(configured(request_of_a_run, infrastructure_retries=0)))
    assert outcome.error_code == "k8s_exit_unknown"
    assert outcome.exit_code != 0


async def test_no_attempt_follows_a_pod_that_may_still_run(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    unavailable = ApplicationError("the API server is unavailable", non_retryable=True)
    steps = FakeActivities({"stream_logs": losing(9, PodLost.as_failure("evicted")), "finish": fail_with(unavailable)})
    async with running_worker(temporal, queue, steps, sandboxed=False) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert outcome.error_code == "k8s_pod_lost"
    assert steps.names.count("create_job") == 1
    assert any("cleanup of attempt 1 is incomplete" in note for note in outcome.result_json["notes"])
