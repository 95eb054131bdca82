"""Durable timers that limit activities and the agent, each with a name and a failure of its own."""

import asyncio
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import AgentSilent, AgentStartHung, Failure
    from agent_runs.contracts.identity import AttemptKey
    from agent_runs.contracts.messages import ExamineSilence, JobRef, PodRef, Silence
    from agent_runs.contracts.request import RunConfig
    from workflows.steps import EXAMINE_SILENCE

Out = TypeVar("Out")

TIMER_MARGIN: Final = timedelta(minutes=1)
"""Added to a limit that the activity itself enforces, so that the activity's named failure comes before the timer's."""


class TimerExpired(Exception):
    """A timer expired before its activity ended; `failure` says what that means for the attempt."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def with_timeout(
    limit: timedelta, timer_name: str, step: workflow.ActivityHandle[Out], on_expiry: Failure
) -> Out:
    """The activity's result, if it comes within `limit`; a cancelled activity is waited for.

    Raises:
        TimerExpired: with `on_expiry`.
        ActivityError: the activity's own.
    """
    timer = asyncio.create_task(workflow.sleep(limit, summary=timer_name))
    try:
        await workflow.wait([step, timer], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _cancel_and_wait(step)
        raise
    finally:
        timer.cancel()
    if step.done():
        return step.result()
    await _cancel_and_wait(step)
    raise TimerExpired(on_expiry)


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


async def wait_for_silence(config: RunConfig, key: AttemptKey, job: JobRef, pod: PodRef) -> Failure:
    """Returns once the agent has been silent for too long, according to its log and its container at that moment.

    A timer alone would mistake lost contact for silence, so whenever it expires the agent is examined; no agent is
    stopped because it could not be examined. Never returns when the configuration sets no limit on silence.
    """
    has_output = not config.first_output_timeout_sec
    pause = _silence_limit(config, has_output=has_output)
    while pause:
        await workflow.sleep(pause, summary="silence" if has_output else "silence before the first line")
        limit = _silence_limit(config, has_output=has_output)
        silence = await _examine_silence(
            ExamineSilence(attempt=key, job=job, pod=pod, before_first_line=not has_output, limit=limit)
        )
        has_output = has_output or silence.has_output
        limit = _silence_limit(config, has_output=has_output)
        silent_for = silence.silent_for or timedelta()
        if limit and silent_for >= limit:
            return _silence_failure(limit, silence)
        pause = max(limit - silent_for, timedelta(seconds=1)) if limit else timedelta()
    never: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
    return await never


async def _examine_silence(input: ExamineSilence) -> Silence:
    try:
        return await EXAMINE_SILENCE(input, "examine silence")
    except ActivityError:
        return Silence()


def _silence_limit(config: RunConfig, *, has_output: bool) -> timedelta:
    return timedelta(seconds=config.silence_timeout_sec if has_output else config.first_output_timeout_sec)


def _silence_failure(limit: timedelta, silence: Silence) -> Failure:
    """The failure, with what was observed before the agent was stopped."""
    observed = [f"last output: {silence.last_output}"] if silence.last_output else []
    observed += [f"processes: {', '.join(silence.processes)}"] if silence.processes else []
    seconds = int(limit.total_seconds())
    if not silence.has_output:
        return AgentStartHung.as_failure("; ".join([f"no first line within {seconds}s", *observed]))
    return AgentSilent.as_failure("; ".join([f"no line for {seconds}s", *observed]))
