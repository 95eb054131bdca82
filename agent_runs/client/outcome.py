"""Fetches the outcome of a run, acknowledges it, and cancels the run."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from temporalio.client import (
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.contracts import updates
from agent_runs.contracts.base import Contract
from agent_runs.contracts.errors import RunCancelled
from agent_runs.contracts.outcome import Outcome, Stop

Result = TypeVar("Result")

UPDATE_RETRY_INTERVAL: Final = timedelta(seconds=1)
NON_RETRYABLE: Final = frozenset(
    {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.INVALID_ARGUMENT}
)


class RunClosed(Exception):
    """The run is closed: it takes no updates any more."""


async def fetch_outcome(handle: WorkflowHandle[Any, Outcome], *, collect: bool) -> Outcome:
    """Wait for the outcome, through restarts of workers and of Temporal.

    Args:
        collect: acknowledge the outcome, so that the run need not retain it any longer. Only for a caller that started
            or joined the run, never for an observer.

    Raises:
        WorkflowFailureError: the run ended without an outcome (terminated).
        RPCError: no such run, or not allowed.
    """
    try:
        outcome = await execute_update(handle, updates.OUTCOME, None, Outcome, update_id=updates.OUTCOME)
    except RunClosed:
        return await handle.result()
    if collect:
        with suppress(RPCError):  # the run has closed: nothing is retained any more
            await handle.signal(updates.COLLECTED)
    return outcome


async def cancel(handle: WorkflowHandle[Any, Outcome], reason: str) -> updates.Cancelled:
    """Stop the run's agent and return the result. May be repeated, also after the run's end.

    Raises:
        WorkflowFailureError: the run ended without an outcome (terminated).
        RPCError: no such run, or not allowed.
    """
    try:
        return await execute_update(handle, updates.CANCEL, updates.Cancel(reason=reason), updates.Cancelled)
    except RunClosed:
        outcome = await handle.result()
        was_cancelled = outcome.error_code == RunCancelled.code
        return updates.Cancelled(
            outcome="cancelled" if was_cancelled else "ended before",
            stop=outcome.stop or Stop(agent_started=True, agent_stopped=True),
            session_id=outcome.session_id,
            failure_code=outcome.error_code,
        )


async def execute_update(
    handle: WorkflowHandle[Any, Any],
    update: str,
    input: Contract | None,
    result_type: type[Result],
    *,
    update_id: str | None = None,
    wait_limit: timedelta | None = None,
) -> Result:
    """Execute an Update, and retry it until there is a result.

    Args:
        update_id: a repeated Update with the same id gets the same result, without a new event.
        wait_limit: for a worker's answer; None: no limit.

    Raises:
        RunClosed: the run takes no updates any more.
        TimeoutError: no worker answered within `wait_limit`.
        WorkflowUpdateFailedError: the run refused the Update.
    """
    arguments = [] if input is None else [input]
    while True:
        try:
            result = await handle.execute_update(
                update, args=arguments, id=update_id, result_type=result_type, rpc_timeout=wait_limit
            )
            return cast("Result", result)
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise asyncio.CancelledError from None  # the SDK hides that this task was cancelled
            if wait_limit is not None:
                raise TimeoutError(f"no worker answered within {wait_limit}") from None
        except WorkflowUpdateFailedError as error:
            if _run_closed(error):
                raise RunClosed from None
            raise
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise RunClosed from None
            if error.status in NON_RETRYABLE:
                raise
            await asyncio.sleep(UPDATE_RETRY_INTERVAL.total_seconds())


def _run_closed(error: WorkflowUpdateFailedError) -> bool:
    """Whether the workflow closed before the accepted Update was complete: the server's own failure then."""
    return getattr(error.cause, "type", None) == "AcceptedUpdateCompletedWorkflow"
