"""Encryption of a store that is not ours to trust: it learns sizes and times, and nothing else."""

import hmac
import os
from dataclasses import dataclass, field
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
_NONCE: Final = 12


class NotDecrypted(Exception):
    """The object was changed, or encrypted with another key."""


@dataclass(frozen=True)
class Cipher:
    """Encrypts the objects of one company; a block that two companies have is two different objects."""

    key: bytes = field(repr=False)
    names: bytes = field(repr=False)

    @classmethod
    def of(cls, key: bytes, company: str) -> Self:
        derived = HKDF(SHA256(), 2 * KEY_BYTES, salt=None, info=f"agent-runs.workspace\0{company}".encode()).derive(key)
        return cls(derived[:KEY_BYTES], derived[KEY_BYTES:])

    def name(self, digest: str) -> str:
        """Stands for a digest, which would tell what is in a block to whoever has the same file."""
        return hmac.digest(self.names, digest.encode(), "sha256").hex()

    def encrypt(self, path: str, content: bytes) -> bytes:
        """Encrypt what is stored at this path: it cannot be put in another one's place."""
        nonce = os.urandom(_NONCE)
        return nonce + AESGCM(self.key).encrypt(nonce, content, path.encode())

    def decrypt(self, path: str, content: bytes) -> bytes:
        """Decrypt it.

        Raises:
            NotDecrypted: it is not what was stored at this path.
        """
        try:
            return AESGCM(self.key).decrypt(content[:_NONCE], content[_NONCE:], path.encode())
        except (InvalidTag, ValueError):
            raise NotDecrypted(path) from None
