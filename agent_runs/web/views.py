"""Collects what a run's page shows: run info from Temporal, attempts and receipts from the store, usage so far."""

from typing import Final

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.transcript.store import TranscriptStore
from agent_runs.web.render import Attempt, View
from agent_runs.web.run_info import RunInfo, RunInfoSource, RunInfoUnavailable
from agent_runs.web.usage import AttemptUsage

MAX_ATTEMPTS: Final = 50
"""Of a run on its page: the newest ones."""


class RunViews:
    """Creates views of runs at their present state."""

    def __init__(self, store: TranscriptStore, source: RunInfoSource) -> None:
        self._store = store
        self._source = source
        self._usage = AttemptUsage(store)

    async def view(self, run: RunKey, attempt: int | None = None) -> View:
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
        return View(
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
