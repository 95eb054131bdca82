"""Access control: the token of a request, checked against the requested run.

Programs send `Authorization: Bearer <token>`. A browser cannot, so the page of a run also accepts `?open=` once and
turns it into a cookie of that run's path; every later request of the page, its event stream included, sends that.
The links of a run can be revoked: the store has the time until which. An operator needs no token of a run
(`agent_runs.web.operators`). Nothing here is logged.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.store import TranscriptStore
from agent_runs.transcript.tokens import Grant, TokenRefused, Tokens
from agent_runs.web.operators import CHALLENGE, Operators, bearer

COOKIE: Final = "agent-runs-token"
REVOCATION_MAX_AGE: Final = timedelta(seconds=5)
"""So late a revocation may take effect: a page and its stream send many requests."""
_MAX_KNOWN: Final = 1000
"""Runs whose revocation is kept in memory."""

_Piece = TypeVar("_Piece")


def requested_run(request: Request) -> RunKey:
    """The run that the path names."""
    return RunKey.named(request.path_params["run"])


@dataclass(frozen=True)
class Access:
    """Checks the tokens of requests, apart from revocations.

    Attributes:
        root: path under which a proxy publishes the service, without a slash at its end; usually empty.
        secure: browsers reach the service by https, so that the cookie must not travel otherwise.
        operators: recognises those who may open every run; None: there are none.
    """

    tokens: Tokens
    root: str = ""
    secure: bool = False
    operators: Operators | None = None

    def granted(self, request: Request, token: str) -> Grant:
        """The grant of `token` for the requested run.

        Raises:
            HTTPException: 401 without a valid token, 403 with one of another run.
        """
        if not token:
            raise HTTPException(
                401, "no token: send `Authorization: Bearer TOKEN`, or open the link of this run", CHALLENGE
            )
        try:
            grant = self.tokens.open(token)
        except TokenRefused as refused:
            raise HTTPException(401, str(refused), CHALLENGE) from None
        if grant.run != requested_run(request):
            raise HTTPException(403, "this token is for another run")
        return grant

    def set_cookie(self, response: Response, grant: Grant, token: str) -> None:
        """Set the cookie with the token, for requests below this run's path only."""
        response.set_cookie(
            COOKIE,
            token,
            expires=grant.expires_at,
            path=f"{self.root}/runs/{quote(grant.run.name, safe='')}",
            secure=self.secure,
            httponly=True,
            samesite="strict",
        )


class Revocations:
    """The revocations in a store, each read again once what is known of it is older than `max_age`."""

    def __init__(
        self,
        store: TranscriptStore,
        max_age: timedelta = REVOCATION_MAX_AGE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._max_age = max_age.total_seconds()
        self._clock = clock
        self._known: dict[str, tuple[float, datetime | None]] = {}

    async def revoked(self, grant: Grant) -> bool:
        """Whether the grant's token was created before its run's links were revoked.

        Raises:
            TranscriptsUnavailable: the store does not answer.
        """
        if grant.operator:
            return False
        known = self._known.get(grant.run.name)
        if known is None or self._clock() - known[0] >= self._max_age:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._clock(), await self._store.links_revoked_at(grant.run)
            self._known[grant.run.name] = known
        return known[1] is not None and grant.issued_at <= known[1]


class Guard:
    """Checks the requests to one store: tokens and revocations."""

    def __init__(self, access: Access, revocations: Revocations) -> None:
        self._access = access
        self._revocations = revocations

    async def grant(self, request: Request) -> Grant:
        """The grant of an operator, else of the token or cookie, for the requested run. Raises as `granted`."""
        operators = self._access.operators
        if operators is not None and operators.admits(request):
            return Grant.of_operator(requested_run(request))
        return await self.granted(request, bearer(request) or request.cookies.get(COOKIE, ""))

    async def granted(self, request: Request, token: str) -> Grant:
        """The grant of `token` for the requested run.

        Raises:
            HTTPException: 401 without a valid token or with a revoked one, 403 with one of another run.
            TranscriptsUnavailable: the store does not answer.
        """
        grant = self._access.granted(request, token)
        if await self._revocations.revoked(grant):
            raise HTTPException(401, "this token was revoked; ask for a new link", CHALLENGE)
        return grant

    async def until_revoked(self, grant: Grant, live: AsyncGenerator[_Piece]) -> AsyncGenerator[_Piece]:
        """The pieces of a live stream until the grant is revoked; its reader is refused when it returns."""
        async with aclosing(live):
            async for piece in live:
                if await self._revocations.revoked(grant):
                    return
                yield piece
