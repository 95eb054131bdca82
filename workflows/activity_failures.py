"""The named failure behind an activity that failed."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception  # noqa: A004

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import activities
    from agent_runs.contracts.errors import (
        ClusterUnavailable,
        Failure,
        PodScheduleFailed,
        PodStartFailed,
        RunCancelled,
        failure_of,
    )
    from agent_runs.contracts.messages import StartProgress
    from agent_runs.contracts.request import RunConfig
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
    if error.activity_type == activities.await_schedule.__name__:
        return _start_timeout(run.config, cause)
    return ClusterUnavailable.as_failure(f"{error.activity_type} did not end in time: {cause}")


def _start_timeout(config: RunConfig, cause: BaseException | None) -> Failure:
    """What it means that `await_schedule` was ended from outside: the last heartbeat says how far the pod had come."""
    details = cause.last_heartbeat_details if isinstance(cause, TimeoutError) else ()
    unknown = "and the cluster does not say why"
    if details and StartProgress.model_validate(details[0]).scheduled:
        return PodStartFailed.as_failure(
            f"the agent's container did not run within {config.start_timeout_sec}s, {unknown}"
        )
    return PodScheduleFailed.as_failure(f"no node took the pod within {config.schedule_timeout_sec}s, {unknown}")
