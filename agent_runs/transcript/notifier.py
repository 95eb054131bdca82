"""Wakes the readers of one attempt, and gives them the lines just stored, so that they need not query the store."""

import asyncio
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from agent_runs.transcript.lines import Line, page_end

TAIL_BYTES: Final = 256 * 1024
"""Size limit of the newest lines of an attempt that are held in memory while it has readers."""


class AttemptNotifier:
    """Announces the changes that this process makes to one attempt.

    Attributes:
        changes: counts every change.
        store_changes: counts the changes that are not lines, such as the receipt: readers must query the store.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.store_changes = 0
        self._changed = asyncio.Condition()
        self._tail: deque[Line] = deque()
        self._size = 0
        self._start: int | None = None  # everything stored between this and the tail's end is in the tail
        self._end = 0

    async def announce(self, lines: Iterable[Line] = (), before: int = 0) -> None:
        """Wake all waiting readers. `lines` were stored right behind line `before`, with nothing in between."""
        new = sorted(lines, key=lambda line: line.sequence)
        if new:
            self._extend_tail(new, before)
        else:
            self.store_changes += 1
        async with self._changed:
            self.changes += 1
            self._changed.notify_all()

    def after(self, sequence: int, max_bytes: int) -> list[Line] | None:
        """The next page of lines after this one, as far as they were announced here; None if the store must be read."""
        if self._start is None or sequence < self._start:
            return None
        later = [line for line in self._tail if line.sequence > sequence]
        end = page_end(((line.sequence, len(line.data)) for line in later), max_bytes)
        return [line for line in later if end is not None and line.sequence <= end]

    async def wait_for_change(self, seen: int, limit: timedelta) -> None:
        """Return when `changes` exceeds `seen`, or after `limit`: other processes cannot announce here."""
        try:
            async with asyncio.timeout(limit.total_seconds()), self._changed:
                await self._changed.wait_for(lambda: self.changes > seen)
        except TimeoutError:
            return

    def _extend_tail(self, new: list[Line], before: int) -> None:
        if new[-1].sequence <= self._end:
            return  # announced late: newer lines were announced before
        if self._start is None or before != self._end:  # another process wrote the lines in between
            self._tail.clear()
            self._size, self._start = 0, before
        self._tail += new
        self._end = new[-1].sequence
        self._size += sum(len(line.data) for line in new)
        while self._size > TAIL_BYTES:
            dropped = self._tail.popleft()
            self._size -= len(dropped.data)
            self._start = dropped.sequence
