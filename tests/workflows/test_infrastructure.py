"""What the cluster breaks costs the cluster's budget, not the agent's."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from contracts.errors import AgentFailed, ExitUnknown, Failure, ImageRegistryThrottled, JobDeletedExternally, PodLost
from contracts.messages import StreamEnd
from contracts.outcome import ContainerEnd, OutputReceipt, Report
from contracts.request import RunRequest
from tests.workflows.steps import GOOD, Steps
from tests.workflows.working import configured, raising, working


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workflows.budgets.FIRST_PAUSE", timedelta(milliseconds=1))


def losing(count: int, failure: Failure) -> Any:
    """The first `count` attempts end from outside."""

    async def stream(order: Any) -> StreamEnd:
        if order.attempt.attempt > count:
            return Steps.ended(order)
        return StreamEnd(container=ContainerEnd(), receipt=OutputReceipt(), failure=failure)

    return stream


async def test_a_lost_pod_is_followed_by_an_attempt_with_the_same_session(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    steps = Steps({"stream_logs": losing(1, PodLost.as_failure("evicted"))})
    async with working(temporal, queue, steps, sandboxed=False) as start:
        outcome = await (await start(request_of_a_run)).result()
    jobs = [order for name, order in steps.calls if name == "create_job"]
    assert [order.session.session_id if order.session else None for order in jobs] == [None, "ses_1"]
    assert [order.resuming for name, order in steps.calls if name == "bundle_prompt"] == [False, True]
    assert steps.names.index("finish") < len(steps.names) - 1 - steps.names[::-1].index("create_job")
    assert [attempt.failure_code for attempt in outcome.attempts] == ["k8s_pod_lost", None]
    assert outcome.exit_code == 0
    assert outcome.usage is not None
    assert outcome.usage.input_tokens == 2 * GOOD.usage.input_tokens
    assert any("k8s_pod_lost" in note for note in outcome.result_json["notes"])


async def test_the_infrastructure_budget_has_an_end(temporal: Client, queue: str, request_of_a_run: RunRequest) -> None:
    steps = Steps({"stream_logs": losing(9, PodLost.as_failure("evicted"))})
    async with working(temporal, queue, steps, sandboxed=False) as start:
        outcome = await (await start(configured(request_of_a_run, infrastructure_retries=2))).result()
    assert [attempt.failure_code for attempt in outcome.attempts] == ["k8s_pod_lost"] * 3
    assert outcome.error_code == "k8s_pod_lost"


async def test_a_throttled_registry_is_asked_again(temporal: Client, queue: str, request_of_a_run: RunRequest) -> None:
    async def wait(order: Any) -> Any:
        if order.attempt.attempt == 1:
            raise ImageRegistryThrottled("429 Too Many Requests")
        return Steps.pod(order)

    async with working(temporal, queue, Steps({"await_schedule": wait}), sandboxed=False) as start:
        outcome = await (await start(request_of_a_run)).result()
    assert [attempt.failure_code for attempt in outcome.attempts] == ["k8s_image_registry_throttled", None]


@pytest.mark.parametrize(
    "failure",
    [JobDeletedExternally.as_failure("somebody deleted it"), AgentFailed.as_failure("exit 1")],
    ids=lambda failure: failure.code,
)
async def test_what_is_not_the_clusters_fault_does_not_repeat_by_itself(
    temporal: Client, queue: str, request_of_a_run: RunRequest, failure: Failure
) -> None:
    steps = Steps({"stream_logs": losing(9, failure)})
    async with working(temporal, queue, steps, sandboxed=False) as start:
        outcome = await (await start(request_of_a_run)).result()
    assert outcome.error_code == failure.code
    assert steps.names.count("create_job") == 1


async def test_an_unknown_exit_code_is_never_a_success(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    async def parse(_order: object) -> Report:
        return GOOD.model_copy(update={"failure": ExitUnknown.as_failure("no exit code"), "exit_code": 1})

    async with working(temporal, queue, Steps({"parse_transcript": parse}), sandboxed=False) as start:
        outcome = await (await start(configured(request_of_a_run, infrastructure_retries=0))).result()
    assert outcome.error_code == "k8s_exit_unknown"
    assert outcome.exit_code != 0


async def test_no_attempt_follows_a_pod_that_may_still_run(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    away = ApplicationError("the API server is away", non_retryable=True)
    steps = Steps({"stream_logs": losing(9, PodLost.as_failure("evicted")), "finish": raising(away)})
    async with working(temporal, queue, steps, sandboxed=False) as start:
        outcome = await (await start(request_of_a_run)).result()
    assert outcome.error_code == "k8s_pod_lost"
    assert steps.names.count("create_job") == 1
    assert any("cleanup of attempt 1 is incomplete" in note for note in outcome.result_json["notes"])
