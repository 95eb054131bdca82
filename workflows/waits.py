"""Waiting for concurrent activities."""

import asyncio
from typing import Any, TypeVar

from temporalio import workflow

Out = TypeVar("Out")


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
