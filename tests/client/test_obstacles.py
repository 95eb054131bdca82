"""What keeps a run from going on, out of what Temporal describes: no server, any state."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType, TimeoutType
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure, TimeoutFailureInfo
from temporalio.api.workflow.v1 import PendingActivityInfo, PendingWorkflowTaskInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import TypedSearchAttributes

from agent_runs.client.obstacles import Obstacle, Workers, obstacles_of, read_obstacles
from agent_runs.client.timeline import Step
from agent_runs.contracts.messages import StartProgress, StreamProgress
from tests.support.cases import case

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SCHEDULED = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
UNAVAILABLE = Failure(
    message="k8s_api_unavailable: cannot list pods: 503",
    application_failure_info=ApplicationFailureInfo(type="k8s_api_unavailable"),
)
HANDED_OVER = Failure(application_failure_info=ApplicationFailureInfo(type="WorkerShutdown"))
SILENT = Failure(timeout_failure_info=TimeoutFailureInfo(timeout_type=TimeoutType.TIMEOUT_TYPE_HEARTBEAT))
BOTH = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW


def ago(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(NOW - timedelta(seconds=seconds))
    return stamp


def pending(state: PendingActivityState.ValueType, attempt: int, **more: Any) -> PendingActivityInfo:
    found = PendingActivityInfo(state=state, attempt=attempt, **more)
    found.activity_type.name = "create_job"
    return found


def found(
    *activities: PendingActivityInfo, task: PendingWorkflowTaskInfo | None = None, polled: datetime | None = None
) -> list[Obstacle]:
    raw = DescribeWorkflowExecutionResponse(pending_activities=activities, pending_workflow_task=task)
    description = cast("WorkflowExecutionDescription", SimpleNamespace(raw_description=raw))
    workers = {kind: Workers("agent-runs", polled) for kind in BOTH}
    return list(obstacles_of(description, workers, {"create_job": NOW - timedelta(seconds=130)}, NOW))


@pytest.mark.parametrize(
    "healthy",
    [
        pending(STARTED, 1, last_started_time=ago(7200)),
        pending(SCHEDULED, 1, scheduled_time=ago(1)),
        pending(STARTED, 9, last_started_time=ago(60), last_failure=UNAVAILABLE),
        pending(STARTED, 2, last_started_time=ago(1), last_failure=HANDED_OVER),
    ],
    ids=["works", "just offered", "repeated, and works again", "handed over"],
)
def test_a_step_that_goes_on_is_no_obstacle(healthy: PendingActivityInfo) -> None:
    assert found(healthy) == []


def test_a_step_that_fails_again_and_again_has_count_time_cause_next_try_and_remedy() -> None:
    [obstacle] = found(pending(SCHEDULED, 7, scheduled_time=ago(-20), last_failure=UNAVAILABLE))
    assert (obstacle.kind, obstacle.since) == ("step_fails", NOW - timedelta(seconds=130))
    assert obstacle.text == (
        "creating the Job failed 6 times in 2 min 10 s: cannot list pods: 503 (k8s_api_unavailable). Next try in "
        "20.0 s. Check the API server; the run continues by itself once it answers."
    )


def test_a_step_that_is_being_tried_again_says_so() -> None:
    [obstacle] = found(pending(STARTED, 2, last_started_time=ago(1), last_failure=SILENT))
    assert obstacle.text == (
        "creating the Job failed once in 2 min 10 s: its worker no longer answered. It is tried again. Look whether "
        "workers are killed or hang"
    )


@pytest.mark.parametrize(
    ("polled", "kind", "reason"),
    [
        (None, "no_worker", "none polls task queue agent-runs. Start one (`agent-runs worker`)"),
        (
            NOW - timedelta(seconds=80),
            "no_worker",
            "the last one polled task queue agent-runs 1 min 20 s ago. Start one (`agent-runs worker`)",
        ),
        (NOW - timedelta(seconds=30), "worker_busy", "those of task queue agent-runs are busy or have just ended"),
    ],
    ids=["none", "gone", "busy"],
)
def test_what_no_worker_takes_says_since_when_and_why(polled: datetime | None, kind: str, reason: str) -> None:
    task = PendingWorkflowTaskInfo(attempt=1, original_scheduled_time=ago(40))
    step = pending(SCHEDULED, 1, scheduled_time=ago(40))
    assert [(each.kind, each.text) for each in found(step, task=task, polled=polled)] == [
        (kind, f"the run has waited 40.0 s for a worker: {reason}"),
        (kind, f"creating the Job has waited 40.0 s for a worker: {reason}"),
    ]


def test_a_workflow_task_that_is_repeated_names_replay() -> None:
    [obstacle] = found(task=PendingWorkflowTaskInfo(attempt=5, original_scheduled_time=ago(60)))
    assert obstacle.kind == "workflow_task_fails"
    assert "tried 5 times since 1 min 00 s" in obstacle.text
    assert "agent-runs replay" in obstacle.text


def reporting(details: bytes, state: PendingActivityState.ValueType = STARTED, **more: Any) -> PendingActivityInfo:
    heartbeat = Payloads(payloads=[Payload(data=details)])
    return pending(state, 1, last_started_time=ago(50), heartbeat_details=heartbeat, **more)


def test_why_a_step_waits_is_what_its_last_heartbeat_says() -> None:
    since = NOW - timedelta(seconds=34)
    quota = StartProgress(reason="Kubernetes refuses the pod: exceeded quota", since=since)
    lost = StreamProgress(lines=3, reason="node worker-2 does not answer", since=since)
    for progress in (quota, lost, StartProgress(reason="Job suspended")):
        with case(progress.reason):
            [obstacle] = found(reporting(progress.model_dump_json().encode()))
            began = progress.since or NOW - timedelta(seconds=50)
            assert (obstacle.kind, obstacle.reason, obstacle.since) == ("step_waits", progress.reason, began)
            duration = (NOW - began).total_seconds()
            assert obstacle.text == f"creating the Job, for {duration} s: {progress.reason}"


def test_a_step_that_says_nothing_of_the_kind_does_not_wait() -> None:
    just_now = StartProgress(reason="phase=Pending", since=NOW - timedelta(seconds=1)).model_dump_json().encode()
    works = StreamProgress(lines=3).model_dump_json().encode()
    assert [found(reporting(details)) for details in (just_now, works, b"null", b"[]", b"\xff", b"")] == [[]] * 6
    assert found(pending(STARTED, 1, last_started_time=ago(50))) == []
    assert found(reporting(b'{"reason": "an earlier try"}', SCHEDULED, scheduled_time=ago(1))) == []


def test_what_is_usual_for_seconds_is_an_obstacle_afterwards() -> None:
    def waits(seconds: float) -> list[Obstacle]:
        progress = StartProgress(reason="phase=Pending", since=NOW - timedelta(seconds=seconds))
        return found(reporting(progress.model_dump_json().encode()))

    def offered(seconds: float, attempt: int = 1, polled: float = 0) -> list[Obstacle]:
        step = pending(SCHEDULED, attempt, scheduled_time=ago(seconds), last_failure=UNAVAILABLE)
        return found(step, polled=NOW - timedelta(seconds=polled))

    def offered_run(seconds: float) -> list[Obstacle]:
        task = PendingWorkflowTaskInfo(attempt=1, original_scheduled_time=ago(seconds))
        return found(task=task, polled=NOW)

    def tried(seconds: float) -> list[Obstacle]:
        return found(pending(STARTED, 2, last_started_time=ago(seconds), last_failure=UNAVAILABLE))

    shown = {
        "a step waits": [waits(1.999), waits(2)],
        "nobody takes a step": [offered(5), offered(5.001)],
        "nobody takes a repeated step": [offered(4.999, 2), offered(5, 2), offered(5.001, 2)],
        "nobody takes a run": [offered_run(5), offered_run(5.001)],
        "workers are silent": [offered(9, polled=70), offered(9, polled=70.001)],
        "a repeated step works": [tried(19.999), tried(20)],
    }
    assert {
        name: ["".join(each.kind for each in obstacles) for obstacles in tries] for name, tries in shown.items()
    } == {
        "a step waits": ["", "step_waits"],
        "nobody takes a step": ["", "worker_busy"],
        "nobody takes a repeated step": ["step_fails", "", "worker_busy"],
        "nobody takes a run": ["", "worker_busy"],
        "workers are silent": ["worker_busy", "no_worker"],
        "a repeated step works": ["step_fails", ""],
    }


@dataclass(frozen=True)
class FakeHandle:
    """A run with one step that fails again and again."""

    status: WorkflowExecutionStatus

    async def describe(self) -> SimpleNamespace:
        failing = pending(STARTED, 3, last_started_time=Timestamp(), last_failure=UNAVAILABLE)
        failing.last_started_time.FromDatetime(datetime.now(UTC))
        raw = DescribeWorkflowExecutionResponse(pending_activities=[failing])
        none = TypedSearchAttributes([])
        return SimpleNamespace(
            status=self.status, task_queue="agent-runs", raw_description=raw, typed_search_attributes=none
        )


async def test_since_when_a_step_fails_is_that_of_its_open_try_and_not_of_an_earlier_attempt() -> None:
    steps = [Step("create_job", NOW - timedelta(hours=1), ended=NOW), Step("create_job", NOW)]
    for status, since in ((WorkflowExecutionStatus.RUNNING, [NOW]), (WorkflowExecutionStatus.COMPLETED, [])):
        handle = cast("WorkflowHandle[Any, Any]", FakeHandle(status))
        with case(status):
            assert [each.since for each in await read_obstacles(cast("Client", None), handle, steps)] == since
