"""Collects what a run's page shows: run info from Temporal, attempts and receipts from the store, usage so far."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from urllib.parse import quote

from agent_runs.client.names import Names
from agent_runs.client.obstacles import Obstacle
from agent_runs.client.timeline import Step
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import Outcome, OutputReceipt, Usage
from agent_runs.transcript.store import TranscriptStore
from agent_runs.web.render import phase_style
from agent_runs.web.run_info import RunInfo, RunInfoSource, RunInfoUnavailable
from agent_runs.web.usage import AttemptProgress, AttemptUsage

MAX_ATTEMPTS: Final = 50
"""Of a run on its page: the newest ones."""


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
class RunView:
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
        return self.info.outcome if self.info else None

    @property
    def warnings(self) -> Sequence[str]:
        """Of the whole run once it has an outcome, else of its steps so far."""
        return self.outcome.warnings if self.outcome else self.info.warnings if self.info else ()

    @property
    def obstacles(self) -> Sequence[Obstacle]:
        return self.info.obstacles if self.info else ()

    @property
    def facts(self) -> Mapping[str, str]:
        """Empty texts for what is not known."""
        return defaultdict(str, self.info.facts if self.info else {})

    @property
    def title(self) -> str:
        """Agent and task, by their names where they are known."""
        run = self.info.run if self.info else None
        names = replace(run.names, agent=run.names.agent or self.facts["agent"]) if run else Names()
        return names.title(self.run.agent_id, run.task_key if run else None) or "Agent run"

    @property
    def reasons(self) -> Mapping[int, str]:
        """Empty texts for attempts that have not failed."""
        return defaultdict(str, self.info.reasons if self.info else {})

    @property
    def steps_by_attempt(self) -> Sequence[tuple[int, Sequence[Step]]]:
        """The steps of each attempt; the first has those before it, too."""
        steps = self.info.steps if self.info else ()
        numbers = sorted({step.attempt for step in steps})
        return [(number, [step for step in steps if step.attempt == number]) for number in numbers]

    @property
    def elapsed(self) -> timedelta | None:
        return self.info.run.elapsed(datetime.now(UTC)) if self.info else None

    @property
    def receipt(self) -> OutputReceipt | None:
        """Of the shown attempt."""
        return next((one.receipt for one in self.attempts if one.number == self.attempt), None)

    @property
    def peaks(self) -> str:
        """What the shown attempt's pod used at most; empty until the run has its outcome."""
        attempts = self.outcome.attempts if self.outcome else ()
        return next((one.peaks.text for one in attempts if one.attempt == self.attempt), "")

    @property
    def phase(self) -> str:
        return self.info.run.phase if self.info else ("live" if self.live else "ended")

    @property
    def phase_style(self) -> str:
        failed = self.outcome is not None and self.outcome.failure is not None
        return phase_style(self.phase, failed=failed, working=self.live)

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


class RunViews:
    """Creates views of runs at their present state."""

    def __init__(self, store: TranscriptStore, source: RunInfoSource) -> None:
        self._store = store
        self._source = source
        self._usage = AttemptUsage(store)

    async def view(self, run: RunKey, attempt: int | None = None) -> RunView:
        """Everything of the page except the lines; without `attempt` that of the newest attempt."""
        info: RunInfo | None = None
        note = ""
        try:
            info = await self._source.run_info(run)
        except RunInfoUnavailable as error:
            note = f"{error}. Steps and outcome are missing here."
        attempts = await self._attempts(run, info)
        chosen = attempt or (attempts[-1].number if attempts else 1)
        sealed = any(one.number == chosen and one.receipt for one in attempts)
        return RunView(
            run=run,
            attempt=chosen,
            info=info,
            attempts=attempts,
            progress=await self._usage.progress(AttemptKey(run=run, attempt=chosen)),
            live=not info.run.decided if info else not sealed,
            note=note,
        )

    async def _attempts(self, run: RunKey, info: RunInfo | None) -> list[Attempt]:
        outcome = info.outcome if info else None
        failures = {one.attempt: one.failure_code for one in outcome.attempts} if outcome else {}
        numbers = sorted({*failures, *await self._store.attempts(run)})[-MAX_ATTEMPTS:]
        return [
            Attempt(number, failures.get(number), await self._store.receipt(AttemptKey(run=run, attempt=number)))
            for number in numbers
        ]
