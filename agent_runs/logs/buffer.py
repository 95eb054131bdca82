"""Output that was read ahead of who stores it."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from agent_runs.contracts.outcome import Gap
from agent_runs.logs.log_resume import Cursor
from agent_runs.transcript.lines import Line, stored_size

BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Bytes read ahead of the consumer. A reader that stalls loses output when the kubelet rotates the log."""


@dataclass
class Batch:
    """Output that came together.

    Attributes:
        cursor: where to continue once these lines are stored.
        written_at: when the newest of them was written, by the node's clock.
    """

    lines: list[Line] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    cursor: Cursor | None = None
    written_at: datetime | None = None

    @property
    def size(self) -> int:
        """The approximate number of bytes, here and in the store."""
        return stored_size(self.lines)


class Buffer:
    """Batches read ahead, bounded by their bytes and merged into one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batch: Batch | None = None
        self._size = 0
        self._closed = False
        self._has_waiter = False
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    @property
    def stored(self) -> bool:
        """Whether everything was taken and the consumer waits for more, so that it has stored it."""
        return self._batch is None and self._has_waiter

    async def put(self, batch: Batch) -> None:
        """Add a batch; wait while the buffer is full."""
        while self._size > self._limit:
            self._emptied.clear()
            await self._emptied.wait()
        if self._batch is None:
            self._batch = batch
        else:
            self._batch.lines += batch.lines
            self._batch.gaps += batch.gaps
            self._batch.cursor = batch.cursor
        self._size += batch.size
        self._filled.set()

    async def take(self) -> Batch | None:
        """Take everything once there is something; an empty batch after `wake`, None after `close`."""
        if self._batch is None and not self._closed:
            self._has_waiter = True
            await self._filled.wait()
        taken, self._batch, self._size = self._batch, None, 0
        self._has_waiter = self._has_waiter and taken is None
        if not self._closed:
            self._filled.clear()
        self._emptied.set()
        return taken if taken is not None or self._closed else Batch()

    def wake(self) -> None:
        self._filled.set()

    def close(self) -> None:
        """Refuse further batches; `take` returns None once the buffer is empty."""
        self._closed = True
        self._filled.set()
