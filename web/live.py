"""The live part of a page: new entries as they come, and the head whenever it has changed."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from contracts.identity import AttemptKey
from transcripts.follow import pages
from transcripts.service import ALIVE, CHUNK_BYTES, RETRY
from transcripts.store import Line, TranscriptStore
from web.look import Look, View, shown
from web.views import Views

HEAD: Final = timedelta(seconds=2)
"""How often a live page learns what Temporal knows."""


@dataclass
class Live:
    """One reader of a run that goes on. Holds one chunk of lines and the last head, nothing else."""

    store: TranscriptStore
    views: Views
    look: Look
    key: AttemptKey
    draining: asyncio.Event
    poll: timedelta
    keep_alive: timedelta
    _view: View | None = None
    _head: str = ""
    _looked: float = field(default=float("-inf"))
    _spoke: float = 0

    async def over(self, after: int) -> bool:
        """Whether nothing would be told beyond `after`."""
        view = await self.views.of(self.key.run.run_id, self.key.attempt)
        return not view.live and not await self.store.read(self.key, after, limit=1)

    async def events(self, after: int) -> AsyncIterator[str]:
        """Server-sent events: `entries` with the last line's sequence as id, `head`, then `attempt` or `end`."""
        self._spoke = self._now()
        yield f"retry: {RETRY // timedelta(milliseconds=1)}\n\n"
        async for page in pages(self.store, self.key, after, done=self._written, poll=self.poll, max_bytes=CHUNK_BYTES):
            if told := await self._entries(page) + await self._news():
                yield told
            if self.draining.is_set():
                return
        async for told in self._aftermath():
            yield told

    async def _aftermath(self) -> AsyncIterator[str]:
        """After the output: the run's last steps, until it ends or tries again."""
        while not await self._followed():
            if told := await self._news():
                yield told
            if self._ended:
                yield event("end", "")
                return
            if self.draining.is_set():
                return
            await asyncio.sleep(self.poll.total_seconds())
        yield event("attempt", "")

    @property
    def _ended(self) -> bool:
        return self._view is not None and not self._view.live

    async def _written(self) -> bool:
        """No more output will come to this attempt."""
        return self._ended or await self.store.receipt(self.key) is not None or await self._followed()

    async def _followed(self) -> bool:
        """Another attempt has begun."""
        return max(await self.store.attempts(self.key.run.run_id), default=0) > self.key.attempt

    async def _entries(self, page: list[Line]) -> str:
        if not page:
            return ""
        self._spoke = self._now()
        html = await asyncio.to_thread(self._rendered, page)
        return event("entries", html, page[-1].sequence)

    def _rendered(self, page: list[Line]) -> str:
        return self.look.entries(self.key.run.run_id, self.key.attempt, shown(page))

    async def _news(self) -> str:
        """The head if it has changed, or a sign of life after a long silence."""
        if self._now() - self._looked >= HEAD.total_seconds():
            self._looked = self._now()
            self._view = await self.views.of(self.key.run.run_id, self.key.attempt)
            head = self.look.head(self._view)
            if head != self._head:
                self._head = head
                self._spoke = self._now()
                return event("head", head)
        if self._now() - self._spoke >= self.keep_alive.total_seconds():
            self._spoke = self._now()
            return ALIVE
        return ""

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def event(name: str, html: str, sequence: int | None = None) -> str:
    """One server-sent event. JSON keeps the data on one line."""
    identity = "" if sequence is None else f"id: {sequence}\n"
    return f"{identity}event: {name}\ndata: {json.dumps(html)}\n\n"
