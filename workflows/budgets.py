"""Whether a run makes another attempt, and on whose budget. Pure: decided from what the attempts so far have shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from contracts.errors import AgentNeverSpoke
    from contracts.request import RunConfig
    from workflows.attempt import Attempt

FIRST_PAUSE: Final = timedelta(seconds=10)
LONGEST_PAUSE: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class Again:
    """Another attempt.

    Attributes:
        resume: the id of the session to go on with; None for a fresh one.
        pause: before it, so that a broken node or registry has time to mend.
        why: one line for the timer and the card.
    """

    resume: str | None
    pause: timedelta
    why: str


def another(attempts: Sequence[Attempt], config: RunConfig) -> Again | None:
    """What follows the last attempt; None when its outcome is the run's.

    An agent's own failure never repeats by itself. A lost pod, node or image pull costs the infrastructure's budget
    and goes on with the same session. OpenCode that hung before its first line is tried once more. Nothing follows an
    attempt whose pod is not known to be gone.
    """
    last = attempts[-1]
    if not last.gone:
        return None
    if last.session_refused and last.failure is None:
        return Again(None, timedelta(), "the session is unknown: a fresh one")
    failure = last.known_failure
    if failure is None or failure.budget != "infrastructure":
        return None
    spent = [attempt.known_failure for attempt in attempts]
    if failure.code == AgentNeverSpoke.code:
        hung = [found for found in spent if found and found.code == AgentNeverSpoke.code]
        return Again(_session(last), FIRST_PAUSE, failure.code) if len(hung) == 1 else None
    lost = [found for found in spent if found and found.budget == "infrastructure"]
    if len(lost) > config.infrastructure_retries:
        return None
    return Again(_session(last), min(FIRST_PAUSE * 2 ** (len(lost) - 1), LONGEST_PAUSE), failure.code)


def _session(last: Attempt) -> str | None:
    """The session the lost attempt had, as far as its database is still there."""
    if last.session_id is not None:
        return last.session_id
    return last.session.session_id if last.session is not None else None
