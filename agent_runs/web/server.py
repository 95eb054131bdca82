"""An HTTP server in this event loop: its address, its connections, its end."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

DRAIN_TIMEOUT: Final = timedelta(seconds=5)
FIRST_REQUEST_TIMEOUT: Final = timedelta(seconds=10)
MAX_CONNECTIONS: Final = 1000
"""And never more than a quarter of the descriptors that this process may have: a worker's streams need the others."""


@asynccontextmanager
async def serving(
    application: Starlette, host: str = "127.0.0.1", port: int = 0, *, drain: timedelta = DRAIN_TIMEOUT
) -> AsyncIterator[str]:
    """Serve in this event loop and yield the base URL; `port` 0 takes a free one. Signals stay with the caller.

    At the end live streams are closed within a poll: their readers resume elsewhere from the last id they received.
    A connection that is still open is cut after `drain`.

    Raises:
        CannotListen: the address is in use, or not one of this machine.
    """
    listener = _listen(host, port)
    actual_port = listener.getsockname()[1]
    grace = int(drain.total_seconds())
    config = uvicorn.Config(
        application,
        http=_BoundedConnection,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the address of a connection counts: it decides whose header names an operator
        timeout_graceful_shutdown=grace,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{actual_port}"
    finally:
        application.state.draining.set()
        server.should_exit = True
        await task


class CannotListen(ValueError):
    """The service cannot listen at its address. The text names the address and the setting."""


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise CannotListen(
            f"AGENT_RUNS_TRANSCRIPTS_LISTEN: the transcript service cannot listen at {host}:{port} ({_reason(error)}). "
            "Stop the program that listens there, or set another address"
        ) from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does so for sockets it makes itself
    return listener


class _Server(uvicorn.Server):
    """A server that does not touch the process's signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _BoundedConnection(H11Protocol):
    """A connection that is closed if there are too many, or if no request comes; uvicorn bounds neither."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
        """Bound the connections, and the wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > connection_limit():
            transport.abort()
        else:
            self.loop.call_later(FIRST_REQUEST_TIMEOUT.total_seconds(), self._close_unused)

    def _close_unused(self) -> None:
        if not self.cycle:
            self.transport.close()


def connection_limit() -> int:
    """Connections at one address of this process at the most."""
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


def _reason(error: OSError | OverflowError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "not a usable address"
