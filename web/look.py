"""How a run looks: pure functions from what is known to HTML.

Everything from outside is text here: Jinja2 escapes all of it, Markdown is rendered without HTML, links, images and
character references, and entries hold no control characters (`opencode.entries`). The page's Content-Security-Policy
allows no inline script, so that a mistake in here would still run nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from client.story import PHASES
from contracts.outcome import Outcome, OutputReceipt, Usage
from opencode.entries import LOG, Entry, Limits, entry
from opencode.events import printable
from opencode.fold import Progress
from transcripts.store import Line
from web.facts import Facts

LIMITS: Final = Limits(words=12_000, thought=8_000, result=8_000, result_lines=200, given=4_000)
NAME: Final = 200
PROSE: Final = 2000
GAPS: Final = 20
"""Gaps that are listed one by one."""

_MARKDOWN: Final = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["link", "image", "autolink", "reference", "entity", "html_inline", "html_block"])
)


@dataclass(frozen=True)
class Shown:
    """One entry on the page, with the line it comes from."""

    line: int
    entry: Entry
    stream: str
    at: datetime


@dataclass(frozen=True)
class Attempt:
    """One attempt in the list of them."""

    number: int
    failure: str | None = None
    receipt: OutputReceipt | None = None


@dataclass(frozen=True)
class Window:
    """Which part of a transcript is on the page; sequences of its first and last line, None for no line."""

    first: int | None
    last: int | None
    earlier: bool
    later: bool


@dataclass(frozen=True)
class View:
    """All that the page tells.

    Attributes:
        used: what the shown attempt has used so far, and whether all of its output was counted.
        live: more may come.
        note: for people, such as that Temporal does not answer.
    """

    run_id: str
    attempt: int
    facts: Facts | None
    attempts: Sequence[Attempt]
    used: tuple[Progress, bool]
    live: bool
    note: str = ""

    @property
    def base(self) -> str:
        """Address of what is below this run, relative to its page: a proxy may publish us below any path."""
        return quote(self.run_id, safe="")

    @property
    def outcome(self) -> Outcome | None:
        """What came of the run."""
        return self.facts.outcome if self.facts else None

    @property
    def receipt(self) -> OutputReceipt | None:
        """The shown attempt's receipt."""
        return next((one.receipt for one in self.attempts if one.number == self.attempt), None)

    @property
    def phase(self) -> str:
        """Where the run stands, as operators filter for it."""
        return self.facts.run.phase if self.facts else ("live" if self.live else "ended")

    @property
    def usage(self) -> Usage:
        """Of the whole run once it has an outcome, else of the shown attempt so far."""
        known = self.outcome.usage if self.outcome else None
        return known or self.used[0].usage

    @property
    def cost(self) -> Decimal | None:
        """The same way, in US dollars."""
        known = self.outcome.cost_usd if self.outcome else None
        return known if known is not None else self.used[0].cost_usd

    @property
    def session(self) -> str | None:
        """OpenCode's session."""
        known = self.outcome.session_id if self.outcome else None
        return known or self.used[0].session_id


class Look:
    """The templates."""

    def __init__(self) -> None:
        self._env = Environment(
            loader=PackageLoader("web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters |= {
            "markdown": markdown,
            "clock": clock,
            "took": took,
            "name": lambda text: printable(str(text), NAME),
            "prose": lambda text: printable(str(text), PROSE),
            "money": money,
            "count": lambda number: f"{number:,}",
        }
        self._env.globals |= {"PHASES": PHASES, "GAPS": GAPS}

    def page(self, view: View, window: Window, entries: Sequence[Shown]) -> str:
        """The whole page."""
        return self._env.get_template("run.html").render(view=view, window=window, entries=entries)

    def head(self, view: View) -> str:
        """What changes while a run goes on: phase, steps, tokens, cost, receipt."""
        return self._env.get_template("head.html").render(view=view)

    def entries(self, run_id: str, attempt: int, entries: Sequence[Shown]) -> str:
        """Entries to append to the page."""
        base = quote(run_id, safe="")
        return self._env.get_template("entries.html").render(base=base, attempt=attempt, entries=entries)

    def told(self, status: int, title: str, detail: str) -> str:
        """A page that only says something."""
        return self._env.get_template("told.html").render(status=status, title=title, detail=detail)

    def entered(self, run_id: str) -> str:
        """Goes on to the run's page without the token in its address.

        Not an HTTP redirect: after one, a browser that comes from another site does not send the new cookie, which
        is SameSite=Strict.
        """
        return self._env.get_template("entered.html").render(base=quote(run_id, safe=""))


def shown(lines: Sequence[Line]) -> list[Shown]:
    """The entries of these lines; lines that tell a person nothing are left out."""
    found = ((line, entry(line.data, line.stream, LIMITS)) for line in lines)
    return [Shown(line.sequence, _whole(it, line), line.stream, line.at) for line, it in found if it is not None]


def _whole(found: Entry, line: Line) -> Entry:
    """A log line does not know how much of it is missing."""
    if found.kind != "log" or len(line.data) <= LOG:
        return found
    return Entry("log", found.title, left_out=len(line.data) - len(found.title))


def markdown(text: str) -> Markup:
    """Markdown as HTML that holds nothing but text and its formatting."""
    return Markup(_MARKDOWN.render(text))  # noqa: S704 (with html=False the renderer escapes all text)


def clock(at: datetime) -> str:
    """A time of day, UTC."""
    return at.astimezone(UTC).strftime("%H:%M:%S")


def took(duration: timedelta) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    seconds = duration.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def money(cost: Decimal | None) -> str:
    """US dollars, enough digits for a short run."""
    if cost is None:
        return "unknown"
    return f"${cost:,.2f}" if cost >= 100 else f"${cost:.4f}"
