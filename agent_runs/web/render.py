"""Renders the pages: pure functions to HTML.

Everything from outside is text here: Jinja2 escapes all of it, Markdown is rendered without HTML, links, images and
character references, and entries hold no control characters (`agent_runs.transcript.entries`). The page's
Content-Security-Policy allows no inline script, so that a mistake in here would still run nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from agent_runs.client.amounts import cost_text, duration_text, money, short_count
from agent_runs.client.links import PaperclipPages
from agent_runs.client.run_list import FAILURE_CODES
from agent_runs.client.run_list import PHASES as RUN_PHASES
from agent_runs.client.runs import FAILED_PHASES
from agent_runs.transcript.entries import Entry, Limits, entry, visible_line
from agent_runs.transcript.events import printable
from agent_runs.transcript.store import Line
from agent_runs.transcript.usage import RunUsage, Total
from workflows.current_details import Phase

LIMITS: Final = Limits(text=12_000, thinking=8_000, result=8_000, result_lines=200, arguments=4_000)
MAX_NAME: Final = 200
MAX_PROSE: Final = 2000
MAX_SUMMARY: Final = 1200
"""Characters of the summary above the transcript."""
NOTHING: Final = "\N{EN DASH}"
MAX_GAPS: Final = 20
"""Gaps that are listed one by one."""

_MARKDOWN: Final = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["link", "image", "autolink", "reference", "entity", "html_inline", "html_block"])
)


@dataclass(frozen=True)
class PageEntry:
    """One entry on the page, with its line's sequence, stream and time."""

    line: int
    entry: Entry
    stream: str
    at: datetime


class Templates:
    """The templates; `paperclip` has links to Paperclip's pages."""

    def __init__(self, paperclip: PaperclipPages | None = None) -> None:
        self._env = Environment(
            loader=PackageLoader("agent_runs.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters |= {
            "markdown": markdown,
            "time_of_day": time_of_day,
            "duration": duration_text,
            "name": lambda text: visible_line(str(text), MAX_NAME),
            "prose": lambda text: printable(str(text), MAX_PROSE),
            "money": money_text,
            "count": lambda number: f"{number:,}",
            "short_count": short_count,
            "short_time": short_time,
            "cost": _cost,
            "commands": commands,
        }
        choices = {"RUN_PHASES": RUN_PHASES, "FAILURE_CODES": FAILURE_CODES}
        self._env.globals |= {"MAX_GAPS": MAX_GAPS, "MAX_SUMMARY": MAX_SUMMARY, **choices}
        self._env.globals["paperclip"] = paperclip or PaperclipPages()

    def html(self, template: str, **content: Any) -> str:
        return self._env.get_template(template).render(**content)


def page_entries(lines: Sequence[Line]) -> list[PageEntry]:
    """The entries of these lines; lines without an entry for people are left out."""
    entries = ((line, entry(line.data, line.stream, LIMITS)) for line in lines)
    return [PageEntry(line.sequence, it, line.stream, line.at) for line, it in entries if it is not None]


def markdown(text: str) -> Markup:
    """Markdown as HTML that holds nothing but text and its formatting."""
    return Markup(_MARKDOWN.render(text))  # noqa: S704 (with html=False the renderer escapes all text)


def time_of_day(at: datetime) -> str:
    """A time of day, UTC."""
    return at.astimezone(UTC).strftime("%H:%M:%S")


def money_text(cost: Decimal | None) -> str:
    """US dollars; a cost may not be known."""
    return "unknown" if cost is None else money(cost)


def commands(text: str) -> Markup:
    """A text of ours, escaped, with what is between backquotes as code."""
    pieces = (escape(piece) for piece in text.split("`"))
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else piece for number, piece in enumerate(pieces)
    )


def short_time(at: datetime, now: datetime) -> str:
    """The time of day, with the date unless it is today's, UTC."""
    at = at.astimezone(UTC)
    return f"{at:%H:%M:%S}" if at.date() == now.astimezone(UTC).date() else f"{at:%Y-%m-%d %H:%M}"


def _cost(of: RunUsage | Total) -> str:
    return cost_text(of.cost_usd, of.unpriced) or NOTHING


def phase_style(phase: str, *, failed: bool, working: bool) -> str:
    """The class of a phase on a page, which has its colour."""
    if failed or phase in FAILED_PHASES:
        return "bad"
    if phase == Phase.SUCCEEDED:
        return "good"
    return "open" if working else "quiet"
