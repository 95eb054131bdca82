"""Writers that meet share a transaction, and nothing else."""

import asyncio
from collections.abc import Sequence

import pytest

from agent_runs.transcript.group_commit import GroupCommit


class Outage(Exception):
    """Concerns everyone."""


class Writer:
    """Each write waits for a permit of the gate; the groups are recorded."""

    def __init__(self, max_size: int = 100) -> None:
        self.groups: list[list[int]] = []
        self.finished: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)
        self.started = asyncio.Event()
        self.error: Exception | None = None
        self.commits = GroupCommit(
            self.write, lock=asyncio.Lock(), size_of=lambda item: item, max_size=max_size, shared_error=Outage
        )

    async def write(self, items: Sequence[int]) -> list[str]:
        self.groups.append(list(items))
        self.started.set()
        await self.gate.acquire()
        if self.error is not None and 13 in items:
            raise self.error
        self.finished.append(list(items))
        return [f"wrote {item}" for item in items]

    async def start(self, *items: int) -> list[asyncio.Task[str]]:
        """Submit the first, and the others while it is being written."""
        first = asyncio.create_task(self.commits.submit(items[0]))
        await self.started.wait()
        others = [asyncio.create_task(self.commits.submit(item)) for item in items[1:]]
        await asyncio.sleep(0)  # each is now queued
        return [first, *others]


def open_gate(writer: Writer) -> None:
    for _ in range(10):
        writer.gate.release()


async def test_waiting_items_are_written_together_in_order() -> None:
    writer = Writer()
    tasks = await writer.start(1, 2, 3, 4)
    open_gate(writer)
    assert await asyncio.gather(*tasks) == ["wrote 1", "wrote 2", "wrote 3", "wrote 4"]
    assert writer.groups == [[1], [2, 3, 4]]


async def test_a_group_is_bounded_and_a_large_item_is_a_group_of_its_own() -> None:
    writer = Writer(max_size=10)
    tasks = await writer.start(1, 6, 4, 1, 50, 2)
    open_gate(writer)
    await asyncio.gather(*tasks)
    assert writer.groups == [[1], [6, 4], [1], [50], [2]]


async def test_a_bad_item_fails_only_its_submitter() -> None:
    writer = Writer()
    writer.error = ValueError("unlucky")
    tasks = await writer.start(1, 2, 13, 4)
    open_gate(writer)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results == ["wrote 1", "wrote 2", writer.error, "wrote 4"]


async def test_an_outage_fails_the_whole_group_at_once() -> None:
    writer = Writer()
    writer.error = Outage()
    tasks = await writer.start(1, 2, 13, 4)
    open_gate(writer)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results == ["wrote 1", *[writer.error] * 3]
    assert writer.groups == [[1], [2, 13, 4]]


async def test_a_cancel_ends_the_wait_and_not_the_write() -> None:
    writer = Writer()
    first, *others = await writer.start(1, 2, 3)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first  # at once, though its write still waits for the gate
    assert writer.finished == []
    open_gate(writer)
    assert await asyncio.gather(*others) == ["wrote 2", "wrote 3"]
    assert writer.finished == [[1], [2, 3]]


async def test_idle_waits_for_the_last_write_even_if_nobody_else_does() -> None:
    writer = Writer()
    (only,) = await writer.start(1)
    only.cancel()
    idle = asyncio.create_task(writer.commits.idle())
    open_gate(writer)
    await idle
    assert writer.finished == [[1]]
    await writer.commits.idle()


async def test_a_cancelled_waiting_item_is_not_written() -> None:
    writer = Writer()
    first, second, third = await writer.start(1, 2, 3)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    open_gate(writer)
    assert list(await asyncio.gather(first, third)) == ["wrote 1", "wrote 3"]
    assert writer.groups == [[1], [3]]
