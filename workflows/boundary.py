"""Decodes what is sent to a workflow, and closes it with the status that its outcome deserves.

Whatever was sent, it must not fail a workflow task: the run would take no cancel from then on.
"""

import asyncio
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import updates
    from agent_runs.contracts.errors import Failure, InvalidRequest, RunCancelled
    from agent_runs.contracts.outcome import Outcome, Stop
    from agent_runs.contracts.start import RunStart
    from agent_runs.paperclip import result

MAX_LISTED_FIELDS = 20
ABSENT: Final = RawValue(Payload())
"""Stands for an argument that was not sent."""
SAME_VERSION: Final = "start runs with `agent-runs start` or Paperclip's plugin, in the worker's own version"
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
_Decoded = TypeVar("_Decoded")


class Unreadable(ValueError):
    """What Temporal handed over is not what was expected. The text names the wrong fields and quotes no value."""


def decode(raw: object, wanted: type[_Decoded]) -> _Decoded:
    """Decodes an argument of a start, a signal or an update.

    Raises:
        Unreadable: there is none, it is null, or it is something else.
    """
    try:
        value = workflow.payload_converter().from_payload(raw.payload, wanted) if isinstance(raw, RawValue) else None
    except ValidationError as error:
        fields = [".".join(map(str, detail["loc"])) for detail in error.errors()[:MAX_LISTED_FIELDS]]
        raise Unreadable(f"has wrong, missing or unknown fields: {', '.join(filter(None, fields)) or 'all'}") from None
    except (KeyError, RuntimeError, ValueError):
        value = None
    if not isinstance(value, wanted):
        raise Unreadable(f"is no {wanted.__name__}")
    return value


def one_argument(handler: _Handler) -> _Handler:
    """Lets a handler that takes one `RawValue` be called with any number of arguments.

    The SDK calls it with what was sent. A `TypeError` would fail this workflow task and every later one.
    """

    @wraps(handler)
    def call(self: object, *sent: object) -> Any:
        return handler(self, *(sent if len(sent) == 1 else (ABSENT,)))

    @wraps(handler)
    async def call_async(self: object, *sent: object) -> Any:
        return await call(self, *sent)

    return cast("_Handler", call_async if iscoroutinefunction(handler) else call)


def run_start(start: RawValue) -> RunStart:
    """Decodes the workflow's input.

    Raises:
        ApplicationError: names the fields that are wrong; the run fails with it, because no worker will ever read it.
    """
    try:
        return decode(start, RunStart)
    except Unreadable as error:
        failure = InvalidRequest.as_failure(f"the run's input {error}; {SAME_VERSION}")
    # the outcome of a run that never began is like that of every failed run
    raise _failure(failure, result.outcome(None, failure=failure, stop=Stop(agent_stopped=True)))


def close_with(outcome: Outcome) -> Outcome:
    """Closes the workflow as completed, failed or cancelled, so that Temporal's own filters and metrics are true.

    Raises:
        ApplicationError: of a failed run: its type is the failure's code, its details are the outcome.
        CancelledError: of a cancelled run, whose outcome is then in the memo.
    """
    if outcome.failure is None:
        return outcome
    if outcome.failure.code == RunCancelled.code and workflow.cancellation_reason() is not None:
        workflow.upsert_memo({updates.OUTCOME: outcome})
        raise asyncio.CancelledError
    raise _failure(outcome.failure, outcome)


def _failure(failure: Failure, outcome: Outcome) -> ApplicationError:
    return ApplicationError(failure.message, outcome, type=failure.code, non_retryable=True)
