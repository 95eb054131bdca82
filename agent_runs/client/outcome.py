"""Fetches the outcome of a run, acknowledges it, and cancels the run."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal, Self, TypeVar, cast

from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, is_cancelled_exception
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.contracts import updates
from agent_runs.contracts.base import Contract, PaperclipContract
from agent_runs.contracts.errors import RunCancelled
from agent_runs.contracts.outcome import Outcome, Stop

Result = TypeVar("Result")

RPC_RETRY_INTERVAL: Final = timedelta(seconds=1)
QUERY_INTERVAL: Final = timedelta(seconds=5)
QUERY_TIMEOUT: Final = timedelta(seconds=10)
NON_RETRYABLE: Final = frozenset(
    {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.INVALID_ARGUMENT}
)

TASK_FAILED: Final = re.compile(r"\bworkflow task (in failed state|failure)\b", re.IGNORECASE)
"""In the message of a server whose workers cannot read the run: a worker of another version may."""


class RunClosed(Exception):
    """The run is closed: it takes no updates any more."""


class UpdatesSpent(Exception):
    """The run is open, and Temporal accepts no more updates of it."""


class Cancelled(PaperclipContract):
    """The result of a cancel.

    Attributes:
        outcome: `cancelled`, or `ended before`: the run already had an outcome of its own.
        failure_code: of the outcome; None when the run had succeeded before the cancel.
    """

    outcome: Literal["cancelled", "ended before"]
    stop: Stop
    session_id: str | None = None
    failure_code: str | None = None

    @classmethod
    def by(cls, outcome: Outcome) -> Self:
        return cls(
            outcome="cancelled" if outcome.error_code == RunCancelled.code else "ended before",
            stop=outcome.stop or Stop(agent_started=True),
            session_id=outcome.session_id,
            failure_code=outcome.error_code,
        )


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
        try:
            outcome = await execute_update(handle, updates.OUTCOME, None, Outcome, update_id=updates.OUTCOME)
        except UpdatesSpent:
            outcome = await _queried_outcome(handle)
    except RunClosed:
        return await outcome_at_close(handle)
    if collect:
        with suppress(RPCError):  # the run has closed: nothing is retained any more
            await handle.signal(updates.COLLECTED)
    return outcome


async def _queried_outcome(handle: WorkflowHandle[Any, Outcome]) -> Outcome:
    """Wait for the outcome of a run that accepts no more updates: it is asked for again and again.

    Raises:
        RunClosed: the run is closed, or Temporal does not know it.
        RPCError: a retry would not help.
    """
    outcome: Outcome | None = None
    while outcome is None:
        if (await _until_answered(handle.describe)).status is not WorkflowExecutionStatus.RUNNING:
            raise RunClosed
        with suppress(WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError):  # no worker answers
            answer = await handle.query(updates.OUTCOME, rpc_timeout=QUERY_TIMEOUT)
            outcome = Outcome.model_validate(answer) if answer else None
        await asyncio.sleep(QUERY_INTERVAL.total_seconds() if outcome is None else 0)
    return outcome


async def outcome_at_close(handle: WorkflowHandle[Any, Outcome]) -> Outcome:
    """Wait for the close of the run; its outcome is the same whether it closed Completed, Failed or Canceled.

    It may have notes that one which was fetched before lacks: what the clean-up has found since.

    Raises:
        WorkflowFailureError: the run ended without an outcome (terminated).
        RPCError: no such run, or not allowed.
    """
    try:
        return await result_at_close(handle)
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.details:
            return Outcome.model_validate(error.cause.details[0])
        if is_cancelled_exception(error.cause):
            described = await _until_answered(handle.describe)
            kept: Outcome | None = await described.memo_value(updates.OUTCOME, default=None, type_hint=Outcome)
            if kept is not None:
                return kept
        raise


async def result_at_close(handle: WorkflowHandle[Any, Result]) -> Result:
    """As `handle.result`, through outages: a busy server may end the wait.

    Raises:
        WorkflowFailureError: the run has failed.
        RPCError: no such run, or not allowed.
    """
    while True:
        try:
            return await handle.result()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise
            await _pause_after(error)


async def request_cancel(handle: WorkflowHandle[Any, Outcome], reason: str) -> None:
    """Have the run cancelled. On return the request is in the run's history, so it survives restarts of everything and
    needs no worker. May be repeated: the first reason counts. Does nothing to a closed run.

    Raises:
        RPCError: not allowed.
    """
    with suppress(RunClosed):
        await _until_answered(lambda: handle.cancel(reason=reason))


async def cancel(handle: WorkflowHandle[Any, Outcome], reason: str) -> Cancelled:
    """Stop the run's agent and return the result. May be repeated, also after the run's end.

    Raises:
        WorkflowFailureError: the run ended without an outcome (terminated).
        RPCError: no such run, or not allowed.
    """
    await request_cancel(handle, reason)
    return Cancelled.by(await fetch_outcome(handle, collect=False))


async def execute_update(
    handle: WorkflowHandle[Any, Any],
    update: str,
    input: Contract | None,
    result_type: type[Result],
    *,
    update_id: str,
) -> Result:
    """Execute an Update, and retry it until there is a result.

    Args:
        update_id: a repeated Update with the same id gets the same result, without a new event.

    Raises:
        RunClosed: the run takes no updates any more.
        UpdatesSpent: Temporal has accepted as many updates of the run as it may.
        WorkflowUpdateFailedError: the run refused the Update.
    """
    arguments = [] if input is None else [input]
    while True:
        try:
            result = await handle.execute_update(update, args=arguments, id=update_id, result_type=result_type)
            return cast("Result", result)
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise asyncio.CancelledError from None  # the SDK hides that this task was cancelled
        except WorkflowUpdateFailedError as error:
            if _run_closed(error):
                raise RunClosed from None
            raise
        except RPCError as error:
            if error.status is RPCStatusCode.FAILED_PRECONDITION and not TASK_FAILED.search(error.message):
                raise UpdatesSpent from None
            await _pause_after(error)


async def _until_answered(call: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat an idempotent call until Temporal answers it.

    Raises:
        RunClosed: the run is closed, or Temporal does not know it.
        RPCError: a retry would not help.
    """
    while True:
        try:
            return await call()
        except RPCError as error:
            await _pause_after(error)


async def _pause_after(error: RPCError) -> None:
    """Wait before a retry, if the error is one that a retry can help."""
    if error.status is RPCStatusCode.NOT_FOUND:
        raise RunClosed from None
    if error.status in NON_RETRYABLE:
        raise error
    await asyncio.sleep(RPC_RETRY_INTERVAL.total_seconds())


def _run_closed(error: WorkflowUpdateFailedError) -> bool:
    """Whether the workflow closed before the accepted Update was complete: the server's own failure then."""
    return getattr(error.cause, "type", None) == "AcceptedUpdateCompletedWorkflow"
