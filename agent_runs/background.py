"""Work that goes on while a block runs."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None], name: str | None = None) -> AsyncIterator[None]:
    """Run `work` until the block ends, then cancel it and wait for its end. An error of it is raised there."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])  # awaiting the task itself would hide a cancel of the block that comes now
        if not task.cancelled():
            task.result()
