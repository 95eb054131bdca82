"""Renders the page of a run: pure functions from a view to HTML.

Everything from outside is text here: Jinja2 escapes all of it, Markdown is rendered without HTML, links, images and
character references, and entries hold no control characters (`agent_runs.transcript.entries`). The page's
Content-Security-Policy allows no inline script, so that a mistake in here would still run nothing.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from agent_runs.client.amounts import duration_text, money, short_count
from agent_runs.client.fleet import FAILURE_CODES
from agent_runs.client.fleet import PHASES as RUN_PHASES
from agent_runs.client.obstacles import Obstacle
from agent_runs.client.paperclip_pages import PaperclipPages
from agent_runs.client.timeline import Step
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.outcome import Outcome, OutputReceipt, Usage
from agent_runs.contracts.sizes import peaks_text
from agent_runs.transcript.entries import Entry, Limits, entry, visible_line
from agent_runs.transcript.events import printable
from agent_runs.transcript.store import Line
from agent_runs.transcript.usage import RunUsage, Total
from agent_runs.web.run_info import RunInfo
from agent_runs.web.usage import AttemptProgress

if TYPE_CHECKING:
    from agent_runs.web.refusals import Refusal

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


@dataclass(frozen=True)
class Attempt:
    """One attempt in the list of attempts."""

    number: int
    failure: str | None = None
    receipt: OutputReceipt | None = None


@dataclass(frozen=True)
class Window:
    """The part of a transcript on the page: sequences of its first and last line, None for no line."""

    first: int | None
    last: int | None
    earlier: bool
    later: bool


@dataclass(frozen=True)
class View:
    """The content of the page, except the lines.

    Attributes:
        progress: what the shown attempt has used so far.
        live: more output or steps may follow.
        note: for people, such as that Temporal does not answer.
    """

    run: RunKey
    attempt: int
    info: RunInfo | None
    attempts: Sequence[Attempt]
    progress: AttemptProgress
    live: bool
    note: str = ""

    @property
    def base(self) -> str:
        """Relative URL of this run's resources: a proxy may publish the service below any path."""
        return quote(self.run.name, safe="")

    @property
    def outcome(self) -> Outcome | None:
        """The run's outcome, if it has one."""
        return self.info.outcome if self.info else None

    @property
    def warnings(self) -> Sequence[str]:
        """Of the whole run once it has an outcome, else of its steps so far."""
        return self.outcome.warnings if self.outcome else self.info.warnings if self.info else ()

    @property
    def obstacles(self) -> Sequence[Obstacle]:
        """What keeps the run from going on now."""
        return self.info.obstacles if self.info else ()

    @property
    def facts(self) -> Mapping[str, str]:
        """What the run is; empty texts for what is not known."""
        return defaultdict(str, self.info.facts if self.info else {})

    @property
    def reasons(self) -> Mapping[int, str]:
        """Why attempts have failed; empty texts for those that have not."""
        return defaultdict(str, self.info.reasons if self.info else {})

    @property
    def steps_by_attempt(self) -> Sequence[tuple[int, Sequence[Step]]]:
        """The steps of each attempt; the first has those before it, too."""
        steps = self.info.steps if self.info else ()
        numbers = sorted({step.attempt for step in steps})
        return [(number, [step for step in steps if step.attempt == number]) for number in numbers]

    @property
    def elapsed(self) -> timedelta | None:
        """From the run's start to its end, or until now."""
        if self.info is None:
            return None
        run = self.info.run
        return (run.ended_at or datetime.now(UTC)) - run.started_at

    @property
    def receipt(self) -> OutputReceipt | None:
        """The shown attempt's receipt."""
        return next((one.receipt for one in self.attempts if one.number == self.attempt), None)

    @property
    def peaks(self) -> str:
        """What the shown attempt's pod used at most; empty until the run has its outcome."""
        attempts = self.outcome.attempts if self.outcome else ()
        return next((peaks_text(one.peaks) for one in attempts if one.attempt == self.attempt), "")

    @property
    def phase(self) -> str:
        """The run's phase as in the search attribute."""
        return self.info.run.phase if self.info else ("live" if self.live else "ended")

    @property
    def usage(self) -> Usage:
        """Of the whole run once it has an outcome, else of the shown attempt so far."""
        total = self.outcome.usage if self.outcome else None
        return total or self.progress.progress.usage

    @property
    def cost(self) -> Decimal | None:
        """As `usage`, in US dollars."""
        total = self.outcome.cost_usd if self.outcome else None
        return total if total is not None else self.progress.progress.cost_usd

    @property
    def doing(self) -> str:
        """What the agent does now, as far as its log shows; empty once the run is over."""
        return self.progress.doing if self.live and self.phase == "running" else ""

    @property
    def session(self) -> str | None:
        """OpenCode's session id."""
        session = self.outcome.session_id if self.outcome else None
        return session or self.progress.progress.session_id


class Templates:
    """Renders the templates; `paperclip` has links to Paperclip's pages."""

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
            "cost": cost_text,
            "commands": commands,
        }
        choices = {"RUN_PHASES": RUN_PHASES, "FAILURE_CODES": FAILURE_CODES}
        self._env.globals |= {"MAX_GAPS": MAX_GAPS, "MAX_SUMMARY": MAX_SUMMARY, **choices}
        self._env.globals["paperclip"] = paperclip or PaperclipPages()

    def page(self, view: View, window: Window, entries: Sequence[PageEntry], *, in_list: bool = False) -> str:
        """The whole page; `in_list`: with a link to the list of runs, for operators."""
        template = self._env.get_template("run_page.html")
        return template.render(view=view, window=window, entries=entries, in_list=in_list)

    def header(self, view: View) -> str:
        """The header, which changes while the run is open: phase, steps, tokens, cost, receipt."""
        return self._env.get_template("run_header.html").render(view=view)

    def entries(self, run: RunKey, attempt: int, entries: Sequence[PageEntry]) -> str:
        """Entries to append to the page."""
        base = quote(run.name, safe="")
        return self._env.get_template("transcript_entries.html").render(base=base, attempt=attempt, entries=entries)

    def refusal(self, refusal: "Refusal") -> str:
        """The page of a refused request."""
        return self._env.get_template("error.html").render(refusal=refusal)

    def runs_page(self, **content: Any) -> str:
        """The list of runs; the content is that of `agent_runs.web.fleet_pages`."""
        return self._env.get_template("runs_page.html").render(**content)

    def runs_list(self, **content: Any) -> str:
        """Its rows, which the page's script replaces."""
        return self._env.get_template("runs_list.html").render(**content)

    def cancel(self, run: RunKey) -> str:
        """The page that asks whether to cancel a run."""
        return self._env.get_template("cancel.html").render(run=run, base=quote(run.name, safe=""))

    def token_redirect(self, run: RunKey) -> str:
        """The page that continues to the run's page without the token in its URL.

        Not an HTTP redirect: after one, a browser that comes from another site does not send the new cookie, which
        is SameSite=Strict.
        """
        return self._env.get_template("token_redirect.html").render(base=quote(run.name, safe=""))


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


def cost_text(usage: RunUsage | Total) -> str:
    """The cost; `+ ?` where a part has no known price."""
    if usage.cost_usd is None:
        return "unpriced" if usage.unpriced else NOTHING
    return money(usage.cost_usd) + (" + ?" if usage.unpriced else "")
