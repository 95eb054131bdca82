"""Collects what the list of runs shows: runs from Temporal, usage and totals from the store.

Temporal has the last word on what runs and how it ended, the store on tokens, cost and last output. When one of them is
away, the page says so and shows what the other one knows.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Self, TypeVar
from urllib.parse import quote

from agent_runs.client.names import Names
from agent_runs.client.run_list import PAGE_RUNS, RunFilter, RunsUnavailable
from agent_runs.client.runs import RunSummary
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.fleet import Grouping, Selection
from agent_runs.transcript.schema import EPOCH
from agent_runs.transcript.store import TranscriptStore
from agent_runs.transcript.usage import RunUsage, Total
from agent_runs.web.render import phase_style
from agent_runs.web.run_info import RunInfoSource

STORE_TIMEOUT: Final = timedelta(seconds=3)
"""A page does not wait longer for the store."""
TOTALS_MAX_AGE: Final = timedelta(seconds=15)
"""Totals are added up anew after this time."""
TOTALS_SINCE: Final = timedelta(days=30)
"""Totals are of so long, unless a filter names another time."""
MAX_KNOWN: Final = 64
"""Totals in memory, by selection."""
STORE_AWAY: Final = "The transcript store does not answer: tokens, cost and last output are missing here."

Item = TypeVar("Item")
Totals = dict[Grouping, list[Total]]


@dataclass(frozen=True)
class Row:
    """One run of the list.

    Attributes:
        phase: as in the search attribute; of a run that only the store lists `ended` or `open`.
        working: it has no outcome yet.
        usage: None: the store has nothing of it, or is away.
        obstacle: what keeps it from going on, if anything does.
    """

    key: RunKey
    task: str
    phase: str
    failure: str
    model: str
    started_at: datetime
    elapsed: timedelta | None
    working: bool
    usage: RunUsage | None = None
    obstacle: str = ""
    names: Names = field(default_factory=Names)

    @classmethod
    def of_run(cls, run: RunSummary, usage: RunUsage | None, now: datetime, obstacle: str = "") -> Self:
        """A run that Temporal lists."""
        return cls(
            key=run.key,
            task=run.task_key or "",
            phase=run.phase,
            failure=run.failure_code or "",
            model=run.model or (usage.model if usage else ""),
            started_at=run.started_at,
            elapsed=run.elapsed(now),
            working=not run.decided,
            usage=usage,
            obstacle=obstacle,
            names=run.names,
        )

    @classmethod
    def of_usage(cls, usage: RunUsage) -> Self:
        """A run of which only the store can be asked."""
        return cls(
            key=usage.key,
            task="",
            phase="ended" if usage.sealed else "open",
            failure="",
            model=usage.model,
            started_at=usage.opened_at,
            elapsed=None if usage.last_at is None else max(usage.last_at - usage.opened_at, timedelta()),
            working=False,
            usage=usage,
        )

    @property
    def title(self) -> str:
        """Agent and task, by their names where they are known."""
        return self.names.title(self.key.agent_id, self.task) or "unknown agent"

    @property
    def link(self) -> str:
        """Relative URL of the run's page; empty for a run without an id."""
        return f"runs/{quote(self.key.name, safe='')}" if self.key.run_id else ""

    @property
    def state(self) -> str:
        """How the phase is coloured."""
        return phase_style(self.phase, failed=bool(self.failure), working=self.working)


@dataclass(frozen=True)
class RunList:
    """What the page shows.

    Attributes:
        cursor: of the next page: Temporal's token, or a time in microseconds after `@` while Temporal is away.
        totals: None while the store is away, or where they were not asked for.
        notes: for people, such as that the store does not answer.
    """

    wanted: RunFilter
    rows: Sequence[Row]
    cursor: bytes | None
    first: bool
    totals: Totals | None
    totals_since: datetime
    notes: Sequence[str]
    at: datetime


