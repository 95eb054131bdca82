"""Operators cancel a run on its page, after a question.

    GET /runs/{run}/cancel      asks
    POST /runs/{run}/cancel     requests the cancel in Temporal and goes back to the run's page

A link to a run only opens it: whoever has no more than the link cannot cancel. A form of another site is refused by the
browser's own words for it (`Sec-Fetch-Site`, and `Origin` of older ones), because a proxy's header comes with any
request. Source: W3C, Fetch Metadata Request Headers.
"""

from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from agent_runs.contracts.identity import RunKey
from agent_runs.web.access import requested_run
from agent_runs.web.operators import CHALLENGE, Operators
from agent_runs.web.refusals import FOREIGN_FORM, NO_STORE, with_forms
from agent_runs.web.render import Templates
from agent_runs.web.run_info import RunInfoSource, RunInfoUnavailable

REASON: Final = "Cancelled by an operator on the run's page"
ONLY_OPERATORS: Final = "only operators may cancel a run: sign in, or use `agent-runs cancel`"
_WITH_ORIGIN: Final = {"Referrer-Policy": "same-origin"}
"""Without a referrer a form's origin is `null`, also for browsers that say nothing else."""


class CancelPages:
    """The question and its answer."""

    def __init__(self, operators: Operators, source: RunInfoSource, templates: Templates) -> None:
        self._operators = operators
        self._source = source
        self._templates = templates

    @property
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/runs/{run}/cancel", self.ask),
            Route("/runs/{run}/cancel", self.cancel, methods=["POST"]),
        ]

    async def ask(self, request: Request) -> Response:
        run = self._checked(request)
        html = self._templates.html("cancel.html", run=run, base=quote(run.name, safe=""))
        return HTMLResponse(html, headers=NO_STORE | with_forms() | _WITH_ORIGIN)

    async def cancel(self, request: Request) -> Response:
        """Request the cancel; the run's page then shows how it goes."""
        run = self._checked(request)
        if not self._operators.is_our_form(request):
            raise HTTPException(403, FOREIGN_FORM)
        try:
            known = await self._source.cancel(run, REASON)
        except RunInfoUnavailable as error:
            raise HTTPException(503, f"{error}; nothing was cancelled, try again") from None
        if not known:
            raise HTTPException(404, f"Run {run.run_id} is not known to Temporal, so nothing was cancelled.")
        return Response(status_code=303, headers={"Location": f"../{quote(run.name, safe='')}", **NO_STORE})

    def _checked(self, request: Request) -> RunKey:
        """The run, if an operator asks."""
        if not self._operators.admits(request):
            raise HTTPException(401, ONLY_OPERATORS, CHALLENGE)
        return requested_run(request)
