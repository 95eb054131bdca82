"""Paperclip's address, as the sidecar gets it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

UPSTREAM = "PAPERCLIP_UPSTREAM_URL"
"""The variable that holds it."""


class Upstream(NamedTuple):
    """Paperclip's address. `path`, without a slash at its end, comes before every path of a request."""

    scheme: str
    host: str
    port: int | None
    path: str

    @classmethod
    def read(cls, url: str) -> Upstream:
        """Parse an absolute http(s) URL without login, query or fragment.

        Raises:
            ValueError: the URL is anything else.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(f"{UPSTREAM} must be an absolute http:// or https:// URL without a login")
        return cls(parts.scheme, parts.hostname, parts.port, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Host and port as in the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def base(self) -> str:
        """The whole address."""
        return f"{self.scheme}://{self.authority}{self.path}"
