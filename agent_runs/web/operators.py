"""Who is an operator: people and programs that may open the list of runs and every run's page.

Nobody is, unless a setting says so. A person signs in with the operator token and gets a cookie that holds a signed
session in its place; a program sends the token itself as `Authorization: Bearer`. Or an authenticating proxy (OIDC)
names the person in a header, which counts only from the proxy's addresses, because anybody else can send it, too.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from agent_runs.client.settings import ClientSettings, Network, SettingsError
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.wrong_tokens import WrongTokens

COOKIE: Final = "agent-runs-operator"
CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
SESSION_LIFETIME: Final = timedelta(hours=12)
MIN_TOKEN: Final = 32
"""Characters; so many random ones cannot be guessed."""
MAX_TOKEN: Final = 1024
_DOTS_OF_A_LINK: Final = 2
"""Of a JWS, which the tokens of links and sessions are."""
_SETTING: Final = "AGENT_RUNS_OPERATOR_TOKEN_FILE"


@dataclass(frozen=True)
class Operators:
    """Recognises operators.

    Attributes:
        token: the operator token; None: nobody signs in.
        header: the proxy's header; None: there is no proxy.
        root: as of `agent_runs.web.access.Access`.
        secure: the same.
        site: host, and port, at which browsers reach the service, if a setting says so.
        wrong: counts wrong tokens, by address.
    """

    tokens: Tokens
    token: bytes | None = field(default=None, repr=False)
    header: str | None = None
    proxies: Sequence[Network] = ()
    root: str = ""
    secure: bool = False
    site: str = ""
    wrong: WrongTokens = field(default_factory=WrongTokens, repr=False, compare=False)

    @classmethod
    def load(cls, settings: ClientSettings, tokens: Tokens, *, root: str = "", secure: bool = False) -> Self:
        """Read the operator token.

        Raises:
            SettingsError: its file cannot be read or holds no token of `MIN_TOKEN` characters.
        """
        token = None if settings.operator_token_file is None else _read_token(settings.operator_token_file)
        site = urlsplit(settings.transcripts_public_url or "").netloc
        return cls(tokens, token, settings.operator_header, settings.operator_proxies, root, secure, site)

    @property
    def enabled(self) -> bool:
        """Whether anybody can be an operator."""
        return self.token is not None or self.header is not None

    @property
    def sign_in(self) -> bool:
        """Whether people sign in with a token."""
        return self.token is not None

    def admits(self, request: Request) -> bool:
        """Whether an operator sent the request.

        Raises:
            HTTPException: 429, it has a token and its address has sent too many wrong ones.
        """
        return self.has_session(request) or self._by_proxy(request) or self._by_token(request)

    def is_our_form(self, request: Request) -> bool:
        """Whether no page of another site sent the form, by all that the browser says. Programs say nothing.

        Our pages send no referrer, and without one some browsers say `null`. Source: WHATWG Fetch, Origin header.
        """
        # allow-remote: a header of HTTP
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        if site not in {None, "same-origin"}:
            return False
        if origin is None or (origin == "null" and site is not None):
            return True
        return urlsplit(origin).netloc in {request.headers.get("host"), self.site} - {None, ""}

    def has_session(self, request: Request) -> bool:
        """Whether the person has signed in with the token."""
        session = request.cookies.get(COOKIE, "")
        return self.token is not None and bool(session) and self.tokens.is_operator(session, self._access)

    def accepts(self, request: Request, text: str) -> bool:
        """Whether this is the operator token; a wrong one counts against the address of the request.

        Raises:
            HTTPException: 429, that address has sent too many wrong ones.
        """
        if self.token is None or not text:
            return False
        self.wrong.check(request)
        if self.is_token(text):
            return True
        self.wrong.add(request)
        return False

    def is_token(self, text: str) -> bool:
        """Whether this is the operator token; compared in constant time, also if the lengths differ."""
        if self.token is None or not text:
            return False
        return hmac.compare_digest(_digest(text.encode("utf-8", "replace")), _digest(self.token))

    def set_cookie(self, response: Response) -> None:
        """Sign the person in: a session below `/runs` that ends with its lifetime, or when the token is changed."""
        session = self.tokens.mint_operator(SESSION_LIFETIME, self._access)
        age = int(SESSION_LIFETIME.total_seconds())
        response.set_cookie(
            COOKIE, session, max_age=age, path=self._path, secure=self.secure, httponly=True, samesite="strict"
        )

    def delete_cookie(self, response: Response) -> None:
        """Sign the person out."""
        response.delete_cookie(COOKIE, path=self._path, secure=self.secure, httponly=True, samesite="strict")

    @property
    def _path(self) -> str:
        return f"{self.root}/runs"

    @property
    def _access(self) -> str:
        """What a session is bound to: without it a changed token would leave earlier sessions open."""
        return hmac.new(self.token or b"", b"agent-runs operator session", "sha256").hexdigest()[:32]

    def _by_token(self, request: Request) -> bool:
        """Whether the request has the operator token. A link's token, which has two dots, is no attempt at it."""
        token = bearer(request)
        return self.is_token(token) if token.count(".") == _DOTS_OF_A_LINK else self.accepts(request, token)

    def _by_proxy(self, request: Request) -> bool:
        """Whether the proxy names somebody. A header that came twice may have come through the proxy from outside."""
        if self.header is None or request.client is None:
            return False
        names = request.headers.getlist(self.header)
        return len(names) == 1 and bool(names[0].strip()) and self._is_proxy(request.client.host)

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.proxies)


def bearer(request: Request) -> str:
    """The token that a program sends; empty without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _read_token(file: Path) -> bytes:
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"{_SETTING}: {file}: {error.strerror}. Set it to a readable file") from None
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN or not token.isascii() or b" " in token:
        raise SettingsError(
            f"{_SETTING}: {file} must hold one token of {MIN_TOKEN} characters or more, such as that of "
            "`openssl rand -hex 32`"
        )
    return token


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
