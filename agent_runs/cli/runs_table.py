"""The table of `agent-runs list` and `top`, as wide as the terminal: it leaves columns out, and never wraps a row.

What is left out first is in `LEFT_OUT`. Then ids are shortened, which every command takes, too; then the columns of
`LEFT_OUT_LAST` go. A column without any value is not shown at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.style import Style
from rich.table import Table
from rich.text import Text

from agent_runs.client.amounts import cost_text, short_count
from agent_runs.client.runs import FAILED_PHASES
from agent_runs.transcript.entries import visible_line

if TYPE_CHECKING:
    from agent_runs.cli.display import ListedRun

COLUMNS: Final = (
    *("agent, task", "run", "phase", "failure", "started (UTC)", "took", "tokens", "cost", "model", "kept until"),
    "last output",
)
LEFT_OUT: Final = ("kept until", "model", "started (UTC)")
"""In this order, until the others fit."""
LEFT_OUT_LAST: Final = ("last output", "tokens", "took", "agent, task", "cost")
"""In this order, once run ids are shortened."""
SHORT_ID: Final = 8
"""Characters of a run's id, as many as commands need of it."""
RIGHT: Final = frozenset({"took", "tokens", "cost"})
MAX_CELL: Final = 40
MAX_TITLE: Final = 75
"""Two ids of Paperclip need as many."""
FLEXIBLE: Final = {"agent, task": 20, "last output": 24}
"""Columns of which the beginning is enough, and how much of it is needed; the first one gets more first."""


@dataclass(frozen=True)
class _Layout:
    columns: Sequence[str]
    id_length: int
    gap: int
    limits: Mapping[str, int]
    """The most that a column may take; by its name."""


def runs_table(runs: Sequence[ListedRun], width: int, now: datetime, *, last_output: bool = False) -> Table:
    """The table of these runs in at most `width` columns."""
    rows = [_cells(run, now, last_output=last_output) for run in runs]
    shown = [name for name in COLUMNS if any(row[name] for row in rows)]
    layout = _fitting(shown, rows, width)
    table = Table(box=None, pad_edge=False, padding=(0, layout.gap, 0, 0), collapse_padding=True)
    for name in layout.columns:
        side: JustifyMethod = "right" if name in RIGHT else "left"
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", max_width=layout.limits.get(name))
    for run, row in zip(runs, rows, strict=True):
        table.add_row(*(_styled(name, row[name], run, layout) for name in layout.columns))
    return table


def elapsed_text(elapsed: timedelta) -> str:
    """A duration in its two largest units, such as 3m20s."""
    seconds = int(elapsed.total_seconds())
    minutes, hours = seconds // 60, seconds // 3600
    if minutes == 0:
        return f"{seconds}s"
    if hours == 0:
        return f"{minutes}m{seconds % 60:02}s"
    return f"{hours}h{minutes % 60:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def _cells(listed: ListedRun, now: datetime, *, last_output: bool) -> dict[str, str]:
    run, usage = listed.run, listed.usage
    elapsed = run.elapsed(now)
    return {
        "agent, task": visible_line(run.title, MAX_TITLE),
        "run": visible_line(run.key.run_id, 128),
        "phase": visible_line(run.phase, MAX_CELL),
        "failure": visible_line(run.failure_code or "", MAX_CELL),
        "started (UTC)": f"{run.started_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        "took": elapsed_text(elapsed) if elapsed is not None else "",
        "tokens": short_count(usage.tokens) if usage is not None and usage.tokens else "",
        "cost": cost_text(usage.cost_usd, usage.unpriced) if usage is not None else "",
        "model": visible_line(run.model or "", MAX_CELL),
        "kept until": f"{run.kept_until.astimezone(UTC):%m-%d %H:%M}" if run.kept_until is not None else "",
        "last output": visible_line(usage.last_output, 200) if usage is not None and last_output else "",
    }


def _fitting(shown: Sequence[str], rows: Sequence[dict[str, str]], width: int) -> _Layout:
    """The columns that fit, and how much of a run's id."""
    longest = {name: max([cell_len(name), *(cell_len(row[name]) for row in rows)]) for name in shown}
    needs = {name: min(length, FLEXIBLE.get(name, length)) for name, length in longest.items()}
    columns = list(shown)
    for name in (*LEFT_OUT, ""):
        if _width(columns, needs, 2) <= width:
            return _layout(columns, needs, longest, 2, width)
        columns = [kept for kept in columns if kept != name]
    needs["run"] = min(needs.get("run", 0), SHORT_ID)
    for name in (*LEFT_OUT_LAST, ""):
        if _width(columns, needs, 1) <= width:
            break
        columns = [kept for kept in columns if kept != name]
    return _layout(columns, needs, longest, 1, width)


def _layout(columns: list[str], needs: dict[str, int], longest: dict[str, int], gap: int, width: int) -> _Layout:
    """Gives what no column needs to the flexible ones, in their order."""
    spare = max(0, width - _width(columns, needs, gap))
    limits: dict[str, int] = {}
    for name in (name for name in FLEXIBLE if name in columns):
        limits[name] = min(longest[name], needs[name] + spare)
        spare -= limits[name] - needs[name]
    return _Layout(columns, needs.get("run", 0), gap, limits)


def _width(columns: Iterable[str], needs: dict[str, int], gap: int) -> int:
    widths = [needs[name] for name in columns]
    return sum(widths) + gap * (len(widths) - 1)


def _styled(name: str, text: str, listed: ListedRun, layout: _Layout) -> Text:
    match name:
        case "run":
            page = listed.ref.page
            return Text(text[: layout.id_length], style=Style(link=page) if page else "")
        case "failure":
            return Text(text, style="red")
        case "phase" if text in FAILED_PHASES:
            return Text(text, style="red")
        case "phase" if text == "succeeded":
            return Text(text, style="green")
        case _:
            return Text(text)
