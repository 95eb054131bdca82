"""Watches the budget of a run while its output is followed, across attempts and restarts of workers.

Nothing is kept but what the transcript has: a worker that takes over folds the stored output and counts what it shows.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agent_runs.contracts.errors import BudgetExceeded
from agent_runs.contracts.messages import BudgetLimit, OverBudget, StreamLogs, StreamProgress
from agent_runs.contracts.updates import BudgetWarning
from agent_runs.logs.threads import off_loop
from agent_runs.transcript.budget import Progress, judge
from agent_runs.transcript.fold import Fold
from agent_runs.transcript.store import Line, TranscriptStore


@dataclass
class BudgetWatch:
    """Decides whether the agent of one attempt may go on.

    Attributes:
        earlier: what the run's earlier attempts have used.
        hide: hides the run's secrets in a text.
        warn: passes a warning on; False: the run does not take it now.
        warned: the limits of which people have been warned.
    """

    input: StreamLogs
    earlier: Sequence[Progress]
    hide: Callable[[str], str]
    warn: Callable[[BudgetWarning], Awaitable[bool]]
    warned: set[BudgetLimit] = field(default_factory=set)

    @classmethod
    async def begin(
        cls,
        input: StreamLogs,
        store: TranscriptStore,
        *,
        hide: Callable[[str], str],
        heartbeat: Callable[[], None],
        warn: Callable[[BudgetWarning], Awaitable[bool]],
    ) -> "BudgetWatch":
        """Read what the run's earlier attempts have written, if there is a budget.

        Raises:
            TranscriptsUnavailable: the store does not answer.
        """
        earlier: list[Progress] = []
        for number in range(1, input.attempt.attempt if input.budget is not None else 1):
            key, fold, sequence = input.attempt.model_copy(update={"attempt": number}), Fold(), 0
            while page := await store.read(key, sequence):
                await off_loop(sum(len(line.data) for line in page), _add, fold, page)
                sequence = page[-1].sequence
                heartbeat()
            earlier.append(fold.progress)
        return cls(input, earlier, hide, warn)

    async def end(self, fold: Fold, progress: Callable[[], StreamProgress]) -> OverBudget | None:
        """The end of the stream if the agent is to be stopped; None: it may go on, and people are warned if need be.

        Asked after each batch of lines, so `progress` is only called for an end.
        """
        if self.input.budget is None:
            return None
        finding = judge(self.input.budget, [*self.earlier, fold.progress], self.warned)
        if finding is None:
            return None
        for limit, text in finding.warnings:
            if await self.warn(BudgetWarning(limit=limit, text=self.hide(text))):
                self.warned.add(limit)
        if finding.exceeded is None:
            return None
        return OverBudget(exceeded=BudgetExceeded.as_failure(self.hide(finding.exceeded)), progress=progress())


def _add(fold: Fold, page: Sequence[Line]) -> None:
    for line in page:
        fold.add(line)
