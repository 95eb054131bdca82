"""Whether another attempt follows, and which session it resumes. Pure: by the attempts so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import AgentStartHung
    from agent_runs.contracts.request import RunConfig, RunRequest, SessionParams
    from agent_runs.paperclip import result
    from workflows.attempt import Attempt

FIRST_RETRY_PAUSE: Final = timedelta(seconds=10)
"""Before the first retry; doubled for each further one."""
MAX_RETRY_PAUSE: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class RetryDecision:
    """How the run continues with another attempt.

    Attributes:
        pause: before the attempt, so that a broken node or registry has time to recover.
        reason: one line for the timer and the current details.
    """

    pause: timedelta
    reason: str


def next_attempt(attempts: Sequence[Attempt], config: RunConfig, *, has_message: bool = False) -> RetryDecision | None:
    """The attempt that follows the last one; None when the last one's outcome is the run's.

    An agent's own failure is never retried. A lost pod, node or image pull costs the infrastructure budget. An agent
    that hung before its first line is retried once. No attempt follows one whose pods are not known to be deleted.

    Args:
        has_message: a message waits for the agent, so an attempt follows also a success.
    """
    last = attempts[-1]
    if not last.pods_deleted:
        return None
    if last.session_refused and last.failure is None:
        return RetryDecision(timedelta(), "session unknown: start a fresh one")
    if last.succeeded and has_message:
        return RetryDecision(timedelta(), "a message is its next prompt")
    failure = last.known_failure
    if failure is None or failure.budget != "infrastructure":
        return None
    failures = [attempt.known_failure for attempt in attempts]
    if failure.code == AgentStartHung.code:
        hung = [earlier for earlier in failures if earlier and earlier.code == AgentStartHung.code]
        return RetryDecision(FIRST_RETRY_PAUSE, failure.code) if len(hung) == 1 else None
    lost = [earlier for earlier in failures if earlier and earlier.budget == "infrastructure"]
    if len(lost) > config.infrastructure_retries:
        return None
    pause = min(FIRST_RETRY_PAUSE * 2 ** (len(lost) - 1), MAX_RETRY_PAUSE)
    return RetryDecision(pause, failure.code)


def next_session(request: RunRequest, last: Attempt) -> SessionParams | None:
    """The session that the next attempt resumes: the one that the last attempt has left usable. None: a new one."""
    if last.session_id is None:
        return None
    if last.session is not None and last.session.session_id == last.session_id:
        return last.session
    return result.stored_session(request, last.session_id, ())
