"""The named failure behind an activity that failed."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception  # noqa: A004

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import (
        ClusterUnavailable,
        Failure,
        RunCancelled,
        failure_of,
    )
    from workflows.run_state import RunState


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
