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

PAUSE_FACTOR: Final = 8
"""The pause after a write, as a multiple of its duration, within limits: many small writes cost more than few."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Submission(Generic[Item, Result]):
    item: Item
    result: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class GroupCommit(Generic[Item, Result]):
    """Writes queued items in groups, in the order of their submission.

    Args:
        write: writes items, all or none, and returns a result for each, in their order.
        lock: held while writing; other writers may share it.
        size_of: an item's size; the sizes of a group add up to at most `max_size`, except that a larger item is a group
            of its own.
        shared_error: fails the whole group. After any other error the items are written one by one, so that a bad item
            fails only its own submitter.
        pause: the shortest and the longest pause between two groups; it bounds the rate of transactions.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        lock: asyncio.Lock,
        size_of: Callable[[Item], int],
        max_size: int,
        shared_error: type[Exception],
        pause: tuple[timedelta, timedelta] = (timedelta(), timedelta()),
    ) -> None:
        self._write = write
        self._lock = lock
        self._size_of = size_of
        self._max_size = max_size
        self._shared_error = shared_error
        self._min_pause, self._max_pause = (duration.total_seconds() for duration in pause)
        self._queue: deque[_Submission[Item, Result]] = deque()
        self._writer: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Return the item's result once it is written.

        A cancel ends the wait, not the write: an abandoned transaction would keep its locks. So a cancelled item may
        or may not have been written.
        """
        submission = _Submission[Item, Result](item)
        self._queue.append(submission)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        return await submission.result

    async def idle(self) -> None:
        """Return once nothing is being written."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_all(self) -> None:
        try:
            while self._queue:
                async with self._lock:
                    started = self._now()
                    await self._write_group(self._next_group())
                    duration = self._now() - started
                await asyncio.sleep(min(max(self._min_pause, PAUSE_FACTOR * duration), self._max_pause))
        finally:
            self._writer = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _next_group(self) -> list[_Submission[Item, Result]]:
        group: list[_Submission[Item, Result]] = []
        size = 0
        while self._queue:
            if self._queue[0].result.done():  # its submitter was cancelled
                self._queue.popleft()
                continue
            size += self._size_of(self._queue[0].item)
            if group and size > self._max_size:
                break
            group.append(self._queue.popleft())
        return group

    async def _write_group(self, group: Sequence[_Submission[Item, Result]]) -> None:
        if not group:
            return
        try:
            results = await self._write([submission.item for submission in group])
        except self._shared_error as error:
            _fail(group, error)
        except Exception as error:  # noqa: BLE001 (its submitter gets it)
            if len(group) == 1:
                _fail(group, error)
                return
            for submission in group:
                await self._write_group([submission])
        else:
            for submission, result in zip(group, results, strict=True):
                if not submission.result.done():
                    submission.result.set_result(result)


def _fail(group: Sequence[_Submission[Item, Result]], error: Exception) -> None:
    for submission in group:
        if not submission.result.done():
            submission.result.set_exception(error)
