"""Work in the background of a block ends with the block."""

import asyncio

import pytest

from agent_runs.background import in_background


async def test_background_work_has_ended_when_its_block_has() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async def block() -> None:
        async with in_background(work()):
            await asyncio.sleep(0)
            raise KeyError("the block's own")

    with pytest.raises(KeyError, match="the block's own"):
        await block()
    assert ended.is_set()


async def test_an_error_of_background_work_is_raised_at_the_end_of_its_block() -> None:
    passed: list[str] = []

    async def work() -> None:
        raise ValueError("it failed")

    async def block() -> None:
        async with in_background(work()):
            await asyncio.sleep(0)
            passed.append("the end")

    with pytest.raises(ValueError, match="it failed"):
        await block()
    assert passed == ["the end"]


async def test_a_cancel_while_background_work_ends_is_not_lost() -> None:
    ending = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.sleep(0)

    async def block() -> None:
        async with in_background(work()):
            await asyncio.sleep(0)

    cancelled = asyncio.create_task(block())
    await ending.wait()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
