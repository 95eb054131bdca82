"""The usage of an attempt whose output is followed: recorded in the transcript store, and judged by the run's budget.

It is recorded while the agent works and, from its report, at the end. Writes with lines join the transaction of the
lines. An agent that is silent costs at most one more write, for what its newest lines have changed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, Self

import structlog

from agent_runs.background import in_background
from agent_runs.contracts.errors import BudgetExceeded, RunError, TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.messages import Budget, BudgetLimit, OverBudget, StreamLogs, StreamProgress
from agent_runs.contracts.outcome import Report, Usage
from agent_runs.contracts.updates import BudgetWarning
from agent_runs.logs.stored_output import StoredOutput, fold_stored
from agent_runs.transcript.budget import judge
from agent_runs.transcript.fold import Fold, Progress
from agent_runs.transcript.pricing import cost_of
from agent_runs.transcript.store import TranscriptStore, Writer
from agent_runs.transcript.usage import StoredUsage

log: Final[Any] = structlog.get_logger()

RECORD_INTERVAL: Final = timedelta(seconds=5)
"""Between two writes of one attempt's usage."""


@dataclass
class UsageRecorder:
    """The usage of one attempt that is being followed."""

    model: str
    stored: StoredOutput
    clock: Callable[[], float] = time.monotonic
    _recorded: int = 0
    _recorded_at: float = float("-inf")

    def due(self) -> StoredUsage | None:
        """The usage, if lines were stored since it was last returned, and that was `RECORD_INTERVAL` ago."""
        if self.clock() - self._recorded_at < RECORD_INTERVAL.total_seconds():
            return None
        if self.stored.sequence == self._recorded:
            return None
        self._recorded, self._recorded_at = self.stored.sequence, self.clock()
        progress = self.stored.fold.progress
        last_output = self.stored.redaction.hide(progress.last_output)
        return stored_usage(self.model, progress.usage, progress.steps, progress.cost_usd, last_output)

    @asynccontextmanager
    async def recording(self, store: TranscriptStore, key: AttemptKey, writer: Writer) -> AsyncIterator[None]:
        """Also record, until the block ends, what the last lines before a silence have changed."""

        async def record() -> None:
            while True:
                await asyncio.sleep(RECORD_INTERVAL.total_seconds())
                if (usage := self.due()) is not None:
                    try:
                        await store.append(key, [], writer, usage)
                    except RunError:  # the next line meets the same error, and there it counts
                        self._recorded = 0

        async with in_background(record()):
            yield


async def record_report(store: TranscriptStore, key: AttemptKey, model: str, report: Report) -> None:
    """Record the usage of a report, which holds no secret. A store that cannot be written holds up no outcome."""
    last_output = report.last_output or report.summary
    usage = stored_usage(model, report.usage, report.steps, report.cost_usd, last_output)
    try:
        await store.record_usage(key, usage)
    except TranscriptsUnavailable as error:
        log.warning("usage.skipped", run=key.run.run_id, attempt=key.attempt, error=error.message)


def stored_usage(model: str, usage: Usage, steps: int, reported: Decimal | None, last_output: str) -> StoredUsage:
    """The usage as it is stored. OpenCode reports a cost of 0 for a model without prices: then none is known."""
    return StoredUsage(
        input_tokens=usage.uncached_tokens,
        cached_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
        steps=steps,
        cost_usd=cost_of(model, usage, reported).usd or None,
        model=model,
        last_output=next(iter(last_output.strip().splitlines()), ""),
    )


@dataclass
class BudgetWatch:
    """Decides whether the agent of one attempt may go on.

    Attributes:
        budget: of the run; None: there is no limit.
        earlier: what the run's earlier attempts have used.
        warn: passes a warning on; False: the run does not take it now.
        warned: the limits of which people have been warned.
    """

    budget: Budget | None
    stored: StoredOutput
    earlier: Sequence[Progress]
    warn: Callable[[BudgetWarning], Awaitable[bool]]
    warned: set[BudgetLimit] = field(default_factory=set)

    @classmethod
    async def begin(
        cls,
        input: StreamLogs,
        stored: StoredOutput,
        store: TranscriptStore,
        *,
        heartbeat: Callable[[StreamProgress], None],
        warn: Callable[[BudgetWarning], Awaitable[bool]],
    ) -> Self:
        """Read what the run's earlier attempts have written, if there is a budget.

        Raises:
            TranscriptsUnavailable: the store does not answer.
        """
        earlier: list[Progress] = []
        for number in range(1, input.attempt.attempt if input.budget is not None else 1):
            key, fold = input.attempt.model_copy(update={"attempt": number}), Fold()
            await fold_stored(store, key, fold, lambda _sequence: heartbeat(stored.progress))
            earlier.append(fold.progress)
        return cls(input.budget, stored, earlier, warn)

    async def end(self) -> OverBudget | None:
        """The end of the stream if the agent is to be stopped; None: it may go on, and people are warned if need be."""
        if self.budget is None:
            return None
        finding = judge(self.budget, [*self.earlier, self.stored.fold.progress], self.warned)
        if finding is None:
            return None
        hide = self.stored.redaction.hide
        for limit, text in finding.warnings:
            if await self.warn(BudgetWarning(limit=limit, text=hide(text))):
                self.warned.add(limit)
        if finding.exceeded is None:
            return None
        return OverBudget(exceeded=BudgetExceeded.as_failure(hide(finding.exceeded)), progress=self.stored.progress)
