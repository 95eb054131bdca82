"""The usage of attempts so far, folded from their stored output; each call continues where the last one stopped."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from agent_runs.agents.opencode.fold import Fold, Progress
from agent_runs.contracts.identity import AttemptKey
from agent_runs.transcripts.store import Line, TranscriptStore

MAX_FOLDS: Final = 64
"""Folds in memory; the size of each is bounded, whatever the output."""
MAX_BYTES_PER_CALL: Final = 32 * 1024 * 1024
"""Of output to read: later calls continue in a longer transcript."""


@dataclass
class _PartialFold:
    fold: Fold = field(default_factory=Fold)
    after: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, page: list[Line]) -> None:
        for line in page:
            self.fold.add(line)
        self.after = page[-1].sequence


class AttemptUsage:
    """Session, tokens and cost of attempts, as far as their output was read."""

    def __init__(self, store: TranscriptStore) -> None:
        self._store = store
        self._folds: OrderedDict[tuple[str, int], _PartialFold] = OrderedDict()

    async def progress(self, key: AttemptKey) -> tuple[Progress, bool]:
        """The fold's progress, and whether it includes all stored output."""
        partial = self._partial_fold(key)
        async with partial.lock:
            read = 0
            while read < MAX_BYTES_PER_CALL:
                page = await self._store.read(key, partial.after)
                if not page:
                    return partial.fold.progress, True
                await asyncio.to_thread(partial.add, page)
                read += sum(len(line.data) for line in page)
            return partial.fold.progress, False

    def _partial_fold(self, key: AttemptKey) -> _PartialFold:
        id_ = (key.run.run_id, key.attempt)
        partial = self._folds.pop(id_, None) or _PartialFold()
        self._folds[id_] = partial
        if len(self._folds) > MAX_FOLDS:
            self._folds.popitem(last=False)
        return partial
