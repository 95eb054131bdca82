"""What attempts have used so far and what their agents do, from their stored output.

Each call continues where the last one stopped.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.outcome import GAP_STREAM
from agent_runs.transcript.agent_state import AgentState
from agent_runs.transcript.fold import Fold, Progress
from agent_runs.transcript.store import Line, TranscriptStore

MAX_FOLDS: Final = 64
"""Folds in memory; the size of each is bounded, whatever the output."""
MAX_BYTES_PER_CALL: Final = 32 * 1024 * 1024
"""Of output to read: later calls continue in a longer transcript."""


class AttemptProgress(NamedTuple):
    """What one attempt has used so far.

    Attributes:
        complete: all stored output was read.
        doing: what its agent does, in words for people, as far as its log shows; empty: nobody knows.
    """

    progress: Progress
    complete: bool
    doing: str = ""


@dataclass
class _PartialFold:
    fold: Fold = field(default_factory=Fold)
    agent: AgentState = field(default_factory=AgentState)
    after: int = 0
    reading: asyncio.Task[AttemptProgress] | None = None

    def add(self, page: list[Line]) -> None:
        for line in page:
            self.fold.add(line)
        self.agent.add([line for line in page if line.stream != GAP_STREAM])
        self.after = page[-1].sequence


class AttemptUsage:
    """Session, tokens, cost and work of attempts, as far as their output was read."""

    def __init__(self, store: TranscriptStore) -> None:
        self._store = store
        self._folds: OrderedDict[tuple[str, int], _PartialFold] = OrderedDict()

    async def progress(self, key: AttemptKey) -> AttemptProgress:
        """What the output shows that was read by now."""
        partial = self._partial_fold(key)
        if partial.reading is None or partial.reading.done():
            partial.reading = asyncio.create_task(self._read(key, partial))
        return await asyncio.shield(partial.reading)  # a reader that leaves does not end it: its thread would go on

    async def _read(self, key: AttemptKey, partial: _PartialFold) -> AttemptProgress:
        read = 0
        while read < MAX_BYTES_PER_CALL:
            page = await self._store.read(key, partial.after)
            if not page:
                return AttemptProgress(partial.fold.progress, True, _doing(partial.agent))
            await asyncio.to_thread(partial.add, page)
            read += sum(len(line.data) for line in page)
        return AttemptProgress(partial.fold.progress, False)

    def _partial_fold(self, key: AttemptKey) -> _PartialFold:
        id_ = (key.run.name, key.attempt)
        partial = self._folds.pop(id_, None) or _PartialFold()
        self._folds[id_] = partial
        if len(self._folds) > MAX_FOLDS:
            self._folds.popitem(last=False)
        return partial


def _doing(agent: AgentState) -> str:
    """What OpenCode's log shows that it does now."""
    match agent.waits_for:
        case "tool":
            return f"runs {', '.join(agent.tools)}"
        case "provider":
            return "waits for the model"
        case "unknown":
            return ""
