"""The commands list and top. Each returns its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text
from temporalio.client import Client

from agent_runs.cli.display import Display, ListedRun, TextDisplay
from agent_runs.cli.follow import Interrupted, Interrupts
from agent_runs.cli.program import Refused
from agent_runs.cli.runs import run_ref
from agent_runs.cli.runs_table import runs_table
from agent_runs.cli.transcripts import read_in_time, usage_of
from agent_runs.client.amounts import cost_text, short_count
from agent_runs.client.connection import connect
from agent_runs.client.obstacles import obstacles_of_runs
from agent_runs.client.run_list import InvalidFilter, RunFilter, RunsUnavailable, list_page
from agent_runs.client.runs import RunSummary, list_runs
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import RunKey

if TYPE_CHECKING:
    from agent_runs.cli.transcripts import Transcripts
    from agent_runs.transcript.usage import RunUsage

REDRAW_INTERVAL: Final = timedelta(seconds=2)
TOP_RUNS: Final = 1000
"""Runs that `top` reads at the most."""
_HEADING: Final = 3
"""Lines of `top` that are not runs."""


async def listing(display: Display, filters: Mapping[str, str], *, limit: int) -> int:
    """List runs, newest first, with tokens and cost where the store is reachable."""
    wanted = parse_filters(filters)
    settings = ClientSettings.read()
    client = await connect(settings)
    runs = [run async for run in list_runs(client, wanted.condition, limit)]
    rows, note = await rows_of(settings, runs)
    display.runs(rows)
    for name, text in (await obstacles_of_runs(client, runs)).items():
        display.note(f"{RunKey.named(name).run_id}: {text}")
    if note:
        display.note(note)
    return 0


async def top(display: Display, filters: Mapping[str, str]) -> int:
    """Show the runs at work: on a terminal until Ctrl-C, else once."""
    wanted = parse_filters({**filters, "state": "working"})
    settings = ClientSettings.read()
    client = await connect(settings)
    if not (isinstance(display, TextDisplay) and display.console.is_terminal):
        runs = [run async for run in list_runs(client, wanted.condition, TOP_RUNS)]
        rows, note = await rows_of(settings, runs)
        display.runs(rows, at_work=True)
        if note:
            display.note(note)
        return 0
    with Interrupts.installed() as interrupts:
        try:
            await interrupts.during(_redraw(client, settings, wanted, display))
        except Interrupted:
            return 0
    return 0


def parse_filters(filters: Mapping[str, str]) -> RunFilter:
    """The filter of a command's options.

    Raises:
        Refused: an option cannot be used.
    """
    try:
        return RunFilter.parse(filters)
    except InvalidFilter as error:
        raise Refused(f"--{error}") from None


async def rows_of(settings: ClientSettings, runs: Sequence[RunSummary]) -> tuple[list[ListedRun], str]:
    """The runs with tokens and cost, and a note if these could not be read."""

    async def usage(transcripts: Transcripts) -> Mapping[str, RunUsage]:
        return await usage_of(transcripts, [run.key.name for run in runs])

    if not runs:
        return [], ""
    found, note = await read_in_time(settings, usage, "tokens and cost are missing")
    refs = [run_ref(settings, run.key, run.workflow_id, run.workflow_run_id, run.task_key) for run in runs]
    used = found or {}
    return [ListedRun(run, ref, used.get(run.key.name)) for run, ref in zip(runs, refs, strict=True)], note


async def _redraw(client: Client, settings: ClientSettings, wanted: RunFilter, display: TextDisplay) -> None:
    """Draw the runs on the alternate screen, anew every 2 s."""
    rows: list[ListedRun] = []
    with Live(console=display.console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                runs = (await list_page(client, wanted, limit=TOP_RUNS)).runs
                rows, note = await rows_of(settings, runs)
            except RunsUnavailable as error:
                note = f"{error}; this is what was known before"
            live.update(screen(rows, note, display.console.width, display.console.height), refresh=True)
            await asyncio.sleep(REDRAW_INTERVAL.total_seconds())


def screen(rows: Sequence[ListedRun], note: str, width: int, height: int) -> RenderableType:
    """What `top` draws: the sums, the runs that fit, and a note."""
    room = max(1, height - _HEADING - bool(note))
    parts: list[RenderableType] = [Text(summary(rows), style="bold", no_wrap=True, overflow="ellipsis")]
    if rows:
        parts.append(runs_table(rows[:room], width, datetime.now(UTC), last_output=True))
    if len(rows) > room:
        parts.append(Text(f"and {len(rows) - room} more", style="dim"))
    if note:
        parts.append(Text(note, style="yellow", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def summary(rows: Sequence[ListedRun]) -> str:
    """The sums over the runs at work."""
    known = [row.usage for row in rows if row.usage is not None]
    tokens = sum(usage.tokens for usage in known)
    cost = sum((usage.cost_usd for usage in known if usage.cost_usd is not None), Decimal(0))
    unpriced = sum(usage.unpriced for usage in known)
    number = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    used = f", {short_count(tokens)} tokens, {cost_text(cost, unpriced)}" if known else ""
    return f"{number} at work{used}, {datetime.now(UTC):%H:%M:%S} UTC"
