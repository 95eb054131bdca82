"""Threads for what would keep the event loop, and so all other runs, from their work."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE: Final = 64 * 1024
"""Bytes of lines that are redacted, counted, folded or encoded in a thread."""
_THREADS: Final = ThreadPoolExecutor(2, "large-lines")
"""Few, because each keeps Python's lock a part of the time; and their own, so that pages never wait for them."""


async def off_loop(size: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls it: for a large amount of data in a thread, otherwise at once, which costs less."""
    if size <= LARGE:
        return call(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(call, *args, **kwargs))
