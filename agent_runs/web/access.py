"""Access control: the token of a request, checked against the requested run.

Programs send `Authorization: Bearer <token>`. A browser cannot, so the page of a run also accepts `?token=` once and
turns it into a cookie of that run's path; every later request of the page, its event stream included, sends that.
Nothing here is logged.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_runs.transcripts.tokens import Grant, TokenRefused, Tokens

COOKIE: Final = "agent-runs-token"
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True)
class Access:
    """Checks requests.

    Attributes:
        root: path under which a proxy publishes the service, without a slash at its end; usually empty.
        secure: browsers reach the service by https, so that the cookie must not travel otherwise.
    """

    tokens: Tokens
    root: str = ""
    secure: bool = False

    def run(self, request: Request) -> str:
        """The id of the requested run, if the request may read it.

        Raises:
            HTTPException: 401 without a valid token, 403 with one of another run.
        """
        return self.granted(request, _bearer(request) or request.cookies.get(COOKIE, "")).run_id

    def granted(self, request: Request, token: str) -> Grant:
        """The grant of `token` for the requested run. Raises as `run`."""
        if not token:
            raise HTTPException(
                401, "no token: send `Authorization: Bearer TOKEN`, or open the link of this run", _CHALLENGE
            )
        try:
            grant = self.tokens.open(token)
        except TokenRefused as refused:
            raise HTTPException(401, str(refused), _CHALLENGE) from None
        if grant.run_id != request.path_params["run_id"]:
            raise HTTPException(403, "this token is for another run")
        return grant

    def set_cookie(self, response: Response, grant: Grant, token: str) -> None:
        """Set the cookie with the token, for requests below this run's path only."""
        response.set_cookie(
            COOKIE,
            token,
            expires=grant.expires_at,
            path=f"{self.root}/runs/{quote(grant.run_id, safe='')}",
            secure=self.secure,
            httponly=True,
            samesite="strict",
        )


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
