"""A real server behind TLS that asks for a client certificate."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trustme

from tests.support.relay import open_relay


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    """The settings of a server of this name, or address, for HTTP/2 and clients with a certificate of the authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    return context


@asynccontextmanager
async def tls_front(target: str, context: ssl.SSLContext, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The address of a TLS server on a free port of `host` that forwards to `target`."""
    async with open_relay(target, host, context) as relay:
        yield relay.address
