import json
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from client.story import Story

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def event(number: int, kind: EventType.ValueType, seconds: float) -> HistoryEvent:
    found = HistoryEvent(event_id=number, event_type=kind)
    found.event_time.FromDatetime(START + timedelta(seconds=seconds))
    return found


def scheduled(number: int, seconds: float, activity: str, summary: str = "") -> HistoryEvent:
    found = event(number, EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, seconds)
    found.activity_task_scheduled_event_attributes.activity_type.name = activity
    found.user_metadata.summary.data = json.dumps(summary).encode()
    return found


def completed(number: int, seconds: float, of: int) -> HistoryEvent:
    found = event(number, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, seconds)
    found.activity_task_completed_event_attributes.scheduled_event_id = of
    return found


def begun() -> Story:
    story = Story()
    story.read(event(1, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, 0))
    return story


def test_each_phase_is_told_once_with_its_time_and_summary() -> None:
    story = begun()
    events = [
        scheduled(5, 1, "introspect_pod", "what it inherits"),
        scheduled(6, 1, "bundle_prompt"),
        completed(7, 2, 5),
        scheduled(11, 3, "create_job", "a-job"),
        completed(12, 4, 11),
        scheduled(13, 4, "parse_transcript"),
        scheduled(14, 5, "finish"),
        event(20, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED, 6),
    ]
    moments = [moment for one in events if (moment := story.read(one))]
    assert [(one.phase, one.elapsed.total_seconds(), one.detail) for one in moments] == [
        ("preparing", 1, "what it inherits"),
        ("creating", 3, "a-job"),
        ("finishing", 4, ""),
        ("ended", 6, ""),
    ]
    assert story.closed


def test_steps_have_their_own_times() -> None:
    story = begun()
    story.read(scheduled(5, 1, "create_job"))
    story.read(completed(6, 3.5, 5))
    story.read(scheduled(7, 4, "stream_logs"))
    took = [(step.name, step.ended - step.began if step.ended else None) for step in story.steps]
    assert took == [("create_job", timedelta(seconds=2.5)), ("stream_logs", None)]


def test_a_failed_step_is_trouble_with_its_name_and_reason() -> None:
    story = begun()
    story.read(scheduled(5, 1, "create_job"))
    failed = event(6, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED, 2)
    failed.activity_task_failed_event_attributes.scheduled_event_id = 5
    failure = failed.activity_task_failed_event_attributes.failure
    failure.message = "quota \x1b[31mexceeded"
    failure.application_failure_info.type = "k8s_job_create_failed"
    moment = story.read(failed)
    assert moment is not None
    assert moment.trouble
    assert moment.detail == "create_job failed: k8s_job_create_failed: quota exceeded"


def test_a_summary_that_is_not_ours_is_left_out() -> None:
    odd = scheduled(5, 1, "create_job")
    odd.user_metadata.summary.data = b"\xff{"
    moment = begun().read(odd)
    assert moment is not None
    assert moment.detail == ""
