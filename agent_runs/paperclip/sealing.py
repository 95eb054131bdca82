"""Seals what enters a history unreadable, and opens it where it is needed.

Format of a sealed text, which `adapter/src/sealing.ts` (`jose` + `node:zlib`) also writes: a compact JWE with the
protected header `{"alg": "ECDH-ES", "enc": "A256GCM", "kid": <RFC 7638 thumbprint>, "typ": "agent-runs.<purpose>",
"cty": "json+deflate"}` and an ephemeral key `epk`. The plaintext is raw DEFLATE (RFC 1951, `zlib.deflateRawSync`) of
the UTF-8 JSON text of one of `contracts.start` in camelCase. JWE's own `zip` header is not used:
`jose` dropped it. Keys are P-256 or X25519 JWKs; the caller holds only the public half.

Whoever may read a history can copy a sealed text. So the plaintext names what it is for (`Binding`), and the opener
states what it is about to be used for; a difference is refused.

Source: RFC 7516, RFC 7518 section 4.6, RFC 7638; joserfc 1.8.
"""

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey

from agent_runs.contracts.errors import InvalidRequest, SealedFieldUnreadable
from agent_runs.contracts.identity import RunKey, workflow_id
from agent_runs.contracts.large_json import TooManyValues, load_json
from agent_runs.contracts.messages import JoinedRun
from agent_runs.contracts.start import Binding, SealedCheck, SealedJoin, SealedMessage, SealedRun
from agent_runs.files import UnusableKey, jwks, load_keys

KEY_SETTING: Final = "AGENT_RUNS_SEALING_KEY_FILE"
KEY_AGREEMENT_ALGORITHM: Final = "ECDH-ES"
ENCRYPTION: Final = "A256GCM"
CONTENT_TYPE: Final = "json+deflate"
SEALED_LIMIT: Final = 1024 * 1024
"""Bytes of a sealed text. Temporal refuses payloads over 2 MiB."""
PACKED_LIMIT: Final = SEALED_LIMIT * 3 // 4
"""Bytes that a sealed text can hold: base64 makes four characters of three bytes."""

HEADER_LIMIT: Final = 1024
OPENED_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of an opened text: a small sealed text must not unpack into all of the memory."""

Key = ECKey | OKPKey
Content = SealedRun | SealedJoin | SealedCheck | SealedMessage
Opened = TypeVar("Opened", SealedRun, SealedJoin, SealedCheck, SealedMessage)


class _Registry(jwe.JWERegistry):
    max_ciphertext_length = SEALED_LIMIT  # joserfc's own limit, 64 KiB, is too small for a long wake


_REGISTRY: Final = _Registry(algorithms=[KEY_AGREEMENT_ALGORITHM, ENCRYPTION])


_CURVES: Final[dict[tuple[str, str], Callable[[Any], Key]]] = {
    ("EC", "P-256"): ECKey.import_key,
    ("OKP", "X25519"): OKPKey.import_key,
}


def _import_key(text: str | Mapping[str, Any], *, private: bool) -> Key:
    try:
        jwk = json.loads(text) if isinstance(text, str) else dict(text)
        importer = _CURVES.get((jwk["kty"], jwk["crv"]))
        key = importer(jwk) if importer else None
    except (ValueError, KeyError, TypeError, AttributeError, JoseError):
        raise UnusableKey("must be a JWK: JSON with kty, crv, x (and y for P-256)") from None
    if key is None:
        raise UnusableKey("must hold a P-256 or X25519 JWK")
    if private and not key.is_private:
        raise UnusableKey("must hold the private half of the key (d): this side opens what was sealed")
    return key


@dataclass(frozen=True)
class PublicKey:
    """The public half of a sealing key: it seals, and is no secret."""

    key: Key = field(repr=False)

    @classmethod
    def from_jwk(cls, jwk: str | Mapping[str, Any]) -> "PublicKey":
        """Reads a JWK; a private half in it is ignored.

        Raises:
            UnusableKey: not a P-256 or X25519 JWK.
        """
        return SealingKey(_import_key(jwk, private=False)).public

    @property
    def kid(self) -> str:
        """RFC 7638 thumbprint: names the key in every sealed text."""
        return self.key.thumbprint()

    def to_jwk(self) -> str:
        """The public JWK with its `kid`, as JSON text for the TypeScript side."""
        return json.dumps({**self.key.as_dict(private=False), "kid": self.kid})


@dataclass(frozen=True)
class SealingKey:
    """The private half of a sealing key: it opens. Its text form must stay out of histories and logs."""

    key: Key = field(repr=False)

    @classmethod
    def generate(cls) -> "SealingKey":
        """A new P-256 key: unlike X25519, every supported Node has it without an experimental warning."""
        return cls(ECKey.generate_key("P-256", private=True))

    @classmethod
    def from_jwk(cls, jwk: str | Mapping[str, Any]) -> "SealingKey":
        """Reads a private JWK.

        Raises:
            UnusableKey: not a P-256 or X25519 JWK, or without its private half.
        """
        return cls(_import_key(jwk, private=True))

    @property
    def kid(self) -> str:
        """RFC 7638 thumbprint, the same for both halves."""
        return self.key.thumbprint()

    @property
    def public(self) -> PublicKey:
        bare = self.key.as_dict(private=False)
        return PublicKey(_import_key({name: str(value) for name, value in bare.items()}, private=False))

    def to_jwk(self) -> str:
        """The private JWK as JSON text."""
        return json.dumps({**self.key.as_dict(private=True), "kid": self.kid})


@dataclass(frozen=True)
class Sealer:
    """Seals with a public key, in the caller's process."""

    public: PublicKey

    def seal(self, content: Content) -> str:
        """Compact JWE of `content`.

        Raises:
            InvalidRequest: the sealed text would be larger than a history can carry, or is no JSON.
        """
        header = {
            "alg": KEY_AGREEMENT_ALGORITHM,
            "enc": ENCRYPTION,
            "kid": self.public.kid,
            "typ": _kind(content.binding),
            "cty": CONTENT_TYPE,
        }
        try:
            text = json.dumps(content.model_dump(exclude_defaults=True))
        except (TypeError, ValueError, RecursionError):
            raise InvalidRequest("the execution context must be JSON: text, numbers, lists and objects") from None
        deflate = zlib.compressobj(level=zlib.Z_BEST_COMPRESSION, wbits=-zlib.MAX_WBITS)
        packed = deflate.compress(text.encode()) + deflate.flush()
        if len(packed) > PACKED_LIMIT:
            raise InvalidRequest(
                f"the wake is too large: {len(packed)} bytes packed exceed the limit of {PACKED_LIMIT}; "
                "shorten the task, templates, instructions or env"
            )
        return jwe.encrypt_compact(header, packed, self.public.key, registry=_REGISTRY)


