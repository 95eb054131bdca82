"""Which runs a list shows: filters of people, as Temporal's list filter, and one page of the runs that pass them.

Temporal's list filter is a query language. A name or a text gets into it quoted, and only if every server reads the
quoted text as that text. Measured with server 1.32: a backslash, a double quote, a control character and a quote at
either end are never found, and on PostgreSQL a question mark breaks the query.
Source: https://docs.temporal.io/list-filter, https://github.com/temporalio/temporal/pull/12019 and .../pull/12030.
"""

import asyncio
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from temporalio.client import Client
from temporalio.service import RPCError

from agent_runs.client.runs import RunSummary, list_query, summary_of
from agent_runs.contracts.errors import FAILURES
from workflows import attributes
from workflows.current_details import FINAL_PHASES, Phase

PAGE_RUNS: Final = 50
"""Runs on one page at the most."""
TEMPORAL_TIMEOUT: Final = timedelta(seconds=5)
MAX_TEXT: Final = 200
"""Characters of a filter's value."""
MAX_AGE: Final = timedelta(days=36_500)

AT_WORK: Final = "ExecutionStatus = 'Running' AND EndedAt IS NULL"
"""Runs without an outcome. A run that has ended may stay open to keep its outcome."""
OPEN: Final = "ExecutionStatus = 'Running'"

_CLOSED_WITHOUT_OUTCOME: Final = {"failed": "Failed", "timed out": "TimedOut", "terminated": "Terminated"}
"""Phases that a run also has when its workflow closed without an outcome, and Temporal's status then."""
FAILURE_CODES: Final = tuple(sorted(FAILURES))
PHASES: Final = (*(phase.value for phase in Phase), "terminated")

