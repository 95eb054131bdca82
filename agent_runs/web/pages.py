"""The routes for browsers: the page of a run, its live part as server-sent events, and their assets.

    GET /runs/{run}?open=…                      stores the token in a cookie and continues without it
    GET /runs/{run}?attempt=1&after=0           at most 500 lines of an attempt, first of the newest
    GET /runs/{run}/live?attempt=1&after=0      SSE: `entries` and `header` as HTML in JSON, `attempt`, `end`
    GET /assets/{name}                             stylesheet, script, icon

The list of runs is in `agent_runs.web.run_list_pages`, what operators do to a run in `agent_runs.web.run_actions`.

A reader costs one page of lines, whatever the length of the transcript or the reader's speed.
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runs.client.links import PaperclipPages
from agent_runs.contracts.identity import AttemptKey
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.web.access import Access, Guard, Revocations
from agent_runs.web.live_page import LivePage
from agent_runs.web.operators import Operators
from agent_runs.web.refusals import CONTENT_SECURITY_POLICY, NO_STORE, Refusals, accepts_html
from agent_runs.web.render import Templates, page_entries
from agent_runs.web.run_actions import RunActions
from agent_runs.web.run_info import RunInfoSource
from agent_runs.web.run_list import RunLists
from agent_runs.web.run_list_pages import RunListPages
from agent_runs.web.run_view import RunView, RunViews, Window
from agent_runs.web.transcripts import error_response, parse_number

VIEW_LINES: Final = 500
VIEW_BYTES: Final = 1024 * 1024
"""Output on one page; a longer line is a page of its own, of which the beginning is shown."""

HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SecurityHeaders:
    """Middleware: adds the headers that keep a browser from doing anything but showing the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers to the start of the response, unless they are present."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in self._headers if one[0] not in present)]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Pages:
    """The pages of runs over one store. `poll` is that of the transcript service."""

    def __init__(
        self,
        store: TranscriptStore,
        access: Access,
        operators: Operators,
        source: RunInfoSource,
        paperclip: PaperclipPages,
        poll: timedelta,
    ) -> None:
        self._store = store
        self._access = access
        self._guard = Guard(access, Revocations(store))
        self._poll = poll
        self._views = RunViews(store, source)
        self._templates = Templates(paperclip)
        self._refusals = Refusals(self._templates, operators)
        self._actions = RunActions(operators, source, self._templates)
        self._run_list = RunListPages(operators, access.tokens, RunLists(store, source), self._templates)

    @property
    def routes(self) -> list[BaseRoute]:
        return [
            *self._run_list.routes,
            *self._actions.routes,
            Route("/runs/{run}", self.page),
            Route("/runs/{run}/live", self.live),
            Mount("/assets", StaticFiles(directory=Path(__file__).with_name("assets"))),
        ]

    async def page(self, request: Request) -> Response:
        """The page: a part of the transcript below the run's header."""
        opened = request.query_params.get("open")
        if opened is not None:
            return await self._store_token(request, opened.replace("~", "."))
        grant = await self._guard.grant(request)
        view = await self._views.view(grant.run, _requested_attempt(request))
        if view.info is None and not view.attempts:
            raise HTTPException(404, f"Run {grant.run.run_id} is not known yet. {view.note}".strip())
        window, lines = await self._window(request, view)
        entries = await asyncio.to_thread(page_entries, lines)
        content = {"view": view, "window": window, "entries": entries, "in_list": grant.operator}
        html = await asyncio.to_thread(self._templates.html, "run_page.html", **content)
        return HTMLResponse(html, headers=NO_STORE)

    async def live(self, request: Request) -> Response:
        """Stream entries and headers after a line until the run has ended; a reader that reconnects then gets 204."""
        grant = await self._guard.grant(request)
        key = AttemptKey(run=grant.run, attempt=_requested_attempt(request) or 1)
        draining: asyncio.Event = request.app.state.draining
        resumed = request.headers.get("last-event-id")
        after = parse_number(resumed or request.query_params.get("after", "0"), "Last-Event-ID or after", least=0)
        live = LivePage(self._store, self._views, self._templates, key, draining, self._poll)
        if resumed and await live.over(after):
            return Response(status_code=204)
        headers = NO_STORE | {"X-Accel-Buffering": "no"}
        events = self._guard.until_revoked(grant, live.events(after))
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    def error_response(self, request: Request, error: Exception) -> Response:
        """The response to a refused request: for people a page, for programs JSON."""
        if isinstance(error, HTTPException) and accepts_html(request):
            return self._refusals.page(request, error)
        return error_response(request, error)

    async def _store_token(self, request: Request, token: str) -> Response:
        grant = await self._guard.granted(request, token)
        # no HTTP redirect, because a browser that comes from another site would follow it without the new cookie,
        # which is SameSite=Strict
        html = self._templates.html("token_redirect.html", base=quote(grant.run.name, safe=""))
        response = HTMLResponse(html, headers=NO_STORE)
        self._access.set_cookie(response, grant, token)
        return response

    async def _window(self, request: Request, view: RunView) -> tuple[Window, list[Line]]:
        """The requested lines; by default the end of a live transcript, or the beginning of a finished one."""
        key = AttemptKey(run=view.run, attempt=view.attempt)
        last = await self._store.last(key) or 0
        query = request.query_params
        if "before" in query:
            before = parse_number(query["before"], "before", least=1)
            lines = await self._before(key, before)
        elif "after" in query:
            lines = await self._page(key, parse_number(query["after"], "after", least=0))
        elif view.live or "at" in query:
            lines = await self._before(key, last + 1)
        else:
            lines = await self._page(key, 0)
        if not lines:
            return Window(None, None, earlier=last > 0, later=False), lines
        first, end = lines[0].sequence, lines[-1].sequence
        earlier = bool(await self._store.read_before(key, first, limit=1, max_bytes=1))
        return Window(first, end, earlier=earlier, later=end < last), lines

    async def _page(self, key: AttemptKey, after: int) -> list[Line]:
        return await self._store.read(key, after, limit=VIEW_LINES, max_bytes=VIEW_BYTES)

    async def _before(self, key: AttemptKey, before: int) -> list[Line]:
        return await self._store.read_before(key, before, limit=VIEW_LINES, max_bytes=VIEW_BYTES)


def _requested_attempt(request: Request) -> int | None:
    """The requested attempt; None: the newest."""
    attempt = request.query_params.get("attempt")
    return None if attempt is None else parse_number(attempt, "attempt", least=1)
