"""Queries over the attempts of many runs: usage of the runs of one page, totals, and the newest runs.

None of them touches a line. Those over time go along the index `attempts_by_opening`, the others along the primary key.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, ColumnElement, Connection, Row, Select, case, func, or_, select, type_coerce

from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.database import Database
from agent_runs.transcript.schema import EPOCH, attempts
from agent_runs.transcript.usage import RunUsage, Total, from_micros

PAGE_RUNS: Final = 1000
"""Runs of one query at the most."""
MAX_GROUPS: Final = 31
"""Totals of one kind at the most: the days of a month, the agents with the highest cost."""
_DAY: Final = 86_400_000_000

Grouping = Literal["agent", "company", "day"]


@dataclass(frozen=True)
class Selection:
    """Which attempts count. An attempt belongs to the day on which it was opened.

    Attributes:
        search: the beginning of a run's or an agent's id.
    """

    since: datetime = field(default=EPOCH)
    agent: str | None = None
    company: str | None = None
    model: str | None = None
    search: str = ""

    def conditions(self) -> list[ColumnElement[bool]]:
        wanted = (
            (attempts.c.agent_id, self.agent),
            (attempts.c.company_id, self.company),
            (attempts.c.model, self.model),
        )
        found = [attempts.c.opened_at >= self.since, *(column == value for column, value in wanted if value)]
        if self.search:
            of_any_agent = RunKey(agent_id="", company_id="", run_id=self.search).name
            of_run = attempts.c.run.contains(of_any_agent, autoescape=True)
            found.append(or_(of_run, attempts.c.agent_id.startswith(self.search, autoescape=True)))
        return found


class FleetQueries:
    """The queries of one store. Every method may raise TranscriptsUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, runs: Iterable[str]) -> dict[str, RunUsage]:
        """The usage of those of the runs with these names (`RunKey.name`) that the store knows; at most `PAGE_RUNS`.

        A run's id alone is the name of each agent's run with that id.
        """
        wanted = sorted(set(runs))[:PAGE_RUNS]
        return await self._database.read(lambda connection: _usage(connection, wanted)) if wanted else {}

    async def totals(self, selection: Selection) -> dict[Grouping, list[Total]]:
        """Totals by agent and by company, those with the highest cost first, and by day, newest first."""

        def fetch(connection: Connection) -> dict[Grouping, list[Total]]:
            return {
                name: [_total(row) for row in connection.execute(totals_query(selection, name))] for name in _GROUPS
            }

        return await self._database.read(fetch)

    async def newest(self, selection: Selection, before: datetime | None = None, limit: int = 50) -> list[RunUsage]:
        """The runs whose newest attempt was opened last, newest first, of those opened before a time."""

        def fetch(connection: Connection) -> list[RunUsage]:
            names = [run for (run,) in connection.execute(newest_query(selection, before, limit))]
            known = _usage(connection, names)
            return [known[run] for run in names if run in known]

        return await self._database.read(fetch)


def usage_query(runs: Sequence[str]) -> Select[Any]:
    """The attempts of these runs, along the primary key."""
    columns = (attempts.c[name] for name in _USAGE_COLUMNS)
    sealed = attempts.c.receipt.is_not(None).label("sealed")
    named = map(RunKey.named, runs)
    of_any = [key.name for key in named if key.run_id and not key.agent_id]
    of_runs = or_(attempts.c.run.in_(runs), *(attempts.c.run.endswith(name, autoescape=True) for name in of_any))
    return select(*columns, sealed).where(of_runs).order_by(attempts.c.run, attempts.c.attempt)


def newest_query(selection: Selection, before: datetime | None, limit: int) -> Select[Any]:
    """The names of the runs whose newest attempt was opened last."""
    later = attempts.alias("later")
    is_newest = ~(
        select(later.c.attempt)
        .where(later.c.run == attempts.c.run, later.c.attempt > attempts.c.attempt)
        .correlate(attempts)
        .exists()
    )
    earlier = [] if before is None else [attempts.c.opened_at < before]
    query = select(attempts.c.run).where(*selection.conditions(), *earlier, is_newest)
    return query.order_by(attempts.c.opened_at.desc()).limit(limit)


