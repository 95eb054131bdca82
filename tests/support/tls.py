"""A real server behind TLS that asks for a client certificate."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trustme


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
    target_host, _, target_port = target.rpartition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(target_host, int(target_port))
        await asyncio.gather(copy(reader, ours), copy(theirs, writer))

    server = await asyncio.start_server(connected, host, 0, ssl=context)
    try:
        yield f"{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
