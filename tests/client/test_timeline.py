import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.client import timeline as timelines
from agent_runs.client.timeline import MAX_WARNING, PHASES, Timeline
from agent_runs.contracts import activities
from tests.support.cases import case

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def event(number: int, kind: EventType.ValueType, seconds: float) -> HistoryEvent:
    new = HistoryEvent(event_id=number, event_type=kind)
    new.event_time.FromDatetime(START + timedelta(seconds=seconds))
    return new


def scheduled(number: int, seconds: float, activity: str, summary: str = "") -> HistoryEvent:
    new = event(number, EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, seconds)
    new.activity_task_scheduled_event_attributes.activity_type.name = activity
    new.user_metadata.summary.data = json.dumps(summary).encode()
    return new


def completed(number: int, seconds: float, of: int) -> HistoryEvent:
    new = event(number, EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED, seconds)
    new.activity_task_completed_event_attributes.scheduled_event_id = of
    return new


def started_timeline() -> Timeline:
    timeline = Timeline()
    timeline.add(event(1, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, 0))
    return timeline


def test_each_phase_comes_once_with_its_time_and_summary() -> None:
    timeline = started_timeline()
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
    changes = [change for one in events if (change := timeline.add(one))]
    assert [(one.phase, one.elapsed.total_seconds(), one.detail) for one in changes] == [
        ("preparing", 1, "what it inherits"),
        ("creating", 3, "a-job"),
        ("finishing", 4, ""),
        ("ended", 6, ""),
    ]
    assert timeline.closed


def test_every_activity_of_a_run_belongs_to_a_phase_except_those_beside_it() -> None:
    names = {reference.__name__ for reference in activities.ALL}
    assert names - PHASES.keys() == {"rotate_token", "check_configuration", "try_pod"}


def test_steps_have_their_own_times() -> None:
    timeline = started_timeline()
    timeline.add(scheduled(5, 1, "create_job"))
    timeline.add(completed(6, 3.5, 5))
    timeline.add(scheduled(7, 4, "stream_logs"))
    took = [(step.name, step.ended - step.started if step.ended else None) for step in timeline.steps]
    assert took == [("create_job", timedelta(seconds=2.5)), ("stream_logs", None)]


def test_a_failed_step_is_reported_with_its_name_and_reason() -> None:
    timeline = started_timeline()
    timeline.add(scheduled(5, 1, "create_job"))
    failed = event(6, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED, 2)
    failed.activity_task_failed_event_attributes.scheduled_event_id = 5
    failure = failed.activity_task_failed_event_attributes.failure
    failure.message = "quota \x1b[31mexceeded"
    failure.application_failure_info.type = "k8s_job_create_failed"
    change = timeline.add(failed)
    assert change is not None
    assert change.failed
    assert change.detail == "create_job failed: k8s_job_create_failed: quota exceeded"


def with_result(done: HistoryEvent, result: object) -> HistoryEvent:
    data = result if isinstance(result, bytes) else json.dumps(result).encode()
    done.activity_task_completed_event_attributes.result.payloads.add(data=data)
    return done


def test_what_steps_warn_of_is_known_once_their_result_is_whatever_else_they_return() -> None:
    timeline = started_timeline()
    results: dict[str, object] = {
        "prepare_run": {"notes": ["instructions not readable", "session lost \x1b[31m"]},
        "introspect_pod": {"warnings": ["of no step that warns"]},
        "bundle_prompt": {"warnings": ["instructions not readable", 7, None, "x" * 9000]},
        "create_job": b"\xff{",
    }
    for number, (name, result) in enumerate(results.items()):
        timeline.add(scheduled(5 + 2 * number, 1, name))
        timeline.add(with_result(completed(6 + 2 * number, 2, 5 + 2 * number), result))
    without: list[object] = [None, [], {"warnings": 7}, {"warnings": {"a": 1}}, "text"]
    for number, odd in enumerate(without):
        timeline.add(scheduled(50 + 2 * number, 3, "create_job"))
        timeline.add(with_result(completed(51 + 2 * number, 3, 50 + 2 * number), odd))
    assert timeline.warnings[:2] == ["instructions not readable", "session lost"]
    assert len(timeline.warnings) == 3
    assert len(timeline.warnings[2]) <= MAX_WARNING


def test_a_summary_that_is_no_json_string_is_left_out() -> None:
    odd = scheduled(5, 1, "create_job")
    odd.user_metadata.summary.data = b"\xff{"
    change = started_timeline().add(odd)
    assert change is not None
    assert change.detail == ""


def test_pod_and_node_are_those_of_the_attempt_that_is_made() -> None:
    timeline = started_timeline()
    timeline.add(scheduled(5, 1, "introspect_pod"))
    timeline.add(scheduled(6, 1, "await_schedule"))
    ended = completed(7, 2, 6)
    payload = ended.activity_task_completed_event_attributes.result.payloads.add()
    payload.data = b'{"name": "first-1", "node": "worker-1"}'
    timeline.add(ended)
    assert timeline.facts == {"pod": "first-1", "node": "worker-1"}
    timeline.add(scheduled(8, 3, "introspect_pod"))
    assert timeline.facts == {}


class Refused:
    """A run whose events Temporal refuses, once with each of these statuses."""

    def __init__(self, *statuses: RPCStatusCode) -> None:
        self.statuses = list(statuses)

    async def fetch_history_events(self, **_: Any) -> AsyncIterator[HistoryEvent]:
        if self.statuses:
            raise RPCError("x", self.statuses.pop(0), b"")
        yield event(1, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, 0)


async def test_a_follower_waits_through_an_outage_and_not_for_a_server_that_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timelines, "HISTORY_RETRY_INTERVAL", timedelta())

    async def followed(*statuses: RPCStatusCode) -> list[int]:
        run = cast("WorkflowHandle[Any, Any]", Refused(*statuses))
        return [each.event_id async for each in timelines.events(run, follow=True)]

    assert await followed(RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED) == [1]
    for status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
        with case(status), pytest.raises(RPCError):
            await asyncio.wait_for(followed(status), 60)
