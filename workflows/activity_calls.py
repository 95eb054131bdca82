"""What the calls of a run's activities share: time-outs, retries, the wait for several, the failure behind one.

Facts behind the numbers were measured with temporalio 1.35 on a dev server; see docs/temporal.md.
"""

import asyncio
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception  # noqa: A004

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import ClusterUnavailable, Failure, RunCancelled, failure_of
    from workflows.run_state import RunState

Out = TypeVar("Out")

API_CALLS: Final = timedelta(minutes=1)
"""A few calls to the API server, each with a time-out of its own well below this."""
API_OUTAGE: Final = timedelta(minutes=15)
"""How long an API server may be unavailable before an activity of a run that has nothing running yet fails."""
WITHOUT_WORKERS: Final = timedelta(hours=24)
"""How long a run waits for a worker that can open its request: nothing has been created that could be lost. A wrong
request is refused at once; a fault that has no name must not be retried for ever."""

HEARTBEAT_TIMEOUT: Final = timedelta(seconds=30)
"""Outlasts a Temporal server that is unavailable for 25 s. Every activity sends heartbeats, so that a cancel reaches it
within 2 s, whatever it waits for."""
SHORT_HEARTBEAT_TIMEOUT: Final = timedelta(seconds=10)
"""For `stream_logs` and the steps before the agent, for which people wait: a killed worker is replaced within it. An
activity attempt that only loses its server for so long is replaced, too: it costs no line and creates nothing twice."""

RETRIES: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=30)
)
"""The number of activity attempts is not limited: an error that retrying cannot help is non-retryable itself
(`RunError.retryable`), and every worker hand-off costs an activity attempt, so a maximum would fail healthy runs."""
RETRIES_AT_ONCE: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=1)
)
"""For activities as long as a run: every worker that stops costs one, and the next must come soon however many there
were. A store that is unavailable is retried less often (`TranscriptsUnavailable.retry_delay`)."""

WAIT_CANCELLATION_COMPLETED: Final = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
"""So that a cancelled activity creates and stores nothing any more when the workflow continues."""


async def wait_all(*steps: workflow.ActivityHandle[Any]) -> None:
    """Waits for all of these concurrent activities, also when one of them fails: the others may still create something
    that has to be cleaned up.

    Raises:
        ActivityError: of the first one that failed, in the order of the arguments.
    """
    try:
        await workflow.wait(steps)
    except asyncio.CancelledError:
        await _cancel_and_wait(*steps)
        raise
    for step in steps:
        step.result()


def result_or_none(step: workflow.ActivityHandle[Out]) -> Out | None:
    """The activity's result; None if it has not ended, failed or was cancelled."""
    return step.result() if step.done() and not step.cancelled() and step.exception() is None else None


async def _cancel_and_wait(*steps: workflow.ActivityHandle[Any]) -> None:
    for step in steps:
        step.cancel()
    await workflow.wait(steps)
    for step in steps:
        result_or_none(step)  # retrieves the exception, so that asyncio does not log it as never retrieved


def failure_of_activity(run: RunState, error: ActivityError) -> Failure:
    """The named failure that made an activity fail."""
    cause = error.cause
    if is_cancelled_exception(error):
        return run.stopped_by or RunCancelled.as_failure("Run cancelled")
    if isinstance(cause, TimeoutError):
        cause = cause.cause or cause
    if isinstance(cause, ApplicationError):
        return failure_of(cause)
    return ClusterUnavailable.as_failure(f"{error.activity_type} did not end in time: {cause}")
