"""Live reading: pages of an attempt's lines as they arrive, until the attempt is over.

Writers in the same process wake the reader at once and give it the lines they have stored
(`agent_runs.transcript.notifier`). Lines that another process writes are found by querying every `poll`. Nothing is
queued for a reader, so a slow one costs no memory.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from datetime import timedelta

from agent_runs.contracts.identity import AttemptKey
from agent_runs.transcript.store import PAGE_BYTES, Line, TranscriptStore


async def follow(
    store: TranscriptStore, key: AttemptKey, after: int, *, done: Callable[[], Awaitable[bool]], poll: timedelta
) -> AsyncGenerator[Line]:
    """Yield every line after `after`, in order, once, until `done` returns True: no more will be written.

    Raises:
        TranscriptsUnavailable: the store cannot be read; resume later from the last line's sequence.
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
    """As `follow`, by pages. An empty page means that nothing was new for `poll`: time for a keep-alive."""
    notifier = store.notifier(key)
    from_notifier, store_changes = False, -1
    while True:
        seen = notifier.changes
        page = notifier.after(after, max_bytes)
        if page == [] and from_notifier and store_changes == notifier.store_changes:
            from_notifier = False
            await notifier.wait_for_change(seen, poll)
            continue
        from_notifier = bool(page)
        if not page:
            store_changes = notifier.store_changes
            over = await done()  # queried before reading, so that what was written before the end is read
            page = await store.read(key, after, max_bytes=max_bytes)
            if over and not page:
                return
        after = page[-1].sequence if page else after
        yield page
        if not page:
            await notifier.wait_for_change(seen, poll)
