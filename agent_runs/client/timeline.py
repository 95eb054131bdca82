"""The timeline of a run: a pure fold over the events of its history, with their own times.

Reading events instead of polling the run's state shows every phase once, however short, with exact times, and needs no
worker. A run has some forty events, whatever its output.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.client.outcome import NON_RETRYABLE
from agent_runs.contracts.messages import BudgetLimit
from agent_runs.contracts.request import Capabilities
from agent_runs.contracts.updates import BUDGET_WARNING, BudgetWarning
from agent_runs.transcript.events import printable
from workflows.attributes import RUN_PHASE
from workflows.current_details import FINAL_PHASES

PHASES: Final = {
    "prepare_run": "preparing",
    "introspect_pod": "preparing",
    "bundle_prompt": "preparing",
    "create_job": "creating",
    "await_schedule": "scheduling",
    "stream_logs": "running",
    "tell_agent": "sending the agent a message",
    "stop_agent": "stopping",
    "parse_transcript": "finishing",
    "finish": "finishing",
}
"""The phase that an activity belongs to."""

CLOSING_EVENTS: Final = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "ended",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed out",
}
STEPS: Final = {
    "prepare_run": "checking the request",
    "introspect_pod": "reading the worker's pod",
    "bundle_prompt": "building the prompt",
    "create_job": "creating the Job",
    "await_schedule": "waiting for the pod",
    "stream_logs": "following the agent's output",
    "rotate_token": "handing over a new token",
    "stop_agent": "stopping the agent",
    "parse_transcript": "judging the output",
    "finish": "deleting Job and Secrets",
}
"""Activities in words for people."""
FIRST_OF_ATTEMPT: Final = "introspect_pod"
"""The activity with which every attempt of a run begins."""
WARNINGS: Final = {
    "prepare_run": "notes",
    "bundle_prompt": "warnings",
    "create_job": "warnings",
    "stream_logs": "warnings",
}
"""Activities whose results have sentences for people, and the field that has them."""
FACTS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "prepare_run": {
        "agent": ("agent", "name"),
        "model": ("config", "model"),
        "task": ("context", "taskId"),
        "woken by": ("context", "wakeReason"),
    },
    "await_schedule": {"pod": ("name",), "node": ("node",)},
}
"""What a run is: where the results of its activities have it, by its name for people."""
MAX_WARNING: Final = 500
MAX_DETAIL: Final = 200
HISTORY_RETRY_INTERVAL: Final = timedelta(seconds=1)


@dataclass(frozen=True)
class PhaseChange:
    """A run reached a phase, or (`failed`) one of its activities failed. `elapsed` counts from the run's start."""

    phase: str
    elapsed: timedelta
    at: datetime
    detail: str = ""
    failed: bool = False


@dataclass
class Step:
    """One activity of the run. `ended` is None while it is open; `attempt` is the run's, from 1 on."""

    name: str
    started: datetime
    ended: datetime | None = None
    failed: bool = False
    attempt: int = 1

    @property
    def words(self) -> str:
        return STEPS.get(self.name, self.name.replace("_", " "))


