"""The activities as the workflow calls them: name, result type, time-outs and retry policy, each with its reason.

Facts behind the numbers were measured with temporalio 1.35 on a dev server; see docs/temporal.md.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.base import Contract
    from agent_runs.contracts.messages import (
        AwaitSchedule,
        BundlePrompt,
        CleanUpPreviousRuns,
        CreateJob,
        DeletedObjects,
        Finish,
        Finished,
        IntrospectPod,
        JobRef,
        ParseTranscript,
        PodProfile,
        PodRef,
        PromptBundle,
        RotateToken,
        StopAgent,
        StreamEnd,
        StreamLogs,
    )
    from agent_runs.contracts.outcome import Report

In = TypeVar("In", bound=Contract)
Out = TypeVar("Out")

INITIAL_INTERVAL: Final = timedelta(seconds=1)
"""Before the second activity attempt; doubled with each further one. Their number is not limited: an error that
retrying cannot help is non-retryable itself (`RunError.retryable`), and every worker hand-off costs an activity
attempt, so a maximum would fail healthy runs."""

HEARTBEAT: Final = timedelta(seconds=30)
"""For activities that hold nobody up: outlasts a Temporal server that is unavailable for 25 s."""
STREAM_HEARTBEAT: Final = timedelta(seconds=10)
"""For `stream_logs`: a killed worker is replaced within it. An activity attempt that only loses its server for so long
is replaced, too, which costs no line."""


@dataclass(frozen=True)
class Step(Generic[In, Out]):
    """One activity with its options.

    Attributes:
        start_to_close: limit of one activity attempt.
        schedule_to_close: limit of all activity attempts with their back-off; None for no limit.
        heartbeat: heartbeat time-out; None for an activity without heartbeats.
        maximum_interval: between activity attempts. Every worker that stops costs one, so a long activity must not wait
            longer with each.
    """

    name: str
    result: type[Out]
    start_to_close: timedelta
    schedule_to_close: timedelta | None = None
    heartbeat: timedelta | None = None
    maximum_interval: timedelta = timedelta(seconds=30)

    def start(
        self, input: In, summary: str, *, schedule_to_close: timedelta | None = None
    ) -> workflow.ActivityHandle[Out]:
        """Schedules the activity. `schedule_to_close` replaces the step's own limit.

        A cancelled activity is waited for: it has stopped what it was doing before the workflow continues.
        """
        return workflow.start_activity(
            self.name,
            input,
            result_type=self.result,
            summary=summary,
            start_to_close_timeout=self.start_to_close,
            schedule_to_close_timeout=schedule_to_close or self.schedule_to_close,
            heartbeat_timeout=self.heartbeat,
            retry_policy=RetryPolicy(
                initial_interval=INITIAL_INTERVAL, backoff_coefficient=2.0, maximum_interval=self.maximum_interval
            ),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )

    def __call__(self, input: In, summary: str) -> Awaitable[Out]:
        """Schedules the activity and waits for it."""
        return self.start(input, summary)


API_CALLS: Final = timedelta(minutes=1)
"""A few calls to the API server, each with a time-out of its own well below this."""
API_OUTAGE: Final = timedelta(minutes=15)
"""How long an API server may be unavailable before an activity of a run that has nothing running yet fails."""

INTROSPECT_POD: Final = Step[IntrospectPod, PodProfile]("introspect_pod", PodProfile, API_CALLS, API_OUTAGE)
BUNDLE_PROMPT: Final = Step[BundlePrompt, PromptBundle]("bundle_prompt", PromptBundle, API_CALLS, API_OUTAGE)
CREATE_JOB: Final = Step[CreateJob, JobRef]("create_job", JobRef, API_CALLS, API_OUTAGE)
CLEAN_UP_PREVIOUS_RUNS: Final = Step[CleanUpPreviousRuns, DeletedObjects](
    "clean_up_previous_runs", DeletedObjects, timedelta(minutes=5), timedelta(hours=1), heartbeat=HEARTBEAT
)
AWAIT_SCHEDULE: Final = Step[AwaitSchedule, PodRef](
    "await_schedule", PodRef, timedelta(hours=1), heartbeat=HEARTBEAT, maximum_interval=timedelta(seconds=3)
)
STREAM_LOGS: Final = Step[StreamLogs, StreamEnd](
    "stream_logs", StreamEnd, timedelta(days=30), heartbeat=STREAM_HEARTBEAT, maximum_interval=INITIAL_INTERVAL
)
"""Runs as long as the agent: only its heartbeat time-out and the workflow end it. The next worker comes soon, however
many there were; a store that is unavailable is retried less often (`TranscriptsUnavailable.retry_delay`)."""
ROTATE_TOKEN: Final = Step[RotateToken, bool]("rotate_token", bool, API_CALLS, API_OUTAGE, heartbeat=HEARTBEAT)
"""Runs concurrently with the agent, which never waits for it."""
STOP_AGENT: Final = Step[StopAgent, bool]("stop_agent", bool, timedelta(seconds=15))
"""Scheduled with the agent's grace as its `schedule_to_close`."""
PARSE_TRANSCRIPT: Final = Step[ParseTranscript, Report](
    "parse_transcript", Report, timedelta(minutes=10), heartbeat=HEARTBEAT
)
FINISH: Final = Step[Finish, Finished](
    "finish", Finished, timedelta(minutes=5), timedelta(hours=1), heartbeat=HEARTBEAT
)
