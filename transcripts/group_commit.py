"""Group commit: what many writers queue while a write is under way is written together by the next one.

A transaction costs far more than the few lines of one run, and hundreds of runs write at once. A lone writer writes
at once; groups form while a write is under way and in the pause after it, which is the longer the longer that took.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Generic, TypeVar

REST: Final = 8
"""How many times as long as a write the pause after it is, within limits: many small writes cost more than few."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    answer: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class GroupCommit(Generic[Item, Result]):
    """Writes queued items in groups, in the order in which they came.

    Args:
        write: writes items, all or none, and returns a result for each, in their order.
        turn: held while writing; other writers may share it.
        weigh: an item's part of `limit`, which bounds a group; a heavier item goes alone.
        shared: failures that concern everyone in the group alike. After any other the items are written one by one,
            so that a bad item fails nobody but its owner.
        pause: the shortest and the longest between two groups; it bounds how often a transaction is paid for.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        turn: asyncio.Lock,
        weigh: Callable[[Item], int],
        limit: int,
        shared: type[Exception],
        pause: tuple[timedelta, timedelta] = (timedelta(), timedelta()),
    ) -> None:
        self._write = write
        self._turn = turn
        self._weigh = weigh
        self._limit = limit
        self._shared = shared
        self._shortest, self._longest = (limit.total_seconds() for limit in pause)
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._writer: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Return the item's result once it is written.

        A cancel ends the wait and not the write: a transaction that is abandoned half-way keeps its locks. So a
        cancelled item may or may not have been written.
        """
        mine = _Waiting[Item, Result](item)
        self._queue.append(mine)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return await mine.answer

    async def idle(self) -> None:
        """Return once nothing is being written."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_all(self) -> None:
        try:
            while self._queue:
                async with self._turn:
                    began = self._now()
                    await self._settle(self._take())
                    took = self._now() - began
                await asyncio.sleep(min(max(self._shortest, REST * took), self._longest))
        finally:
            self._writer = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _take(self) -> list[_Waiting[Item, Result]]:
        group: list[_Waiting[Item, Result]] = []
        weight = 0
        while self._queue:
            if self._queue[0].answer.done():  # its owner gave up
                self._queue.popleft()
                continue
            weight += self._weigh(self._queue[0].item)
            if group and weight > self._limit:
                break
            group.append(self._queue.popleft())
        return group

    async def _settle(self, group: Sequence[_Waiting[Item, Result]]) -> None:
        if not group:
            return
        try:
            results = await self._write([waiting.item for waiting in group])
        except self._shared as error:
            _fail(group, error)
        except Exception as error:  # noqa: BLE001 (it is handed to its owner)
            if len(group) == 1:
                _fail(group, error)
                return
            for waiting in group:
                await self._settle([waiting])
        else:
            for waiting, result in zip(group, results, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(result)


def _fail(group: Sequence[_Waiting[Item, Result]], error: Exception) -> None:
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
