"""Tokens that open the transcript of one run to whoever holds them, until they expire.

A token is a compact JWS (RFC 7515, RFC 7519) with the run's name (`RunKey.name`) as `sub`, `aud` =
`agent-runs.transcripts`, `iat` and `exp`. By `iat` the links of a run can be revoked (`agent_runs.web.access`), and
none outlives the transcripts. The algorithm is HS256: whoever checks a token can read every transcript anyway, so a
public half would guard nothing. The key has a file of its own beside the sealing key instead of being derived from it:
a caller that has only the public sealing key can still create links, a transcript service that runs alone needs no key
that opens secrets, and either key can be rotated without the other.
"""

import base64
import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.files import UnusableKey, jwks, load_keys

KEY_SETTING: Final = "AGENT_RUNS_TRANSCRIPTS_KEY_FILE"
SIGNING_ALGORITHM: Final = "HS256"
AUDIENCE: Final = "agent-runs.transcripts"
OPERATOR_AUDIENCE: Final = "agent-runs.operator"
WORKSPACE_AUDIENCE: Final = "agent-runs.workspace"
LINK_LIFETIME: Final = timedelta(days=7)
"""A run may take hours, and people read it days later. No token that somebody keeps lives longer."""
TOKEN_LIMIT: Final = 2048
"""Characters of a token; ours have some 200."""
LATEST: Final = int(datetime.max.replace(tzinfo=UTC).timestamp())
SEAL_BYTES: Final = 16
"""Of the authentication code of what `Tokens.seal` returns."""
KEY_BYTES: Final = 32
"""The least for HS256 (RFC 7518, section 3.2)."""


class TokenRefused(Exception):
    """The token was not issued by this service, or has expired. The text never quotes it."""


@dataclass(frozen=True)
class Grant:
    """The right to read one run until `expires_at`, unless it is revoked. An operator's is revoked by no link's end."""

    run: RunKey
    issued_at: datetime
    expires_at: datetime
    operator: bool = False

    @classmethod
    def of_operator(cls, run: RunKey) -> Self:
        """The right of an operator, who may read every run."""
        now = datetime.now(UTC)
        return cls(run, now, now, operator=True)


