"""The table of `agent-runs list` and `top`, as wide as the terminal: it leaves columns out, and never wraps a row.

What is left out first is in `LEFT_OUT`. Then ids are shortened, which every command takes, too; then the columns of
`LEFT_OUT_LAST` go. A column without any value is not shown at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    *("run", "phase", "failure", "started (UTC)", "took", "tokens", "cost", "model", "task", "agent", "kept until"),
    "last output",
)
LEFT_OUT: Final = ("kept until", "agent", "task", "model", "started (UTC)")
"""In this order, until the others fit."""
LEFT_OUT_LAST: Final = ("last output", "tokens", "took", "cost")
"""In this order, once run ids are shortened."""
SHORT_ID: Final = 8
"""Characters of a run's id, as many as commands need of it."""
RIGHT: Final = frozenset({"took", "tokens", "cost"})
MAX_CELL: Final = 40
MIN_LAST_OUTPUT: Final = 24
"""Columns that the last output needs at least."""


@dataclass(frozen=True)
class _Layout:
    columns: Sequence[str]
    id_length: int
    gap: int
    room: int
    """Columns for the last output."""


def runs_table(runs: Sequence[ListedRun], width: int, now: datetime, *, last_output: bool = False) -> Table:
    """The table of these runs in at most `width` columns."""
    rows = [_cells(run, now, last_output=last_output) for run in runs]
    shown = [name for name in COLUMNS if any(row[name] for row in rows)]
    layout = _fitting(shown, rows, width)
    table = Table(box=None, pad_edge=False, padding=(0, layout.gap, 0, 0), collapse_padding=True)
    for name in layout.columns:
        side: JustifyMethod = "right" if name in RIGHT else "left"
        limit = layout.room if name == "last output" else None
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", max_width=limit)
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
        "run": visible_line(run.key.run_id, 128),
        "phase": visible_line(run.phase, MAX_CELL),
        "failure": visible_line(run.failure_code or "", MAX_CELL),
        "started (UTC)": f"{run.started_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        "took": elapsed_text(elapsed) if elapsed is not None else "",
        "tokens": short_count(usage.tokens) if usage is not None and usage.tokens else "",
        "cost": cost_text(usage.cost_usd, usage.unpriced) if usage is not None else "",
        "model": visible_line(run.model or "", MAX_CELL),
        "task": visible_line(run.task_key or "", MAX_CELL),
        "agent": visible_line(run.key.agent_id, MAX_CELL),
        "kept until": f"{run.kept_until.astimezone(UTC):%m-%d %H:%M}" if run.kept_until is not None else "",
        "last output": visible_line(usage.last_output, 200) if usage is not None and last_output else "",
    }


def _fitting(shown: Sequence[str], rows: Sequence[dict[str, str]], width: int) -> _Layout:
    """The columns that fit, and how much of a run's id."""
    needs = {name: max([cell_len(name), *(cell_len(row[name]) for row in rows)]) for name in shown}
    if "last output" in needs:
        needs["last output"] = MIN_LAST_OUTPUT
    columns = list(shown)
    longest_id = needs.get("run", 0)
    for name in (*LEFT_OUT, ""):
        if _width(columns, needs, 2) <= width:
            return _Layout(columns, longest_id, 2, MIN_LAST_OUTPUT + width - _width(columns, needs, 2))
        columns = [kept for kept in columns if kept != name]
    needs["run"] = min(longest_id, SHORT_ID)
    for name in (*LEFT_OUT_LAST, ""):
        if _width(columns, needs, 1) <= width:
            break
        columns = [kept for kept in columns if kept != name]
    return _Layout(columns, needs["run"], 1, MIN_LAST_OUTPUT + max(0, width - _width(columns, needs, 1)))


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
