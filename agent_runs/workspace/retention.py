"""Purges workspaces that are older than transcripts are kept, and blocks that no run needs any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from agent_runs.background import in_background
from agent_runs.workspace.store import WorkspaceDamaged, WorkspaceStore, WorkspacesUnavailable

log: Final[Any] = structlog.get_logger()

INTERVAL: Final = timedelta(hours=6)
"""A purge lists everything that is stored."""


@asynccontextmanager
async def collecting(
    store: WorkspaceStore | None, retention: timedelta | None, interval: timedelta = INTERVAL
) -> AsyncIterator[None]:
    """Purge now and every `interval`, until the block ends. Without a retention runs are kept, and unused blocks go."""
    if store is None:
        yield
        return
    async with in_background(_collect(store, retention, interval), "purge workspaces"):
        yield


async def _collect(store: WorkspaceStore, retention: timedelta | None, interval: timedelta) -> None:
    while True:
        try:
            for company in await store.companies():
                before = datetime.now(UTC) - retention if retention else datetime.min.replace(tzinfo=UTC)
                purged = await store.purge(company, before)
                if purged.runs or purged.objects:
                    log.info("workspaces.purged", company=company, **asdict(purged))
        except (WorkspacesUnavailable, WorkspaceDamaged) as error:
            log.warning("workspaces.purge_failed", error=str(error))
        await asyncio.sleep(interval.total_seconds())
