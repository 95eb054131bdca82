"""Lists the runs in a transcript store, which nothing but tests needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select

from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.schema import attempts
from agent_runs.transcript.store import TranscriptStore


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The totals over a run's attempts. `sealed` is that of the newest attempt."""

    run_id: str
    agent_id: str
    company_id: str
    attempts: int
    lines: int
    bytes: int
    started_at: datetime | None
    last_at: datetime | None
    sealed: bool


async def stored_runs(store: TranscriptStore, limit: int = 100) -> list[StoredRun]:
    """The newest runs first."""
    opened = func.min(attempts.c.opened_at)
    newest = select(attempts.c.run, opened).group_by(attempts.c.run).order_by(opened.desc())
    order = [run for run, _ in await store._database.rows(newest.limit(limit))]
    by_run: dict[str, list[Row[Any]]] = {run: [] for run in order}
    rows = select(attempts).where(attempts.c.run.in_(order)).order_by(attempts.c.attempt)
    for row in await store._database.rows(rows):
        by_run[row.run].append(row)
    return [_stored_run(rows) for rows in by_run.values() if rows]


def _stored_run(rows: Sequence[Row[Any]]) -> StoredRun:
    """Attempts of one run, ascending."""
    starts = [row.first_at for row in rows if row.first_at is not None]
    ends = [row.last_at for row in rows if row.last_at is not None]
    newest = rows[-1]
    return StoredRun(
        run_id=RunKey.named(newest.run).run_id,
        agent_id=newest.agent_id,
        company_id=newest.company_id,
        attempts=len(rows),
        lines=sum(row.lines for row in rows),
        bytes=sum(row.bytes for row in rows),
        started_at=min(starts, default=None),
        last_at=max(ends, default=None),
        sealed=newest.receipt is not None,
    )
