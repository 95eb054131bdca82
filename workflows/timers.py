"""Waiting for concurrent activities, and what it means when a limit is exceeded."""

import asyncio
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.exceptions import TimeoutError  # noqa: A004 - Temporal's name

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import AgentSilent, AgentStartHung, Failure, PodScheduleFailed, PodStartFailed
    from agent_runs.contracts.messages import Silence, StartProgress
    from agent_runs.contracts.request import RunConfig

Out = TypeVar("Out")

START_MARGIN: Final = timedelta(minutes=1)
"""Added to the limits that `await_schedule` enforces itself, so that its own, more precise failure comes first."""


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


def start_timeout_failure(config: RunConfig, cause: BaseException | None) -> Failure:
    """What it means that `await_schedule` was ended from outside: the last heartbeat says how far the pod had come."""
    details = cause.last_heartbeat_details if isinstance(cause, TimeoutError) else ()
    unknown = "and the cluster does not say why"
    if details and StartProgress.model_validate(details[0]).scheduled:
        return PodStartFailed.as_failure(
            f"the agent's container did not run within {config.start_timeout_sec}s, {unknown}"
        )
    return PodScheduleFailed.as_failure(f"no node took the pod within {config.schedule_timeout_sec}s, {unknown}")


def silence_failure(silence: Silence) -> Failure:
    """The failure, with what was observed before the agent was stopped."""
    last_output = silence.progress.last_output
    observed = [f"last output: {last_output}"] if last_output else []
    observed += [f"processes: {', '.join(silence.processes)}"] if silence.processes else []
    seconds = f"{silence.limit.total_seconds():.0f}s"
    if not silence.has_output:
        return AgentStartHung.as_failure("; ".join([f"no first line within {seconds}", *observed]))
    return AgentSilent.as_failure("; ".join([f"no line for {seconds}", *observed]))
