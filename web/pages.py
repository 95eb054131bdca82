"""Answers people's browsers: the page of a run, its live part as server-sent events, and the files both need.

    GET /runs/{run_id}?token=…                     remembers the token in a cookie and goes on without it
    GET /runs/{run_id}?attempt=1&after=0           at most 500 lines of an attempt, first of the newest
    GET /runs/{run_id}/live?attempt=1&after=0      SSE: `entries` and `head` as HTML in JSON, `attempt`, `end`
    GET /assets/{name}                             stylesheet, script, icon

A reader costs one page of lines, whatever the length of the transcript or the reader's speed.
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.identity import AttemptKey
from transcripts.access import Access
from transcripts.service import KEEP_ALIVE, POLL, key_of, number, refused
from transcripts.store import Line, TranscriptStore
from web.facts import Runs
from web.live import Live
from web.look import Look, View, Window, shown
from web.views import Views

PAGE_LINES: Final = 500
PAGE_BYTES: Final = 1024 * 1024
"""Output on one page; a longer line is a page of its own, and shown by its beginning."""

POLICY: Final = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_FRESH: Final = {"Cache-Control": "no-store"}
_TITLES: Final = {401: "This page needs its link", 403: "This link is for another run", 404: "Nothing is known yet"}


class Guarded:
    """Middleware: every answer carries the headers that keep a browser from doing anything but showing it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add them to the start of the answer, unless they are there."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in self._headers if one[0] not in present)]
            await send(message)

        await self._app(scope, receive, guarded)


class Pages:
    """The page for people over one store. `poll` and `keep_alive` are those of the transcript service."""

    def __init__(
        self,
        store: TranscriptStore,
        access: Access,
        runs: Runs,
        *,
        poll: timedelta = POLL,
        keep_alive: timedelta = KEEP_ALIVE,
    ) -> None:
        self._store = store
        self._access = access
        self._poll = poll
        self._keep_alive = keep_alive
        self._views = Views(store, runs)
        self._look = Look()

    @property
    def routes(self) -> list[BaseRoute]:
        """To be added to the transcript service."""
        return [
            Route("/runs/{run_id}", self.page),
            Route("/runs/{run_id}/live", self.live),
            Mount("/assets", StaticFiles(directory=Path(__file__).with_name("assets"))),
        ]

    async def page(self, request: Request) -> Response:
        """A part of the transcript with everything that is known of the run."""
        token = request.query_params.get("token")
        if token is not None:
            return self._entered(request, token)
        run_id = self._access.run(request)
        view = await self._views.of(run_id, _asked(request))
        if view.facts is None and not view.attempts:
            raise HTTPException(404, f"Nothing is known of run {run_id} yet. {view.note}".strip())
        window, lines = await self._window(request, view)
        entries = await asyncio.to_thread(shown, lines)
        return HTMLResponse(await asyncio.to_thread(self._look.page, view, window, entries), headers=_FRESH)

    async def live(self, request: Request) -> Response:
        """What happens from a line on, until the run has ended. A reader that comes back after that gets 204: stop."""
        key = key_of(self._access.run(request), _asked(request) or 1)
        draining: asyncio.Event = request.app.state.draining
        resumed = request.headers.get("last-event-id")
        after = number(resumed or request.query_params.get("after", "0"), "Last-Event-ID or after", least=0)
        live = Live(self._store, self._views, self._look, key, draining, self._poll, self._keep_alive)
        if resumed and await live.over(after):
            return Response(status_code=204)
        headers = _FRESH | {"X-Accel-Buffering": "no"}
        return StreamingResponse(live.events(after), media_type="text/event-stream", headers=headers)

    def refused(self, request: Request, error: Exception) -> Response:
        """A request that is not answered: for people as a page, for programs as JSON."""
        answer = refused(request, error)
        if not isinstance(error, HTTPException) or "text/html" not in request.headers.get("accept", ""):
            return answer
        title = _TITLES.get(error.status_code, "This does not work")
        body = self._look.told(error.status_code, title, error.detail)
        return HTMLResponse(body, status_code=error.status_code, headers={**(error.headers or {}), **_FRESH})

    def _entered(self, request: Request, token: str) -> Response:
        grant = self._access.granted(request, token)
        answer = HTMLResponse(self._look.entered(grant.run_id), headers=_FRESH)
        self._access.remember(answer, grant, token)
        return answer

    async def _window(self, request: Request, view: View) -> tuple[Window, list[Line]]:
        """The lines that are asked for: the end of a live transcript, the beginning of a finished one."""
        key = key_of(view.run_id, view.attempt)
        last = await self._store.last(key) or 0
        asked = request.query_params
        if "before" in asked:
            before = number(asked["before"], "before", least=1)
            lines = await self._before(key, before)
        elif "after" in asked:
            lines = await self._page(key, number(asked["after"], "after", least=0))
        elif view.live or "at" in asked:
            lines = await self._before(key, last + 1)
        else:
            lines = await self._page(key, 0)
        if not lines:
            return Window(None, None, earlier=last > 0, later=False), lines
        first, end = lines[0].sequence, lines[-1].sequence
        earlier = first > 1 and bool(await self._before(key, first))
        return Window(first, end, earlier=earlier, later=end < last), lines

    async def _page(self, key: AttemptKey, after: int) -> list[Line]:
        return await self._store.read(key, after, limit=PAGE_LINES, max_bytes=PAGE_BYTES)

    async def _before(self, key: AttemptKey, before: int) -> list[Line]:
        """The lines before a sequence, as many as fit. Sequences have holes, so the stretch grows until it has some."""
        stretch = PAGE_LINES
        while True:
            after = max(0, before - 1 - stretch)
            lines = [line for line in await self._page(key, after) if line.sequence < before]
            if lines or after == 0:
                return lines
            stretch *= 2


def _asked(request: Request) -> int | None:
    """The attempt that is asked for; None: the newest."""
    asked = request.query_params.get("attempt")
    return None if asked is None else number(asked, "attempt", least=1)
