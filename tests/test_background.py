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

    with pytest.raises(KeyError):
        async with in_background(work()):
            await asyncio.sleep(0)
            raise KeyError
    assert ended.is_set()


async def test_an_error_of_background_work_is_raised_at_the_end_of_its_block() -> None:
    reached = False

    async def work() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        async with in_background(work()):
            await asyncio.sleep(0)
            reached = True
    assert reached