@dataclass(frozen=True)
class Tokens:
    """Creates and checks tokens. The first key signs; the others still open what they signed before a rotation.

    Attributes:
        longest: no token lives longer, whoever created it; None: as long as it says.
    """

    keys: Sequence[OctKey] = field(repr=False)
    longest: timedelta | None = None
    clock: Callable[[], float] = field(default=time.time, repr=False)

    @classmethod
    def load(cls, path: Path, *, create: bool = True, longest: timedelta | None = None) -> Self:
        """Load the keys in the JWK or JWK set at `path`; with `create` a missing file is created, mode 0600.

        Raises:
            UnusableKey: the file is missing and must not be created, or holds no key of this kind.
        """
        keys = load_keys(path, KEY_SETTING, symmetric_keys, (lambda: json.dumps(new_key())) if create else None)
        return cls(keys, longest)

    def mint(self, run: RunKey, lifetime: timedelta = LINK_LIFETIME) -> str:
        now = self.clock()
        expiry = now + min(lifetime, self.longest or lifetime).total_seconds()
        claims = {"sub": run.name, "aud": AUDIENCE, "iat": int(now), "exp": int(expiry)}
        return self._signed(claims)

    def open(self, token: str) -> Grant:
        """Check a token and return what it grants. The signature is compared in constant time.

        Raises:
            TokenRefused: not signed by one of the keys, meant for something else, or expired.
        """
        return self._grant(self._claims(token))

    def mint_operator(self, lifetime: timedelta, access: str = "") -> str:
        """Create a token for all runs, for a program that has the key, or for the operator that `access` names."""
        now = int(self.clock())
        claims = {"sub": access, "aud": OPERATOR_AUDIENCE, "iat": now, "exp": now + int(lifetime.total_seconds())}
        return self._signed(claims)

    def is_operator(self, token: str, access: str = "") -> bool:
        """Whether this is an unexpired token of `mint_operator` for this access."""
        try:
            claims = self._claims(token)
        except TokenRefused:
            return False
        expiry = claims.get("exp")
        valid = claims.get("aud") == OPERATOR_AUDIENCE and type(expiry) is int and expiry > self.clock()
        return valid and claims.get("sub") == access

    def mint_workspace(self, attempt: AttemptKey, lifetime: timedelta) -> str:
        """Create a token for the workspace of a run, as this attempt; 0 is Paperclip's side."""
        now, run = int(self.clock()), attempt.run
        claims = {"sub": run.name, "company": run.company_id, "attempt": attempt.attempt, "aud": WORKSPACE_AUDIENCE}
        return self._signed({**claims, "iat": now, "exp": now + int(lifetime.total_seconds())})

    def open_workspace(self, token: str) -> AttemptKey:
        """The attempt of a token of `mint_workspace`.

        Raises:
            TokenRefused: as `open`.
        """
        claims = self._claims(token)
        run, company, attempt, expiry = (claims.get(name) for name in ("sub", "company", "attempt", "exp"))
        if (
            claims.get("aud") != WORKSPACE_AUDIENCE
            or not (isinstance(run, str) and isinstance(company, str))
            or not (type(attempt) is int and type(expiry) is int and attempt >= 0)
        ):
            raise TokenRefused("this token is meant for something else")
        if expiry <= self.clock():
            raise TokenRefused("this token has expired")
        return AttemptKey(run=RunKey.named(run, company), attempt=attempt)

    def seal(self, purpose: str, data: bytes) -> str:
        """Data as text that only this service can have written; it is readable, and does not expire."""
        mac = hmac.digest(self.keys[0].raw_value, purpose.encode() + b"\0" + data, "sha256")[:SEAL_BYTES]
        return base64.urlsafe_b64encode(mac + data).rstrip(b"=").decode()

    def unseal(self, purpose: str, text: str) -> bytes | None:
        """The data of `seal`; None: this service has not written it for this purpose with its present key."""
        if len(text) > TOKEN_LIMIT or not text.isascii():
            return None
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            return None
        return raw[SEAL_BYTES:] if hmac.compare_digest(self.seal(purpose, raw[SEAL_BYTES:]), text) else None

    def _signed(self, claims: dict[str, Any]) -> str:
        header = {"alg": SIGNING_ALGORITHM}
        return jwt.encode(header, claims, self.keys[0], algorithms=[SIGNING_ALGORITHM], default_type=None)

    def _claims(self, token: str) -> dict[str, Any]:
        if len(token) > TOKEN_LIMIT or not token.isascii():
            raise TokenRefused("this token was not issued by this service; ask for a new link")
        for key in self.keys:
            with suppress(JoseError, ValueError, TypeError, KeyError):
                return dict(jwt.decode(token, key, algorithms=[SIGNING_ALGORITHM]).claims)
        raise TokenRefused("this token was not issued by this service; ask for a new link")

    def _grant(self, claims: dict[str, Any]) -> Grant:
        run, expiry, issued = claims.get("sub"), claims.get("exp"), claims.get("iat")
        if claims.get("aud") != AUDIENCE or not isinstance(run, str) or type(expiry) is not int or expiry > LATEST:
            raise TokenRefused("this token is meant for something else")
        if type(issued) is not int or not 0 <= issued <= expiry:
            raise TokenRefused("this token is meant for something else")
        if self.longest is not None:
            expiry = min(expiry, issued + int(self.longest.total_seconds()))
        if expiry <= self.clock():
            raise TokenRefused("this token has expired; ask for a new link")
        return Grant(RunKey.named(run), datetime.fromtimestamp(issued, UTC), datetime.fromtimestamp(expiry, UTC))


def symmetric_keys(text: str) -> tuple[OctKey, ...]:
    """The keys in a JWK or a JWK set.

    Raises:
        UnusableKey: it has another key, or a short one.
    """
    try:
        return tuple(map(_key, jwks(text)))
    except (ValueError, KeyError, TypeError, JoseError):
        raise UnusableKey(f"must hold a JWK or a JWK set of kty oct with at least {KEY_BYTES} bytes") from None


def _key(jwk: dict[str, Any]) -> OctKey:
    secret = base64.urlsafe_b64decode(jwk["k"] + "=" * (-len(jwk["k"]) % 4))
    if jwk["kty"] != "oct" or len(secret) < KEY_BYTES:
        raise ValueError("not a key for HS256")
    return OctKey.import_key(secret)


def new_key() -> dict[str, Any]:
    return dict(OctKey.generate_key(KEY_BYTES * 8).as_dict(private=True))


def authorization(token: str) -> Mapping[str, str]:
    """The request header with which a program presents its token."""
    return {"Authorization": f"Bearer {token}"}
