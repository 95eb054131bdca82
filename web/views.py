"""Gathers what is known of a run: facts from Temporal, attempts and receipts from the store, totals from the output."""

from typing import Final

from transcripts.service import key_of
from transcripts.store import TranscriptStore
from web.facts import Facts, FactsUnavailable, Runs
from web.look import Attempt, View
from web.totals import Totals

MOST_ATTEMPTS: Final = 50


class Views:
    """Views of runs, each as of now."""

    def __init__(self, store: TranscriptStore, runs: Runs) -> None:
        self._store = store
        self._runs = runs
        self._totals = Totals(store)

    async def of(self, run_id: str, attempt: int | None = None) -> View:
        """Everything but the lines. Without an attempt the newest one is shown."""
        facts: Facts | None = None
        note = ""
        try:
            facts = await self._runs.facts(run_id)
        except FactsUnavailable as error:
            note = f"{error}. Steps and outcome are missing here."
        attempts = await self._attempts(run_id, facts)
        chosen = attempt or (attempts[-1].number if attempts else 1)
        sealed = any(one.number == chosen and one.receipt for one in attempts)
        return View(
            run_id=run_id,
            attempt=chosen,
            facts=facts,
            attempts=attempts,
            used=await self._totals.of(key_of(run_id, chosen)),
            live=not facts.run.decided if facts else not sealed,
            note=note,
        )

    async def _attempts(self, run_id: str, facts: Facts | None) -> list[Attempt]:
        outcome = facts.outcome if facts else None
        told = {one.attempt: one.failure_code for one in outcome.attempts} if outcome else {}
        known = sorted({*told, *await self._store.attempts(run_id)})[-MOST_ATTEMPTS:]
        return [
            Attempt(number, told.get(number), await self._store.receipt(key_of(run_id, number))) for number in known
        ]
