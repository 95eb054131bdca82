"""Encryption of a storage that is not ours to trust: it learns sizes and times, and nothing else."""

import hmac
import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
_NONCE: Final = 12


class NotDecrypted(Exception):
    """The object was changed, or encrypted with another key."""


class Plain:
    """For a storage that is trusted."""

    def name(self, digest: str) -> str:
        """The name of the object with this digest."""
        return digest

    def encrypt(self, path: str, content: bytes) -> bytes:  # noqa: ARG002 - as `Cipher`
        """What is stored at this path."""
        return content

    def decrypt(self, path: str, content: bytes) -> bytes:  # noqa: ARG002 - as `Cipher`
        """What was encrypted for this path.

        Raises:
            NotDecrypted: something else was stored there.
        """
        return content


@dataclass(frozen=True)
class Cipher(Plain):
    """Encrypts the objects of one company. A block that two companies have is two different objects.

    A name hides the digest, which would tell the storage which known files a company has. An object is bound to its
    path, so it cannot be put in another one's place.
    """

    key: bytes = field(repr=False)
    names: bytes = field(repr=False)

    def name(self, digest: str) -> str:
        return hmac.digest(self.names, digest.encode(), "sha256").hex()

    def encrypt(self, path: str, content: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        return nonce + AESGCM(self.key).encrypt(nonce, content, path.encode())

    def decrypt(self, path: str, content: bytes) -> bytes:
        try:
            return AESGCM(self.key).decrypt(content[:_NONCE], content[_NONCE:], path.encode())
        except (InvalidTag, ValueError):
            raise NotDecrypted(path) from None


@lru_cache(maxsize=256)
def cipher_of(company: str, key: bytes | None) -> Plain:
    """The cipher of a company, with keys derived from the store's; without a key nothing is encrypted."""
    if key is None:
        return Plain()
    info = f"agent-runs.workspace\0{company}".encode()
    derived = HKDF(SHA256(), 2 * KEY_BYTES, salt=None, info=info).derive(key)
    return Cipher(derived[:KEY_BYTES], derived[KEY_BYTES:])