def totals_query(selection: Selection, grouping: Grouping) -> Select[Any]:
    """The totals, along the index of openings."""
    group = _GROUPS[grouping].label("name")
    cost = func.sum(attempts.c.cost_micros).label("cost_micros")
    unpriced = case(
        (attempts.c.cost_micros.is_(None) & (attempts.c.input_tokens + attempts.c.output_tokens > 0), 1), else_=0
    )
    query = select(
        group,
        func.count(attempts.c.run.distinct()).label("runs"),
        *(func.sum(attempts.c[name]).label(name) for name in ("input_tokens", "cached_tokens", "output_tokens")),
        cost,
        func.sum(unpriced).label("unpriced"),
    )
    first = group.desc() if grouping == "day" else func.coalesce(cost, 0).desc()
    return query.where(*selection.conditions()).group_by(group).order_by(first, group).limit(MAX_GROUPS)


_USAGE_COLUMNS: Final = (
    *("run", "attempt", "agent_id", "company_id", "input_tokens", "cached_tokens", "output_tokens", "steps"),
    *("cost_micros", "model", "last_output", "opened_at", "last_at"),
)
_GROUPS: Final[dict[Grouping, ColumnElement[Any]]] = {
    "agent": attempts.c.agent_id,
    "company": attempts.c.company_id,
    "day": type_coerce(attempts.c.opened_at, BigInteger) // _DAY,
}


def _usage(connection: Connection, runs: Sequence[str]) -> dict[str, RunUsage]:
    of_run: dict[str, list[Row[Any]]] = {}
    for row in connection.execute(usage_query(runs)):
        of_run.setdefault(row.run, []).append(row)
    return {run: _run_usage(rows) for run, rows in of_run.items()}


def _run_usage(rows: Sequence[Row[Any]]) -> RunUsage:
    """The sums over the rows of one run's attempts, ascending."""
    newest = rows[-1]
    return RunUsage(
        run_id=RunKey.named(newest.run).run_id,
        agent_id=newest.agent_id,
        company_id=newest.company_id,
        attempts=len(rows),
        input_tokens=sum(row.input_tokens or 0 for row in rows),
        cached_tokens=sum(row.cached_tokens or 0 for row in rows),
        output_tokens=sum(row.output_tokens or 0 for row in rows),
        steps=sum(row.steps or 0 for row in rows),
        cost_usd=from_micros(_sum_or_none(row.cost_micros for row in rows)),
        unpriced=sum(row.cost_micros is None and _tokens(row) > 0 for row in rows),
        model=next((row.model for row in reversed(rows) if row.model), ""),
        last_output=next((row.last_output for row in reversed(rows) if row.last_output), ""),
        opened_at=rows[0].opened_at,
        newest_at=newest.opened_at,
        last_at=max((row.last_at for row in rows if row.last_at is not None), default=None),
        sealed=bool(newest.sealed),
    )


def _total(row: Row[Any]) -> Total:
    """PostgreSQL's sums are decimal numbers."""
    name = (
        row.name
        if isinstance(row.name, str)
        else f"{EPOCH.fromtimestamp(int(row.name) * 86_400, EPOCH.tzinfo):%Y-%m-%d}"
    )
    counts = (int(row.input_tokens or 0), int(row.cached_tokens or 0), int(row.output_tokens or 0))
    cost = from_micros(None if row.cost_micros is None else int(row.cost_micros))
    return Total(name, row.runs, *counts, cost, int(row.unpriced or 0))


def _tokens(row: Row[Any]) -> int:
    return (row.input_tokens or 0) + (row.output_tokens or 0)


def _sum_or_none(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
