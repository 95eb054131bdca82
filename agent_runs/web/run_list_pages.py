"""The routes of operators: the list of runs, the usage of runs for programs, signing in and out.

GET /runs?search=…&agent=…&phase=…&since=24h   the list: 50 runs, totals; with `Accept: application/json` as JSON
GET /runs?…&part=list                          the rows alone as HTML, for the page's script
GET /usage?run=…&run=…                         JSON: the `RunUsage` of up to 100 runs, for `agent-runs list`
POST /sign-in                                  the operator token of the form becomes a cookie
POST /sign-out                                 deletes it
"""

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from agent_runs.client.run_list import InvalidFilter, RunFilter
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.forms import first, form
from agent_runs.web.operators import CHALLENGE, Operators, bearer
from agent_runs.web.refusals import NO_STORE, OFF, SIGN_IN, Refusals, accepts_html, with_forms
from agent_runs.web.render import Templates
from agent_runs.web.run_list import Row, RunLists

MAX_USAGE_RUNS: Final = 100
"""Runs of one request for their usage."""
MAX_FORM: Final = 4096
"""Bytes of the form of the sign-in page."""
FILTERS: Final = tuple(one.name for one in fields(RunFilter))
_CURSOR: Final = "cursor of the list of runs"


class RunListPages:
    """The list of runs over one store and one Temporal."""

    def __init__(self, operators: Operators, tokens: Tokens, lists: RunLists, templates: Templates) -> None:
        self._operators = operators
        self._tokens = tokens
        self._lists = lists
        self._templates = templates
        self._refusals = Refusals(templates, operators)

    @property
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/runs", self.runs),
            Route("/usage", self.usage),
            Route("/sign-in", self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def runs(self, request: Request) -> Response:
        """The list, its rows alone, or both as JSON."""
        self._check(request)
        texts = {name: request.query_params.get(name, "") for name in FILTERS}
        try:
            wanted = RunFilter.parse(texts)
        except InvalidFilter as invalid:
            raise HTTPException(400, str(invalid)) from None
        cursor = self._cursor(request)
        if not accepts_html(request) and "part" not in request.query_params:
            return await self._json(wanted, cursor)
        rows_only = request.query_params.get("part") == "list"
        view = await self._lists.page(wanted, cursor, totals=not rows_only)
        following = self._following(texts, view.cursor)
        template = "runs_list.html" if rows_only else "runs_page.html"
        content = {"view": view, "texts": texts, "query": _query(texts), "following": following}
        signed_in = self._operators.has_session(request)
        html = await asyncio.to_thread(self._templates.html, template, **content, sign_out=signed_in)
        return HTMLResponse(html, headers=NO_STORE | with_forms())

    async def usage(self, request: Request) -> Response:
        """The usage of runs, for operators and for programs that have the key of the links."""
        token = bearer(request)
        if not (self._tokens.is_operator(token) or self._operators.admits(request)):
            raise HTTPException(401, "no operator's token, nor one of this service's key", CHALLENGE)
        runs = request.query_params.getlist("run")
        if len(runs) > MAX_USAGE_RUNS:
            raise HTTPException(400, f"run: at most {MAX_USAGE_RUNS} of them")
        found = await self._lists.usage(runs)
        body = msgspec.json.encode(list(found.values()))
        return Response(body, media_type="application/json", headers=NO_STORE)

    async def sign_in(self, request: Request) -> Response:
        """Set the cookie and go on to the list, or to the run that was asked for."""
        if not self._operators.sign_in:
            raise HTTPException(403, OFF)
        fields = await form(request, MAX_FORM)
        run = first(fields, "run")
        if not self._operators.accepts(request, first(fields, "token").strip()):
            return self._refusals.sign_in_page("That is not the operator token.", run)
        target = f"runs/{quote(run, safe='')}" if run else "runs"
        response = Response(status_code=303, headers={"Location": target, **NO_STORE})
        self._operators.set_cookie(response)
        return response

    async def sign_out(self, _request: Request) -> Response:
        """Delete the cookie."""
        response = Response(status_code=303, headers={"Location": "runs", **NO_STORE})
        self._operators.delete_cookie(response)
        return response

    def _check(self, request: Request) -> None:
        if not self._operators.enabled:
            raise HTTPException(403, OFF)
        if not self._operators.admits(request):
            raise HTTPException(401, SIGN_IN, CHALLENGE)

    def _cursor(self, request: Request) -> bytes | None:
        """The cursor of a link of ours: Temporal takes some seconds to refuse any other one."""
        text = request.query_params.get("cursor", "")
        if not text:
            return None
        cursor = self._tokens.unseal(_CURSOR, text)
        if cursor is None:
            raise HTTPException(400, "cursor: open the first page, this one's link is not whole")
        return cursor

    def _following(self, texts: Mapping[str, str], cursor: bytes | None) -> str:
        """The query of the next page; empty on the last one."""
        return "" if cursor is None else _query({**texts, "cursor": self._tokens.seal(_CURSOR, cursor)})

    async def _json(self, wanted: RunFilter, cursor: bytes | None) -> Response:
        view = await self._lists.page(wanted, cursor, totals=False)
        following = None if view.cursor is None else self._tokens.seal(_CURSOR, view.cursor)
        content = {"runs": [_row_json(row) for row in view.rows], "cursor": following, "notes": list(view.notes)}
        return JSONResponse(content, headers=NO_STORE)


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "runId": row.key.run_id,
        "agentId": row.key.agent_id,
        "companyId": row.key.company_id,
        "agentName": row.names.agent or None,
        "taskName": row.names.task or None,
        "taskKey": row.task or None,
        "phase": row.phase,
        "failureCode": row.failure or None,
        "model": row.model or None,
        "startedAt": row.started_at.isoformat(),
        "elapsedSeconds": None if row.elapsed is None else round(row.elapsed.total_seconds(), 3),
        "obstacle": row.obstacle or None,
        "usage": None if row.usage is None else row.usage.for_programs(),
    }


def _query(texts: Mapping[str, str]) -> str:
    return urlencode({name: text for name, text in texts.items() if text})
