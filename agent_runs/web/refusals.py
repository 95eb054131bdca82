"""Responses to refused requests: for programs JSON, for people a page that says what to do.

A link from another site, such as Temporal's Web UI, comes without the operator's cookie, because that is
SameSite=Strict. Such a request gets a page that loads itself once more, which then comes from our own site.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from agent_runs.web.operators import Operators
from agent_runs.web.render import Templates
from agent_runs.web.transcripts import UNAVAILABLE

OFF: Final = (
    "the list of runs is off: set AGENT_RUNS_OPERATOR_TOKEN_FILE, or AGENT_RUNS_OPERATOR_HEADER and "
    "AGENT_RUNS_OPERATOR_PROXIES, where transcripts are served"
)
SWITCHES: Final = (
    (
        "Put a long random token into a file, such as that of `openssl rand -hex 32`, and set "
        "`AGENT_RUNS_OPERATOR_TOKEN_FILE` to it where transcripts are served."
    ),
    (
        "Or let a proxy sign people in: `AGENT_RUNS_OPERATOR_HEADER` names the header in which it says who they are, "
        "`AGENT_RUNS_OPERATOR_PROXIES` the addresses it comes from."
    ),
)
SIGN_IN: Final = "only operators may list runs: send `Authorization: Bearer TOKEN` with the operator token"
FOREIGN_FORM: Final = (
    "this form is not of this site: open the run's page and use the form there; behind a proxy, set "
    "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL to the address that browsers use"
)
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
NO_STORE: Final = {"Cache-Control": "no-store"}
_TITLES: Final = {
    401: "This page needs its link",
    403: "This link is for another run",
    404: "This run is not known yet",
    429: "Too many wrong tokens",
}


@dataclass(frozen=True)
class Refusal:
    """The content of the page.

    Attributes:
        up: relative URL of the service's root.
        steps: what to do, in order.
        sign_in: the form for operators is shown.
        run: where the form goes on to; empty: the list.
        reload: relative URL that is loaded at once; empty: none.
        repeats: the page loads itself every few seconds.
    """

    status: int
    title: str
    detail: str
    up: str = ""
    steps: Sequence[str] = ()
    sign_in: bool = False
    run: str = ""
    reload: str = ""
    repeats: bool = False


class Refusals:
    """Creates the pages."""

    def __init__(self, templates: Templates, operators: Operators) -> None:
        self._templates = templates
        self._operators = operators

    def page(self, request: Request, error: HTTPException) -> Response:
        """The page for a person whose request was refused."""
        run = request.path_params.get("run", "")
        up = "../" * (request.scope["path"].count("/") - 1)
        refusal = Refusal(error.status_code, _TITLES.get(error.status_code, "This request failed"), error.detail, up)
        if error.detail == OFF:
            refusal = self._off(up)
        elif error.detail == FOREIGN_FORM:
            refusal = replace(refusal, title="Nothing was done to this run")
        elif error.status_code == 401 and not run:
            refusal = self._for_operators(up)
        elif error.status_code in {401, 403}:
            refusal = self._for_a_run(refusal, run)
        elif error.detail == UNAVAILABLE:
            refusal = self._store_away(refusal, run)
        if error.status_code == 401 and _comes_from_another_site(request):
            refusal = Refusal(401, "One moment", "This page loads itself once more.", up, reload=_same_page(request))
        return self._response(refusal, error.headers)

    def sign_in_page(self, detail: str, run: str) -> Response:
        """The page of operators after a wrong token."""
        return self._response(Refusal(401, "Sign in", detail, sign_in=True, run=run), None)

    def _off(self, up: str) -> Refusal:
        return Refusal(
            403,
            "The list of runs is off",
            "Whoever runs this service can switch it on. Links to single runs work without it.",
            up,
            steps=SWITCHES,
        )

    def _for_operators(self, up: str) -> Refusal:
        if self._operators.sign_in:
            return Refusal(401, "Sign in", "The list of runs is for operators.", up, sign_in=True)
        return Refusal(
            401, "Sign in", "The list of runs is for operators: open it through the proxy that signs you in.", up
        )

    def _for_a_run(self, refusal: Refusal, run: str) -> Refusal:
        return Refusal(
            refusal.status,
            refusal.title,
            f"Reason: {_for_people(refusal.detail)}",
            refusal.up,
            steps=(
                "In Paperclip, open the run: its result has the link as `transcriptPage`.",
                f"Or ask whoever runs the worker: `agent-runs show {run}` prints a new link.",
                "A link opens one run, for seven days or until it is revoked.",
            ),
            sign_in=self._operators.sign_in,
            run=run,
        )

    def _store_away(self, refusal: Refusal, run: str) -> Refusal:
        steps = [
            "The agent goes on meanwhile, and this page loads itself every few seconds.",
            "Whoever runs the worker: `/readyz` of the worker and its log name the store.",
        ]
        if run:
            steps.append(f"`agent-runs show {run}` says what keeps the run from going on.")
        title = "Stored output cannot be read now"
        return replace(refusal, title=title, steps=steps, repeats=True)

    def _response(self, refusal: Refusal, headers: Mapping[str, str] | None) -> Response:
        return HTMLResponse(
            self._templates.html("error.html", refusal=refusal),
            status_code=refusal.status,
            headers={**(headers or {}), **NO_STORE, **with_forms()},
        )


def with_forms() -> dict[str, str]:
    """The header of pages with a form of ours."""
    policy = CONTENT_SECURITY_POLICY.replace("form-action 'none'", "form-action 'self'")
    return {"Content-Security-Policy": policy}


def accepts_html(request: Request) -> bool:
    """Whether a person asks, not a program."""
    return "text/html" in request.headers.get("accept", "")


def _for_people(detail: str) -> str:
    """The reason without the header that only programs send."""
    return "the address has no token, and nobody is signed in" if detail.startswith("no token") else detail


def _comes_from_another_site(request: Request) -> bool:
    """Whether a browser followed a link of another site. Source: W3C, Fetch Metadata Request Headers."""
    headers = request.headers
    return headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") == "navigate"


def _same_page(request: Request) -> str:
    """The page's own URL, with its query; relative whatever it begins with, also `https:`."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    name = f"./{raw.decode('ascii', 'replace').rpartition('/')[2]}"
    return f"{name}?{request.url.query}" if request.url.query else name
