"""Small checks side by side, each with its own deadline: one that hangs or fails hides none of the others."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog

from agent_runs.contracts.errors import RunError
from agent_runs.contracts.start import Finding

log: Final[Any] = structlog.get_logger()


@dataclass(frozen=True)
class Check:
    """One question to the surroundings of a run.

    Attributes:
        subject: what is checked, for the text of a failure.
        ask: returns what was found; a `RunError` that it raises is a finding, too.
    """

    subject: str
    ask: Callable[[], Awaitable[Sequence[Finding]]]


async def run_checks(checks: Sequence[Check], limit: timedelta) -> Sequence[Finding]:
    """Return what all checks find, in their order. `limit` is the time of each."""
    found = await asyncio.gather(*(_found(check, limit) for check in checks))
    return [finding for of_check in found for finding in of_check]


async def _found(check: Check, limit: timedelta) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(limit.total_seconds()):
            return await check.ask()
    except TimeoutError:
        late = f"No answer within {limit.total_seconds():.0f} s about {check.subject}"
        return [Finding.error("check_timeout", late, "Test again; then look for its cause.")]
    except RunError as error:
        return [Finding.error(error.code, error.message, error.next_step)]
    except Exception as error:  # noqa: BLE001 - a library's own error says something about one check only
        log.warning("check.failed", subject=check.subject, error=type(error).__name__)
        message = f"The check of {check.subject} failed: {type(error).__name__}"
        return [Finding.error("check_failed", message, "Read the worker's log.")]
