"""The clocks beside a step: durable timers that end what takes too long, each with a name and a failure of its own."""

import asyncio
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from contracts.errors import AgentNeverSpoke, AgentSilent, Failure
    from contracts.identity import AttemptKey
    from contracts.messages import ExamineSilence, JobRef, PodRef, Silence
    from contracts.request import RunConfig
    from workflows.steps import EXAMINE_SILENCE

Out = TypeVar("Out")

SLACK: Final = timedelta(minutes=1)
"""Over an order's own clocks, so that the activity reports its patience by name before the story's timer ends it."""


class Overdue(Exception):
    """A clock ended before its step."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def within(limit: timedelta, name: str, step: workflow.ActivityHandle[Out], late: Failure) -> Out:
    """The step's result, if it comes in time; a step that is stopped is waited for.

    Raises:
        Overdue: with `late`.
        ActivityError: the step's own.
    """
    clock = asyncio.create_task(workflow.sleep(limit, summary=name))
    try:
        await workflow.wait([step, clock], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _cancelled(step)
        raise
    finally:
        clock.cancel()
    if step.done():
        return step.result()
    await _cancelled(step)
    raise Overdue(late)


async def settled(*steps: workflow.ActivityHandle[Any]) -> None:
    """Waits for steps side by side. When one fails the others are waited for: they may still make something that has
    to be cleaned up.

    Raises:
        ActivityError: of the first that failed.
    """
    try:
        await workflow.wait(steps)
    except asyncio.CancelledError:
        await _cancelled(*steps)
        raise
    for step in steps:
        step.result()


def made(step: workflow.ActivityHandle[Out]) -> Out | None:
    """What a step has made, also when nobody waited for it any longer."""
    return step.result() if step.done() and not step.cancelled() and step.exception() is None else None


async def _cancelled(*steps: workflow.ActivityHandle[Any]) -> None:
    for step in steps:
        step.cancel()
    await workflow.wait(steps)
    for step in steps:
        made(step)  # its error is seen, so that nobody logs it as forgotten


async def until_silent(config: RunConfig, key: AttemptKey, job: JobRef, pod: PodRef) -> Failure:
    """Waits until the agent has been silent for too long, by what its log and its container say at that moment.

    A timer alone would take lost contact for silence, so each time it ends the agent is looked at; nobody is stopped
    because we could not look.
    """
    spoke = not config.first_output_timeout_sec
    pause = _limit(config, spoke=spoke)
    while pause:
        await workflow.sleep(pause, summary="silence" if spoke else "silence before the first line")
        limit = _limit(config, spoke=spoke)
        order = ExamineSilence(attempt=key, job=job, pod=pod, first=not spoke, limit=limit)
        found = await _looked(order)
        spoke = spoke or found.spoke
        limit = _limit(config, spoke=spoke)
        silent_for = found.silent_for or timedelta()
        if limit and silent_for >= limit:
            return _silent(limit, found)
        pause = max(limit - silent_for, timedelta(seconds=1)) if limit else timedelta()
    never: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
    return await never  # no limit on silence


async def _looked(order: ExamineSilence) -> Silence:
    try:
        return await EXAMINE_SILENCE(order, "last words, processes")
    except ActivityError:
        return Silence()


def _limit(config: RunConfig, *, spoke: bool) -> timedelta:
    return timedelta(seconds=config.silence_timeout_sec if spoke else config.first_output_timeout_sec)


def _silent(limit: timedelta, found: Silence) -> Failure:
    """What was seen before anything was stopped."""
    seen = [f"last words: {found.last_words}"] if found.last_words else []
    seen += [f"processes: {', '.join(found.processes)}"] if found.processes else []
    if not found.spoke:
        return AgentNeverSpoke.as_failure("; ".join([f"no first line within {int(limit.total_seconds())}s", *seen]))
    return AgentSilent.as_failure("; ".join([f"no line for {int(limit.total_seconds())}s", *seen]))