@dataclass
class Timeline:
    """The state of the fold.

    Attributes:
        closed: the run has its outcome or is closed; it may stay open until a caller has fetched the outcome.
        warnings: what the steps have warned of, each once, such as instructions that could not be read.
        facts: what the run is, by its name for people: agent, task, pod, node and the like.
        reasons: why each attempt that failed has failed.
        capabilities: what its agent can do, once the run has been prepared.
    """

    started: datetime | None = None
    closed: bool = False
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    capabilities: Capabilities | None = None
    _attempt: int = 0
    _warned: set[BudgetLimit] = field(default_factory=set)
    _by_event: dict[int, Step] = field(default_factory=dict)
    _phase: str = ""

    def add(self, event: HistoryEvent) -> PhaseChange | None:
        """Add the next event; returns the phase change that it means, if any."""
        at = event.event_time.ToDatetime(tzinfo=UTC)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            self.started = at
            return self._at("queued", at)
        if event.event_type in CLOSING_EVENTS:
            already_ended, self.closed = self.closed, True
            return None if already_ended else self._at(CLOSING_EVENTS[event.event_type], at)
        if event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
            return self._phase_set(event, at)
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            return self._scheduled(event, at)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            self._take_warning(event)
        return self._activity_ended(event, at)

    def _take_warning(self, event: HistoryEvent) -> None:
        """Takes a budget's warning, the first one of each limit, as the run does."""
        signal = event.workflow_execution_signaled_event_attributes
        with suppress(ValueError, IndexError):
            warning = BudgetWarning.model_validate_json(signal.input.payloads[0].data)
            if signal.signal_name == BUDGET_WARNING and warning.limit not in self._warned:
                self._warned.add(warning.limit)
                self.warnings.append(printable(warning.text, MAX_WARNING))

    def _phase_set(self, event: HistoryEvent, at: datetime) -> PhaseChange | None:
        """A final phase means that the run has its outcome."""
        attributes = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
        if RUN_PHASE.name not in attributes or _text(attributes[RUN_PHASE.name].data) not in FINAL_PHASES:
            return None
        self.closed = True
        return self._at("ended", at)

    def _scheduled(self, event: HistoryEvent, at: datetime) -> PhaseChange | None:
        name = event.activity_task_scheduled_event_attributes.activity_type.name
        if name == FIRST_OF_ATTEMPT:
            self._attempt += 1
            self.facts = {fact: text for fact, text in self.facts.items() if fact not in FACTS["await_schedule"]}
        step = self._by_event[event.event_id] = Step(name, at, attempt=max(self._attempt, 1))
        self.steps.append(step)
        phase = PHASES.get(name, name)
        return self._at(phase, at, _summary(event)) if phase != self._phase else None

    def _activity_ended(self, event: HistoryEvent, at: datetime) -> PhaseChange | None:
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                step = self._end(completed.scheduled_event_id, at)
                if step is not None:
                    self._learn(step, completed.result)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
                self._end(event.activity_task_canceled_event_attributes.scheduled_event_id, at)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                failed = event.activity_task_failed_event_attributes
                return self._failed(failed.scheduled_event_id, at, failed.failure)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
                timed_out = event.activity_task_timed_out_event_attributes
                return self._failed(timed_out.scheduled_event_id, at, timed_out.failure)
        return None

    def _failed(self, scheduled: int, at: datetime, failure: Any) -> PhaseChange:
        step = self._end(scheduled, at)
        kind = failure.application_failure_info.type or "time-out"
        name = "an activity"
        if step is not None:
            step.failed, name = True, step.name
        detail = printable(f"{name} failed: {kind}: {failure.message}", MAX_DETAIL * 2)
        if step is not None:
            self.reasons.setdefault(step.attempt, detail)
        return PhaseChange(self._phase, at - (self.started or at), at, detail, failed=True)

    def _end(self, scheduled: int, at: datetime) -> Step | None:
        step = self._by_event.get(scheduled)
        if step is not None:
            step.ended = at
        return step

    def _learn(self, step: Step, result: Payloads) -> None:
        """Takes what a step's result says: facts of the run, sentences for people, why an attempt has failed."""
        found = _json(result.payloads[0].data) if result.payloads else None
        if not isinstance(found, dict):
            return
        if step.name in WARNINGS:
            texts = found.get(WARNINGS[step.name])
            listed = texts if isinstance(texts, list) else []
            warnings = [printable(text, MAX_WARNING) for text in listed if isinstance(text, str)]
            self.warnings = list(dict.fromkeys([*self.warnings, *warnings]))
        if step.name == "parse_transcript" and isinstance(failure := found.get("failure"), dict):
            code, message = failure.get("code"), failure.get("message")
            self.reasons[step.attempt] = printable(f"{code}: {message}", MAX_WARNING)
        if step.name == "prepare_run":
            with suppress(ValidationError):
                self.capabilities = Capabilities.model_validate(found.get("capabilities"))
        for name, path in FACTS.get(step.name, {}).items():
            if isinstance(text := _at_path(found, path), str) and text:
                self.facts[name] = printable(text, MAX_DETAIL)

    def _at(self, phase: str, at: datetime, detail: str = "") -> PhaseChange:
        self._phase = phase
        return PhaseChange(phase, at - (self.started or at), at, detail)


async def events(handle: WorkflowHandle[Any, Any], *, follow: bool) -> AsyncGenerator[HistoryEvent]:
    """Yield the run's events, each once; with `follow` until the run is closed, through outages of the server.

    Raises:
        RPCError: the run is not known, or (without `follow`) the server does not answer.
    """
    seen = 0
    while True:
        try:
            async for event in handle.fetch_history_events(wait_new_event=follow):
                if event.event_id > seen:
                    seen = event.event_id
                    yield event
        except RPCError as error:
            if not follow or error.status in NON_RETRYABLE | {RPCStatusCode.NOT_FOUND}:
                raise
            await asyncio.sleep(HISTORY_RETRY_INTERVAL.total_seconds())
        else:
            return


async def read_timeline(handle: WorkflowHandle[Any, Any]) -> Timeline:
    """Read the timeline up to now.

    Raises:
        RPCError: the run is not known, or the server does not answer.
    """
    timeline = Timeline()
    async with aclosing(events(handle, follow=False)) as history:
        async for event in history:
            timeline.add(event)
    return timeline


def _at_path(found: dict[str, Any], path: Sequence[str]) -> Any:
    value: Any = found
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _summary(event: HistoryEvent) -> str:
    return printable(_text(event.user_metadata.summary.data), MAX_DETAIL)


def _text(data: bytes) -> str:
    """A JSON string, else nothing."""
    value = _json(data)
    return value if isinstance(value, str) else ""


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
