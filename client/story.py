"""The story of a run as its history tells it: a pure fold over Temporal's events, each with its own clock.

Reading events instead of asking again and again shows every phase once, however short, with exact times, and needs no
worker. A run has some forty events, whatever its output.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from opencode.events import printable
from workflows.attributes import RUN_PHASE
from workflows.card import FINAL

PHASES: Final = {
    "introspect_pod": "preparing",
    "bundle_prompt": "preparing",
    "reap_leftovers": "preparing",
    "create_job": "creating",
    "await_schedule": "scheduling",
    "stream_logs": "running",
    "examine_silence": "running",
    "stop_agent": "stopping",
    "parse_transcript": "finishing",
    "finish": "finishing",
}
"""Which phase a step of the card belongs to."""

ENDS: Final = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "ended",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed out",
}
DETAIL: Final = 200
AGAIN: Final = timedelta(seconds=1)


@dataclass(frozen=True)
class Moment:
    """A run reached a phase, or a step of it failed. `elapsed` counts from the run's start."""

    phase: str
    elapsed: timedelta
    at: datetime
    detail: str = ""
    trouble: bool = False


@dataclass
class Step:
    """One step of the card, an activity."""

    name: str
    began: datetime
    ended: datetime | None = None
    failed: bool = False


@dataclass
class Story:
    """What the events so far tell."""

    began: datetime | None = None
    closed: bool = False
    steps: list[Step] = field(default_factory=list)
    _by_event: dict[int, Step] = field(default_factory=dict)
    _phase: str = ""

    def read(self, event: HistoryEvent) -> Moment | None:
        """Take the next event; the moment it makes, if it makes one."""
        at = event.event_time.ToDatetime(tzinfo=UTC)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            self.began = at
            return self._at("queued", at)
        if event.event_type in ENDS:
            told, self.closed = self.closed, True
            return None if told else self._at(ENDS[event.event_type], at)
        if event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
            return self._decided(event, at)
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            return self._scheduled(event, at)
        return self._settled(event, at)

    def _decided(self, event: HistoryEvent, at: datetime) -> Moment | None:
        """The run has its outcome; it may stay open until a caller has fetched that."""
        attributes = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
        if RUN_PHASE.name not in attributes or _text(attributes[RUN_PHASE.name].data) not in FINAL:
            return None
        self.closed = True
        return self._at("ended", at)

    def _scheduled(self, event: HistoryEvent, at: datetime) -> Moment | None:
        name = event.activity_task_scheduled_event_attributes.activity_type.name
        step = self._by_event[event.event_id] = Step(name, at)
        self.steps.append(step)
        phase = PHASES.get(name, name)
        return self._at(phase, at, _summary(event)) if phase != self._phase else None

    def _settled(self, event: HistoryEvent, at: datetime) -> Moment | None:
        """An activity ended, one way or another."""
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                self._end(event.activity_task_completed_event_attributes.scheduled_event_id, at)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
                self._end(event.activity_task_canceled_event_attributes.scheduled_event_id, at)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                failed = event.activity_task_failed_event_attributes
                return self._trouble(failed.scheduled_event_id, at, failed.failure)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
                late = event.activity_task_timed_out_event_attributes
                return self._trouble(late.scheduled_event_id, at, late.failure)
        return None

    def _trouble(self, scheduled: int, at: datetime, failure: Any) -> Moment:
        step = self._end(scheduled, at)
        kind = failure.application_failure_info.type or "time-out"
        name = "a step"
        if step is not None:
            step.failed, name = True, step.name
        told = printable(f"{name} failed: {kind}: {failure.message}", DETAIL * 2)
        return Moment(self._phase, at - (self.began or at), at, told, trouble=True)

    def _end(self, scheduled: int, at: datetime) -> Step | None:
        step = self._by_event.get(scheduled)
        if step is not None:
            step.ended = at
        return step

    def _at(self, phase: str, at: datetime, detail: str = "") -> Moment:
        self._phase = phase
        return Moment(phase, at - (self.began or at), at, detail)


async def events(handle: WorkflowHandle[Any, Any], *, live: bool) -> AsyncGenerator[HistoryEvent]:
    """The run's events, each once; with `live` on to the run's end, through outages of the server.

    Raises:
        RPCError: the run is not known, or (not `live`) the server does not answer.
    """
    seen = 0
    while True:
        try:
            async for event in handle.fetch_history_events(wait_new_event=live):
                if event.event_id > seen:
                    seen = event.event_id
                    yield event
        except RPCError as error:
            if not live or error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED}:
                raise
            await asyncio.sleep(AGAIN.total_seconds())
        else:
            return


def _summary(event: HistoryEvent) -> str:
    """What our workflow says about a step."""
    return printable(_text(event.user_metadata.summary.data), DETAIL)


def _text(data: bytes) -> str:
    """A JSON string, else nothing."""
    try:
        told = json.loads(data)
    except ValueError:
        return ""
    return told if isinstance(told, str) else ""
