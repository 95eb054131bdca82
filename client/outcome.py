"""Fetches the outcome of a run, says that it has arrived, and cancels: what a caller does with a run it holds."""

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

from contracts import talk
from contracts.base import Contract
from contracts.errors import RunCancelled
from contracts.outcome import Outcome, Stop

Answer = TypeVar("Answer")

AGAIN: Final = timedelta(seconds=1)
HOPELESS: Final = frozenset(
    {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.INVALID_ARGUMENT}
)


class Closed(Exception):
    """The run is closed: it takes no updates any more."""


async def outcome_of(handle: WorkflowHandle[Any, Outcome], *, collect: bool) -> Outcome:
    """The outcome, as soon as there is one; waits through restarts of workers and of Temporal.

    Args:
        collect: say that it has arrived, so that the run need not keep it any longer. Only who started or joined the
            run does that, never who merely looks.

    Raises:
        WorkflowFailureError: the run ended without an outcome (terminated).
        RPCError: no such run, or not allowed.
    """
    try:
        outcome = await ask(handle, talk.OUTCOME, None, Outcome, name=talk.OUTCOME)
    except Closed:
        return await handle.result()
    if collect:
        with suppress(RPCError):  # it closed by itself; nobody waits for us then
            await handle.signal(talk.COLLECTED)
    return outcome


async def cancel(handle: WorkflowHandle[Any, Outcome], reason: str) -> talk.Cancelled:
    """Stops the run's agent and says what became of it. May be repeated, also after the end.

    Raises:
        WorkflowFailureError: the run ended without an outcome (terminated).
        RPCError: no such run, or not allowed.
    """
    try:
        return await ask(handle, talk.CANCEL, talk.Cancel(reason=reason), talk.Cancelled)
    except Closed:
        outcome = await handle.result()
        was_cancelled = outcome.error_code == RunCancelled.code
        return talk.Cancelled(
            outcome="cancelled" if was_cancelled else "ended before",
            stop=outcome.stop or Stop(agent_started=True, agent_stopped=True),
            session_id=outcome.session_id,
            failure_code=outcome.error_code,
        )


async def ask(
    handle: WorkflowHandle[Any, Any],
    update: str,
    order: Contract | None,
    answer: type[Answer],
    *,
    name: str | None = None,
    patience: timedelta | None = None,
) -> Answer:
    """One Update, asked again until it is answered.

    Args:
        name: of this request; whoever asks under the same name gets the same answer, without a new event.
        patience: for a worker to answer; None waits for one.

    Raises:
        Closed: the run takes no updates any more.
        TimeoutError: `patience` is over.
        WorkflowUpdateFailedError: refused.
    """
    arguments = [] if order is None else [order]
    while True:
        try:
            answered = await handle.execute_update(
                update, args=arguments, id=name, result_type=answer, rpc_timeout=patience
            )
            return cast("Answer", answered)
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            if isinstance(error.__cause__, asyncio.CancelledError):
                raise asyncio.CancelledError from None  # the SDK hides that it is we who were cancelled
            if patience is not None:
                raise TimeoutError(f"no worker answered within {patience}") from None
        except WorkflowUpdateFailedError as error:
            if _closed_meanwhile(error):
                raise Closed from None
            raise
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise Closed from None
            if error.status in HOPELESS:
                raise
            await asyncio.sleep(AGAIN.total_seconds())


def _closed_meanwhile(error: WorkflowUpdateFailedError) -> bool:
    """Temporal answers an update that its workflow accepted and could not end any more with a failure of its own."""
    return getattr(error.cause, "type", None) == "AcceptedUpdateCompletedWorkflow"
