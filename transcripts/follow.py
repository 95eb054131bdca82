"""Live reading: pages of an attempt's lines as they arrive, until the attempt is over.

Writers in the same process wake the reader at once and hand it what they have stored (`transcripts.news`); lines that
another process writes are found by looking again after `poll`. Nothing is queued for a reader, so a slow one costs no
memory.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from datetime import timedelta

from contracts.identity import AttemptKey
from transcripts.store import PAGE_BYTES, Line, TranscriptStore


async def follow(
    store: TranscriptStore, key: AttemptKey, after: int, *, done: Callable[[], Awaitable[bool]], poll: timedelta
) -> AsyncGenerator[Line]:
    """Every line beyond `after`, in order, once, until `done` says that no more will be written.

    Raises:
        TranscriptsUnavailable: the store cannot be read; go on later from the last line's sequence.
    """
    async for page in pages(store, key, after, done=done, poll=poll):
        for line in page:
            yield line


async def pages(
    store: TranscriptStore,
    key: AttemptKey,
    after: int,
    *,
    done: Callable[[], Awaitable[bool]],
    poll: timedelta,
    max_bytes: int = PAGE_BYTES,
) -> AsyncIterator[list[Line]]:
    """The same by pages. An empty page says that there was nothing new: time for a sign of life.

    A reader that has kept up gets its lines from the writer, if that is in this process, and never asks the store.
    """
    news = store.news(key)
    told, looked = False, -1
    while True:
        seen = news.count
        page = news.after(after, max_bytes)
        if page == [] and told and looked == news.untold:
            told = False
            await news.beyond(seen, poll)
            continue
        told = bool(page)
        if not page:
            looked = news.untold
            over = await done()  # asked before reading, so what was written before the end is read
            page = await store.read(key, after, max_bytes=max_bytes)
            if over and not page:
                return
        after = page[-1].sequence if page else after
        yield page
        if not page:
            await news.beyond(seen, poll)
