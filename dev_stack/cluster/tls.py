"""A certificate for 127.0.0.1 of an authority of its own.

The API is served over TLS although it never leaves the machine, because kubectl keeps its token back on plain HTTP.
"""

from __future__ import annotations

import ssl
from pathlib import Path


def server_context(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """The server's TLS context and the file of its authority, both made in `directory` on first use."""
    authority, chain = directory / "ca.crt", directory / "server.pem"
    if not (authority.exists() and chain.exists()):
        import trustme  # noqa: PLC0415 - a quarter of a second that only the first start needs

        issuer = trustme.CA()
        chain.touch(mode=0o600)
        issuer.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(chain)
        issuer.cert_pem.write_to_path(authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context, authority
