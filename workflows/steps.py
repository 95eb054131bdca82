"""The steps of a run as the workflow calls them: name, result, time-outs and retries, each with its reason.

Facts behind the numbers were measured with temporalio 1.35 on a dev server; see docs/temporal.md.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from contracts.base import Contract
    from contracts.messages import (
        AwaitSchedule,
        BundlePrompt,
        CreateJob,
        ExamineSilence,
        Finish,
        Finished,
        IntrospectPod,
        JobRef,
        Leftovers,
        ParseTranscript,
        PodProfile,
        PodRef,
        PromptBundle,
        ReapLeftovers,
        RotateToken,
        Silence,
        StopAgent,
        StreamEnd,
        StreamLogs,
    )
    from contracts.outcome import Report

In = TypeVar("In", bound=Contract)
Out = TypeVar("Out")

FIRST_PAUSE: Final = timedelta(seconds=1)
"""Doubled with each try. Tries are unlimited: what cannot be helped by repeating says so itself (`RunError.final`), and
every hand-over between workers costs one, so a maximum would end healthy runs."""

HEARTBEAT: Final = timedelta(seconds=30)
"""Rides out a Temporal server that is away for 25 s; a killed worker is noticed within it."""


@dataclass(frozen=True)
class Step(Generic[In, Out]):
    """One activity as the story calls it.

    Attributes:
        attempt: longest time for one try (start to close).
        altogether: longest time for all tries with their back-off; None for no limit.
        longest_pause: between tries. Every worker that goes costs a try, so a long step must not be punished for many.
    """

    name: str
    result: type[Out]
    attempt: timedelta
    altogether: timedelta | None = None
    heartbeat: timedelta | None = None
    longest_pause: timedelta = timedelta(seconds=30)

    def start(
        self, order: In, summary: str, *, attempt: timedelta | None = None, altogether: timedelta | None = None
    ) -> workflow.ActivityHandle[Out]:
        """Schedules the step. `attempt` and `altogether` replace the step's own limits when the order has its clock.

        A cancelled step is waited for: its activity stops what it was doing before the story goes on.
        """
        return workflow.start_activity(
            self.name,
            order,
            result_type=self.result,
            summary=summary,
            start_to_close_timeout=attempt or self.attempt,
            schedule_to_close_timeout=altogether or self.altogether,
            heartbeat_timeout=self.heartbeat,
            retry_policy=RetryPolicy(
                initial_interval=FIRST_PAUSE, backoff_coefficient=2.0, maximum_interval=self.longest_pause
            ),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )

    def __call__(self, order: In, summary: str, *, attempt: timedelta | None = None) -> Awaitable[Out]:
        """Schedules the step and waits for it."""
        return self.start(order, summary, attempt=attempt)


API_CALLS: Final = timedelta(minutes=1)
"""A few calls to the API server, each with a time-out of its own well below this."""
API_OUTAGE: Final = timedelta(minutes=15)
"""An API server may be away this long before a step that has nothing running gives up."""

INTROSPECT_POD: Final = Step[IntrospectPod, PodProfile]("introspect_pod", PodProfile, API_CALLS, API_OUTAGE)
BUNDLE_PROMPT: Final = Step[BundlePrompt, PromptBundle]("bundle_prompt", PromptBundle, API_CALLS, API_OUTAGE)
CREATE_JOB: Final = Step[CreateJob, JobRef]("create_job", JobRef, API_CALLS, API_OUTAGE)
REAP_LEFTOVERS: Final = Step[ReapLeftovers, Leftovers](
    "reap_leftovers", Leftovers, timedelta(minutes=5), timedelta(hours=1), heartbeat=HEARTBEAT
)
AWAIT_SCHEDULE: Final = Step[AwaitSchedule, PodRef](
    "await_schedule", PodRef, attempt=timedelta(hours=1), heartbeat=HEARTBEAT, longest_pause=timedelta(seconds=3)
)
STREAM_LOGS: Final = Step[StreamLogs, StreamEnd](
    "stream_logs", StreamEnd, attempt=timedelta(days=30), heartbeat=HEARTBEAT, longest_pause=timedelta(seconds=3)
)
"""Lives as long as the agent: only its heartbeat and the story's own clocks end it."""
EXAMINE_SILENCE: Final = Step[ExamineSilence, Silence]("examine_silence", Silence, API_CALLS, timedelta(minutes=2))
"""Short: what cannot be looked at now is looked at when the clock ends the next time."""
ROTATE_TOKEN: Final = Step[RotateToken, bool]("rotate_token", bool, API_CALLS, API_OUTAGE, heartbeat=HEARTBEAT)
"""Beside the agent's work, which never waits for it."""
STOP_AGENT: Final = Step[StopAgent, bool]("stop_agent", bool, timedelta(seconds=15))
"""Its order comes with the grace as its limit."""
PARSE_TRANSCRIPT: Final = Step[ParseTranscript, Report](
    "parse_transcript", Report, attempt=timedelta(minutes=10), heartbeat=HEARTBEAT
)
FINISH: Final = Step[Finish, Finished](
    "finish", Finished, timedelta(minutes=5), timedelta(hours=1), heartbeat=HEARTBEAT
)
