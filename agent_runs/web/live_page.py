"""The live part of a page as server-sent events: new entries as they come, and the header whenever it changes."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import quote

from agent_runs.contracts.identity import AttemptKey
from agent_runs.transcript.follow import pages
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.web.render import Templates, page_entries
from agent_runs.web.run_view import RunView, RunViews
from agent_runs.web.transcripts import CHUNK_BYTES, KEEP_ALIVE, KEEP_ALIVE_COMMENT, RETRY

HEADER_INTERVAL: Final = timedelta(seconds=2)
"""Between two updates of a live page's header."""


@dataclass
class LivePage:
    """One reader of an open run. Holds one chunk of lines and the last header, nothing else."""

    store: TranscriptStore
    views: RunViews
    templates: Templates
    key: AttemptKey
    draining: asyncio.Event
    poll: timedelta
    _view: RunView | None = None
    _header: str = ""
    _viewed_at: float = float("-inf")
    _sent_at: float = 0

    async def over(self, after: int) -> bool:
        """Whether the run has ended and no line follows `after`."""
        view = await self.views.view(self.key.run, self.key.attempt)
        return not view.live and not await self.store.read(self.key, after, limit=1)

    async def events(self, after: int) -> AsyncGenerator[str]:
        """Server-sent events: `entries` with the last line's sequence as id, `header`, then `attempt` or `end`."""
        self._sent_at = self._now()
        yield f"retry: {RETRY // timedelta(milliseconds=1)}\n\n"
        output = pages(self.store, self.key, after, done=self._complete, poll=self.poll, max_bytes=CHUNK_BYTES)
        async for page in output:
            if text := await self._entries(page) + await self._header_or_keep_alive():
                yield text
            if self.draining.is_set():
                return
        async for text in self._after_output():
            yield text

    async def _after_output(self) -> AsyncIterator[str]:
        """The run's last steps after the output, until the run ends or its next attempt starts."""
        while not await self._has_next_attempt():
            if text := await self._header_or_keep_alive():
                yield text
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

    async def _complete(self) -> bool:
        """Whether no more output will come to this attempt."""
        return self._ended or await self.store.receipt(self.key) is not None or await self._has_next_attempt()

    async def _has_next_attempt(self) -> bool:
        return max(await self.store.attempts(self.key.run), default=0) > self.key.attempt

    async def _entries(self, page: list[Line]) -> str:
        if not page:
            return ""
        self._sent_at = self._now()
        return await asyncio.to_thread(self._rendered, page)

    def _rendered(self, page: list[Line]) -> str:
        base, attempt = quote(self.key.run.name, safe=""), self.key.attempt
        entries = page_entries(page)
        html = self.templates.html("transcript_entries.html", base=base, attempt=attempt, entries=entries)
        return event("entries", html, page[-1].sequence)

    async def _header_or_keep_alive(self) -> str:
        """The header if it has changed, or a keep-alive after a long silence."""
        if self._now() - self._viewed_at >= HEADER_INTERVAL.total_seconds():
            self._viewed_at = self._now()
            self._view = await self.views.view(self.key.run, self.key.attempt)
            header = self.templates.html("run_header.html", view=self._view)
            if header != self._header:
                self._header = header
                self._sent_at = self._now()
                return event("header", header)
        if self._now() - self._sent_at >= KEEP_ALIVE.total_seconds():
            self._sent_at = self._now()
            return KEEP_ALIVE_COMMENT
        return ""

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def event(name: str, html: str, sequence: int | None = None) -> str:
    """One server-sent event. JSON keeps the data on one line."""
    identity = "" if sequence is None else f"id: {sequence}\n"
    return f"{identity}event: {name}\ndata: {json.dumps(html)}\n\n"
