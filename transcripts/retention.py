"""Forgets old transcripts, a page at a time, so that no run waits for more than one page.

Age is that of the last line. What is sealed goes after the days that were asked for. What is not may still be written
by an agent that has been silent for long, so it goes only when no agent can be at work on it any more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import structlog

from contracts.errors import TranscriptsUnavailable
from transcripts.store import Expiry, Forgotten

log: Final[Any] = structlog.get_logger()

LONGEST_RUN: Final = timedelta(days=31)
"""A step may follow an agent for 30 days; an unsealed attempt older than this was abandoned."""
PERIOD: Final = timedelta(hours=1)


class Forgetful(Protocol):
    """What retention needs of a store."""

    async def forget(self, expiry: Expiry) -> Forgotten | None:
        """Delete a page of an expired transcript; None: nothing is expired."""
        ...


@dataclass
class Swept:
    """What one round deleted."""

    attempts: int = 0
    lines: int = 0
    bytes: int = 0


async def sweep(store: Forgetful, keep: timedelta, now: datetime) -> Swept:
    """Forget every transcript whose last line is older than `keep`. Interrupted, it goes on with the next round.

    Raises:
        TranscriptsUnavailable: the store does not answer.
    """
    expiry = Expiry(sealed=now - keep, all=now - max(keep, LONGEST_RUN))
    swept = Swept()
    while page := await store.forget(expiry):
        swept.attempts += page.whole
        swept.lines += page.lines
        swept.bytes += page.bytes
        await asyncio.sleep(0)  # whoever waits to write comes first
    return swept


@asynccontextmanager
async def sweeping(store: Forgetful, keep: timedelta | None, period: timedelta = PERIOD) -> AsyncIterator[None]:
    """Sweep now and every `period`, for as long as the body lasts. None keeps everything."""
    if keep is None:
        yield
        return
    task = asyncio.create_task(_sweep_for_ever(store, keep, period), name="sweep transcripts")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _sweep_for_ever(store: Forgetful, keep: timedelta, period: timedelta) -> None:
    while True:
        try:
            swept = await sweep(store, keep, datetime.now(UTC))
        except TranscriptsUnavailable as error:
            log.warning("transcripts.sweep_failed", error=str(error))
        else:
            if swept.attempts:
                log.info("transcripts.swept", attempts=swept.attempts, lines=swept.lines, bytes=swept.bytes)
        await asyncio.sleep(period.total_seconds())
