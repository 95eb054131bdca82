"""Wakes the readers of one attempt, and hands them what was just stored, so that they need not ask the store for it."""

import asyncio
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from transcripts.lines import Line, page_end

TAIL_BYTES: Final = 256 * 1024
"""Of the newest lines of one attempt, held for as long as somebody listens to it."""


class News:
    """What this process changes in one attempt.

    Attributes:
        count: grows with every change that readers should look at.
        untold: grows with every change that only the store can tell, like the receipt.
    """

    def __init__(self) -> None:
        self.count = 0
        self.untold = 0
        self._changed = asyncio.Condition()
        self._tail: deque[Line] = deque()
        self._size = 0
        self._start: int | None = None  # everything stored between this and the tail's end is in the tail
        self._end = 0

    async def announce(self, lines: Iterable[Line] = (), before: int = 0) -> None:
        """Wake everyone who waits. `lines` were stored right behind line `before`, with nothing in between."""
        fresh = sorted(lines, key=lambda line: line.sequence)
        if fresh:
            self._keep(fresh, before)
        else:
            self.untold += 1
        async with self._changed:
            self.count += 1
            self._changed.notify_all()

    def after(self, sequence: int, max_bytes: int) -> list[Line] | None:
        """The next page of what follows this line, as far as it was announced here; None if only the store knows."""
        if self._start is None or sequence < self._start:
            return None
        beyond = [line for line in self._tail if line.sequence > sequence]
        end = page_end(((line.sequence, len(line.data)) for line in beyond), max_bytes)
        return [line for line in beyond if end is not None and line.sequence <= end]

    async def beyond(self, count: int, patience: timedelta) -> None:
        """Return once there was news after `count`, or after `patience`: other processes cannot announce here."""
        try:
            async with asyncio.timeout(patience.total_seconds()), self._changed:
                await self._changed.wait_for(lambda: self.count > count)
        except TimeoutError:
            return

    def _keep(self, fresh: list[Line], before: int) -> None:
        if fresh[-1].sequence <= self._end:
            return  # told late: others were announced since
        if self._start is None or before != self._end:  # another process wrote what lies between
            self._tail.clear()
            self._size, self._start = 0, before
        self._tail += fresh
        self._end = fresh[-1].sequence
        self._size += sum(len(line.data) for line in fresh)
        while self._size > TAIL_BYTES:
            gone = self._tail.popleft()
            self._size -= len(gone.data)
            self._start = gone.sequence