class Opener:
    """Opens with private keys, several during a rotation: the header's `kid` names the key."""

    def __init__(self, keys: Iterable[SealingKey]) -> None:
        self._keys = {key.kid: key.key for key in keys}

    def open(self, text: str, content: type[Opened], use: Binding) -> Opened:
        """The plaintext of a sealed text. A short one may hold 16 MiB: call this outside the event loop.

        Args:
            text: compact JWE.
            content: the type of the plaintext.
            use: what the caller is about to use it for.

        Raises:
            SealedFieldUnreadable: unknown key, damaged, or sealed for another use, which the message names.
        """
        header = _header(text)
        key = self._keys.get(str(header.get("kid")))
        if key is None:
            raise SealedFieldUnreadable("sealed with a key that this worker does not hold")
        if header.get("typ") != _kind(use) or header.get("cty") != CONTENT_TYPE:
            raise SealedFieldUnreadable("sealed for another purpose")
        try:
            packed = jwe.decrypt_compact(text, key, registry=_REGISTRY).plaintext
            opened = content.model_validate(load_json(_inflate(packed or b"").decode()))
        except TooManyValues as error:
            raise SealedFieldUnreadable(f"what is sealed has {error}") from None
        except RecursionError:
            raise SealedFieldUnreadable("what is sealed is nested too deeply") from None
        except (JoseError, ValueError, TypeError, zlib.error):
            # The cause may quote what was sealed, so it is not kept.
            raise SealedFieldUnreadable("the sealed text is damaged or sealed with another key") from None
        if differences := _differences(opened.binding, use):
            raise SealedFieldUnreadable(f"sealed for {' and '.join(differences)}")
        return opened

    def tokens(self, joined: JoinedRun, run: RunKey) -> SealedJoin:
        """The tokens of a later run that has joined `run`. As `open`, outside the event loop.

        Raises:
            SealedFieldUnreadable: unknown key, damaged, or sealed for another use, which the message names.
        """
        use = Binding(
            purpose="join",
            workflow_id=workflow_id(run.agent_id),
            company_id=run.company_id,
            run_id=joined.run_id,
            task=joined.task,
        )
        return self.open(joined.sealed, SealedJoin, use)


def _kind(binding: Binding) -> str:
    return f"agent-runs.{binding.purpose}"


def _differences(binding: Binding, use: Binding) -> list[str]:
    """What a sealed text is for that its use is not, in words."""
    words = {
        "purpose": "another purpose",
        "workflow_id": "another agent's workflow",
        "company_id": "another company",
        "run_id": "another run",
        "task": "another task",
    }
    return [word for name, word in words.items() if getattr(binding, name) != getattr(use, name)]


def _header(text: str) -> dict[str, Any]:
    """The protected header, not yet authenticated: it only chooses the key."""
    protected = text.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(protected[:HEADER_LIMIT] + "=" * (-len(protected) % 4)))
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise SealedFieldUnreadable("not a compact JWE of ours")
    return header


def _inflate(packed: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    opened = inflate.decompress(packed, OPENED_LIMIT)
    if not inflate.eof:
        raise ValueError("larger than an opened field may be, or cut off")
    return opened


def parse_keys(text: str) -> tuple[SealingKey, ...]:
    """The keys in a JWK or a JWK set; the first one is the current one, the others still open.

    Raises:
        UnusableKey: no usable key in it.
    """
    return tuple(map(SealingKey.from_jwk, jwks(text)))


def public_key(path: Path) -> PublicKey:
    """The key with which a caller seals: the first one of the file at `path`, which may hold public halves only.

    Raises:
        UnusableKey: the file is missing or holds no usable key.
    """
    return load_keys(path, KEY_SETTING, lambda text: PublicKey.from_jwk(jwks(text)[0]), None)


def load_or_create(path: Path, *, create: bool = True) -> tuple[SealingKey, ...]:
    """The keys that open, in the file at `path`.

    Raises:
        UnusableKey: the file holds no usable key, or is missing and must not be created.
    """
    return load_keys(path, KEY_SETTING, parse_keys, _new_key if create else None)


def _new_key() -> str:
    return SealingKey.generate().to_jwk()
