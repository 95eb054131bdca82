"""Purges old transcripts, a page at a time, so that no run waits for more than one page.

Age is that of the last line. A sealed attempt is purged after the configured retention. An unsealed one may still be
written by an agent that has been silent for long, so it is purged only when no agent can be at work on it any more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from agent_runs.background import in_background
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.transcript.store import Expiry, Purged, TranscriptStore
from agent_runs.transcript.tokens import LINK_LIFETIME

log: Final[Any] = structlog.get_logger()

MAX_RUN_TIME: Final = timedelta(days=31)
"""`stream_logs` may follow an agent for 30 days; an unsealed attempt older than this was abandoned."""
PURGE_INTERVAL: Final = timedelta(hours=1)


async def purge(store: TranscriptStore, retention: timedelta, now: datetime) -> Purged:
    """Delete every transcript whose last line is older than `retention`; an interrupted purge is completed by the next.

    Revocations of links go once every link from before them has expired.

    Raises:
        TranscriptsUnavailable: the store does not answer.
    """
    expiry = Expiry(sealed=now - retention, all=now - max(retention, MAX_RUN_TIME))
    purged = Purged()
    while page := await store.purge_page(expiry):
        purged += page
        await asyncio.sleep(0)  # waiting writers first
    await store.forget_revocations(now - max(retention, LINK_LIFETIME))
    return purged


@asynccontextmanager
async def purging(
    store: TranscriptStore, retention: timedelta | None, interval: timedelta = PURGE_INTERVAL
) -> AsyncIterator[None]:
    """Purge now and every `interval`, until the block ends. Without a retention nothing is purged."""
    if retention is None:
        yield
        return
    async with in_background(_purge_periodically(store, retention, interval), "purge transcripts"):
        yield


async def _purge_periodically(store: TranscriptStore, retention: timedelta, interval: timedelta) -> None:
    while True:
        try:
            purged = await purge(store, retention, datetime.now(UTC))
        except TranscriptsUnavailable as error:
            log.warning("transcripts.purge_failed", error=str(error))
        else:
            if purged.attempts:
                log.info("transcripts.purged", **asdict(purged))
        await asyncio.sleep(interval.total_seconds())