class RunLists:
    """The list at its present state, a page at a time."""

    def __init__(self, store: TranscriptStore, source: RunInfoSource) -> None:
        self._store = store
        self._source = source
        self._totals: OrderedDict[Selection, tuple[datetime, Totals]] = OrderedDict()

    async def page(self, wanted: RunFilter, cursor: bytes | None, *, totals: bool) -> RunList:
        now = datetime.now(UTC)
        listing = asyncio.create_task(self._listed(wanted, cursor, now))
        since = wanted.since or now.replace(minute=0, second=0, microsecond=0) - TOTALS_SINCE
        selection = Selection(since, wanted.agent or None, wanted.company or None, wanted.model or None)
        added = await self._known_totals(selection, now) if totals else None
        rows, following, notes = await listing
        if totals and added is None and STORE_AWAY not in notes:
            notes = [*notes, STORE_AWAY]
        return RunList(wanted, rows, following, cursor is None, added, since, notes, now)

    async def usage(self, runs: Sequence[str]) -> dict[str, RunUsage]:
        """The usage of the runs with these names (`RunKey.name`). Raises TranscriptsUnavailable."""
        return await self._store.fleet.usage(runs)

    async def _listed(
        self, wanted: RunFilter, cursor: bytes | None, now: datetime
    ) -> tuple[list[Row], bytes | None, list[str]]:
        """Rows, cursor of the next page, and notes."""
        if cursor is None or not cursor.startswith(_BY_TIME):
            try:
                page = await self._source.list_page(wanted, cursor)
            except RunsUnavailable as error:
                return await self._from_store(wanted, None, str(error))
            usage = await self._answered(self._store.fleet.usage([run.key.name for run in page.runs]))
            known, obstacles = usage or {}, page.obstacles
            rows = [Row.of_run(run, known.get(run.key.name), now, obstacles.get(run.key.name, "")) for run in page.runs]
            return rows, page.cursor, [] if usage is not None else [STORE_AWAY]
        return await self._from_store(
            wanted, EPOCH + timedelta(microseconds=int(cursor[1:])), "Temporal did not answer"
        )

    async def _from_store(
        self, wanted: RunFilter, before: datetime | None, reason: str
    ) -> tuple[list[Row], bytes | None, list[str]]:
        """The newest runs as the store knows them: with no phase, no failure and no task."""
        selection = Selection(
            wanted.since or EPOCH, wanted.agent or None, wanted.company or None, wanted.model or None, wanted.search
        )
        found = await self._answered(self._store.fleet.newest(selection, before, PAGE_RUNS))
        if found is None:
            return [], None, [f"{reason}, and neither does the transcript store: nothing can be listed now."]
        ignored = wanted.beyond_store
        note = f"{reason}: this is the transcript store's list, without phases, failures and tasks."
        if ignored:
            note += f" These filters have no effect until then: {', '.join(ignored)}."
        last = found[-1].newest_at if len(found) == PAGE_RUNS else None
        cursor = None if last is None else b"%s%d" % (_BY_TIME, (last - EPOCH) // timedelta(microseconds=1))
        return [Row.of_usage(usage) for usage in found], cursor, [note]

    async def _known_totals(self, selection: Selection, now: datetime) -> Totals | None:
        """The totals, at most `TOTALS_MAX_AGE` old; None: the store does not answer."""
        known = self._totals.get(selection)
        if known is None or now - known[0] >= TOTALS_MAX_AGE:
            totals = await self._answered(self._store.fleet.totals(selection))
            if totals is None:
                return None
            known = self._totals[selection] = now, totals
            if len(self._totals) > MAX_KNOWN:
                self._totals.popitem(last=False)
        return known[1]

    @staticmethod
    async def _answered(query: Awaitable[Item]) -> Item | None:
        """The store's answer; None when it is away or slow."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT.total_seconds()):
                return await query
        except (TranscriptsUnavailable, TimeoutError):
            return None


_BY_TIME: Final = b"@"
"""Begins a cursor of the store's list. Temporal's own begin otherwise: they are JSON or Protobuf."""