_UNSEARCHABLE: Final = re.compile(r"[\\\"?\x00-\x1f\x7f-\x9f\ud800-\udfff]|^'|'$")
_AGO: Final = re.compile(r"([0-9]{1,6})\s*(m|min|h|d|w)")
_UNITS: Final = {
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


class InvalidFilter(ValueError):
    """A filter cannot be used. The text names it and what it may be."""

    def __init__(self, name: str, remedy: str) -> None:
        super().__init__(f"{name}: {remedy}")
        self.name = name


class RunsUnavailable(Exception):
    """Temporal does not answer."""


@dataclass(frozen=True)
class RunFilter:
    """Which runs a list shows; every value that is set must fit. Values are as people write them.

    Attributes:
        search: a run's or agent's id, or a task's key, or the beginning of one.
        since: runs that started after this time.
        state: `working`: runs without an outcome; empty: all.
    """

    search: str = ""
    agent: str = ""
    company: str = ""
    task: str = ""
    phase: str = ""
    failure: str = ""
    model: str = ""
    since: datetime | None = None
    state: str = ""

    @classmethod
    def parse(cls, values: Mapping[str, str], now: datetime | None = None) -> Self:
        """Check the values of a form or of a command; names that are no filters are ignored.

        Raises:
            InvalidFilter: a value cannot be one of this filter.
        """
        texts = {one.name: values.get(one.name, "").strip() for one in fields(cls)}
        texts["phase"] = texts["phase"].replace("-", " ")  # as a shell completes it, without quotation marks
        since = parse_since(texts.pop("since"), now or datetime.now(UTC))
        for name, text in texts.items():
            _check(name, text)
        return cls(**texts, since=since)

    @property
    def condition(self) -> str:
        """As Temporal's list filter; empty: all runs."""
        return " AND ".join(self._conditions())

    @property
    def beyond_store(self) -> tuple[str, ...]:
        """Filters in use that the transcript store cannot apply."""
        return tuple(name for name in ("task", "phase", "failure", "state") if getattr(self, name))

    def _conditions(self) -> Iterator[str]:
        exact = (
            (attributes.AGENT_ID, self.agent),
            (attributes.COMPANY_ID, self.company),
            (attributes.TASK_KEY, self.task),
            (attributes.FAILURE_KIND, self.failure),
            (attributes.MODEL, self.model),
        )
        yield from (f"{attribute.name} = {quoted(value)}" for attribute, value in exact if value)
        if self.search:
            begins = (attributes.PAPERCLIP_RUN_ID, attributes.AGENT_ID, attributes.TASK_KEY)
            found = [f"{attribute.name} STARTS_WITH {quoted(self.search)}" for attribute in begins]
            yield f"({' OR '.join([*found, f'{attributes.JOINED_RUN_IDS.name} = {quoted(self.search)}'])})"
        if self.phase:
            yield _in_phase(self.phase)
        if self.since is not None:
            yield f"StartTime >= '{self.since.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}'"
        if self.state:
            yield AT_WORK


@dataclass(frozen=True)
class RunPage:
    """One page of runs, the open ones first, then by their end.

    Attributes:
        cursor: Temporal's token of the next page; None: this is the last one.
        obstacles: what keeps runs from going on, by their ids.
    """

    runs: Sequence[RunSummary]
    cursor: bytes | None = None
    obstacles: Mapping[str, str] = field(default_factory=dict)


def quoted(value: str) -> str:
    """A text as a value of Temporal's list filter.

    Raises:
        ValueError: not every server would search for this text.
    """
    if not value or len(value) > MAX_TEXT or _UNSEARCHABLE.search(value):
        raise ValueError("not a text that Temporal can search for")
    return "'" + value.replace("'", "''") + "'"


def parse_since(text: str, now: datetime) -> datetime | None:
    """A time ago (30m, 24h, 7d, 2w) or a date or time, UTC unless it says otherwise; None: an empty text.

    Raises:
        InvalidFilter: neither.
    """
    if not text:
        return None
    if ago := _AGO.fullmatch(text):
        return now - min(int(ago[1]) * _UNITS[ago[2]], MAX_AGE)
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidFilter("since", "write an age such as 30m, 24h or 7d, or a date such as 2026-01-31") from None


async def list_page(client: Client, wanted: RunFilter, cursor: bytes | None = None, limit: int = PAGE_RUNS) -> RunPage:
    """List a page of runs.

    Raises:
        RunsUnavailable: Temporal does not answer, or refuses the query.
    """
    try:
        async with asyncio.timeout(TEMPORAL_TIMEOUT.total_seconds()):
            found = client.list_workflows(list_query(wanted.condition), page_size=limit, next_page_token=cursor)
            await found.fetch_next_page()
    except TimeoutError:
        raise RunsUnavailable("Temporal does not answer") from None
    except RPCError as error:
        raise RunsUnavailable(f"Temporal refused the query ({error.status.name})") from None
    return RunPage([await summary_of(execution) for execution in found.current_page or ()], found.next_page_token)


def _in_phase(phase: str) -> str:
    """The condition of a phase as lists show it: of a closed run without an outcome that is Temporal's status."""
    outcome = f"RunPhase = {quoted(phase)}"
    status = _CLOSED_WITHOUT_OUTCOME.get(phase)
    if status is not None:
        final = ", ".join(quoted(name) for name in sorted(FINAL_PHASES))
        return f"({outcome} OR (ExecutionStatus = '{status}' AND RunPhase NOT IN ({final})))"
    if phase in FINAL_PHASES:
        return outcome
    return f"({outcome} AND {OPEN})" if phase != Phase.QUEUED else f"(({outcome} OR RunPhase IS NULL) AND {OPEN})"


def _check(name: str, text: str) -> None:
    choices = {"phase": PHASES, "failure": FAILURE_CODES, "state": ("working",)}.get(name)
    if not text:
        return
    if choices is not None and text not in choices:
        nearest = difflib.get_close_matches(text, choices, n=1)
        some = f"did you mean {nearest[0]}?" if nearest else f"one of {', '.join(choices)}"
        raise InvalidFilter(name, f"there is no such {name}; {some}")
    if len(text) > MAX_TEXT or _UNSEARCHABLE.search(text):
        raise InvalidFilter(
            name,
            f"must have at most {MAX_TEXT} characters, without a backslash, a double quote, a question mark, a control "
            "character, or a quote at either end: Temporal cannot search for these",
        )
