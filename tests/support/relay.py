"""A server that passes bytes on to another one, until its connections are cut."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Relay:
    """Attributes:
    refusals: how many of the next connections are closed as soon as they are accepted.
    """

    address: str = ""
    refusals: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self, refusals: int = 0) -> None:
        """Reset all connections, and close so many of the next ones."""
        self.refusals = refusals
        for writer in self.writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def open_relay(
    target: str | Callable[[], Awaitable[str]], host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> AsyncIterator[Relay]:
    """A relay to `target` on a free port of `host`; with a context its clients speak TLS.

    Args:
        target: an address, or what finds it for each connection.
    """
    relay = Relay()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if relay.refusals:
            relay.refusals -= 1
            writer.transport.abort()
            return
        target_host, _, target_port = (target if isinstance(target, str) else await target()).rpartition(":")
        theirs, ours = await asyncio.open_connection(target_host, int(target_port))
        relay.writers |= {writer, ours}
        await asyncio.gather(_copy(reader, ours), _copy(theirs, writer))
        relay.writers -= {writer, ours}

    server = await asyncio.start_server(connected, host, 0, ssl=context)
    relay.address = f"{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()
        relay.cut()
