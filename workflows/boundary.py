"""How a run's input comes in, and how its outcome decides the status that the workflow closes with."""

import asyncio
from datetime import timedelta

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import updates
    from agent_runs.contracts.errors import Failure, InvalidRequest, RunCancelled
    from agent_runs.contracts.outcome import Outcome, Stop
    from agent_runs.contracts.start import RunStart
    from agent_runs.paperclip import result
    from workflows import attributes

MAX_LISTED_FIELDS = 20


def run_start(start: RawValue) -> RunStart:
    """Decodes the workflow's input.

    Only this may fail a run: whatever else cannot be decoded fails a workflow task, which Temporal retries until a
    worker with a fitting version takes it.

    Raises:
        ApplicationError: names the fields that are wrong; the run fails with it, because no worker will ever read it.
    """
    try:
        decoded: RunStart = workflow.payload_converter().from_payload(start.payload, RunStart)
    except ValidationError as error:
        fields = [".".join(map(str, detail["loc"])) for detail in error.errors()[:MAX_LISTED_FIELDS]]
        raise _unreadable(f"the run's input has wrong, missing or unknown fields: {', '.join(fields)}") from None
    except (KeyError, RuntimeError, ValueError):
        raise _unreadable("the run's input is no JSON object; start runs with `agent-runs start`") from None
    return decoded


def _unreadable(reason: str) -> ApplicationError:
    """The failure of a run that never began, with an outcome as of every failed run."""
    failure = InvalidRequest.as_failure(f"{reason}; caller and worker must have the same version")
    return _failure(failure, result.outcome(None, failure=failure, stop=Stop(agent_stopped=True)))


def publish_end(outcome: Outcome, phase: str, model: str | None, retention: timedelta) -> None:
    """Shows in the search attributes that the run has ended, how, and until when its outcome is kept."""
    now = workflow.now()
    workflow.upsert_search_attributes(
        [
            attributes.RUN_PHASE.value_set(phase),
            attributes.ENDED_AT.value_set(now),
            *([attributes.MODEL.value_set(model)] if model else []),
            *([attributes.OUTCOME_KEPT_UNTIL.value_set(now + retention)] if retention else []),
            *([attributes.FAILURE_KIND.value_set(outcome.error_code)] if outcome.error_code else []),
        ]
    )


def close_with(outcome: Outcome) -> Outcome:
    """Closes the workflow with the status that the run deserves, so that Temporal's own filters and metrics are true.

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
