"""What an attempt has used so far, folded from its output; it goes on where the last look ended."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from contracts.identity import AttemptKey
from opencode.fold import Fold, Progress
from transcripts.store import Line, TranscriptStore

ATTEMPTS: Final = 64
"""Folds kept; each is bounded whatever the output."""
LOOK_BYTES: Final = 32 * 1024 * 1024
"""Output read for one look at the most: a longer transcript is caught up with by the next ones."""


@dataclass
class _Reading:
    fold: Fold = field(default_factory=Fold)
    after: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, page: list[Line]) -> None:
        for line in page:
            if line.stream == "stdout":
                self.fold.stdout(line.data, terminated=line.terminated)
        self.after = page[-1].sequence


class Totals:
    """Session, tokens and cost of attempts, as far as they are read."""

    def __init__(self, store: TranscriptStore) -> None:
        self._store = store
        self._known: OrderedDict[tuple[str, int], _Reading] = OrderedDict()

    async def of(self, key: AttemptKey) -> tuple[Progress, bool]:
        """What was used, and whether that is all that is stored."""
        reading = self._reading(key)
        async with reading.turn:
            read = 0
            while read < LOOK_BYTES:
                page = await self._store.read(key, reading.after)
                if not page:
                    return reading.fold.progress, True
                await asyncio.to_thread(reading.take, page)
                read += sum(len(line.data) for line in page)
            return reading.fold.progress, False

    def _reading(self, key: AttemptKey) -> _Reading:
        name = (key.run.run_id, key.attempt)
        reading = self._known.pop(name, None) or _Reading()
        self._known[name] = reading
        if len(self._known) > ATTEMPTS:
            self._known.popitem(last=False)
        return reading
