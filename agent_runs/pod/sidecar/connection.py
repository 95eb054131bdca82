"""HTTP/1.1 over sockets that do not block: h11 has the protocol, this has the waiting and its limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

import h11

from agent_runs.pod.sidecar.upstream import Upstream

READ_BYTES = 64 * 1024
MAX_HEAD = 64 * 1024
"""Bytes of a message before its body that are waited for."""
CONNECT_SECONDS, READ_SECONDS, FINISH_SECONDS = 10.0, 900.0, 2.0
"""Seconds: for a connection to Paperclip; without a byte within a message; see `Connection.finish`."""

T = TypeVar("T")


def connect(upstream: Upstream, trust: ssl.SSLContext | None) -> socket.socket:
    """Return an open connection to Paperclip, with TLS if `trust` has its authorities. This blocks."""
    plain = socket.create_connection((upstream.host, upstream.port or (443 if trust else 80)), CONNECT_SECONDS)
    return trust.wrap_socket(plain, server_hostname=upstream.host) if trust else plain


class Connection:
    """One connection: a socket, and h11's state of it.

    Not asyncio's streams, because they drop what was received as soon as a write fails: a server that refuses the rest
    of a body answers and closes, and its answer would be lost.
    """

    def __init__(self, connected: socket.socket, role: type[h11.CLIENT | h11.SERVER]) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self.http = h11.Connection(role, MAX_HEAD)
        self.head = b""
        """The received bytes of the last request that came, up to its body."""

    async def receive(self, seconds: float = READ_SECONDS) -> object:
        """Return the next event of the other side.

        Raises:
            OSError: the connection failed, or no byte came in that time.
            h11.RemoteProtocolError: what came is not HTTP, or ended too early.
        """
        while True:
            unread = self.http.trailing_data[0] if self.http.their_state is h11.IDLE else b""
            event = self.http.next_event()
            if isinstance(event, h11.Request):
                self.head = unread[: len(unread) - len(self.http.trailing_data[0])]
            if event is not h11.NEED_DATA:
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self._when_ready(self._socket.recv, READ_BYTES, seconds))

    async def send(self, *events: h11.Event) -> None:
        """Send events in one piece.

        Raises:
            OSError: the connection failed, or the other side did not read for too long.
        """
        left = memoryview(b"".join(self.http.send(event) or b"" for event in events))
        while left:
            left = left[await self._when_ready(self._socket.send, left, READ_SECONDS, sends=True) :]

    async def finish(self) -> None:
        """Close it, but read what still comes before: otherwise the kernel may take the last answer from its reader."""
        end = time.monotonic() + FINISH_SECONDS
        with self._socket, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                if not await self._when_ready(self._socket.recv, READ_BYTES, left):
                    break

    def close(self) -> None:
        self._socket.close()

    async def _when_ready(
        self, operation: Callable[[Any], T], argument: object, seconds: float, *, sends: bool = False
    ) -> T:
        await asyncio.sleep(0)  # a connection that is always ready must not stop the others
        while True:
            try:
                return operation(argument)
            except BlockingIOError:
                await self._until_ready(seconds, to_send=sends)
            except ssl.SSLWantReadError:
                await self._until_ready(seconds, to_send=False)
            except ssl.SSLWantWriteError:
                await self._until_ready(seconds, to_send=True)

    async def _until_ready(self, seconds: float, *, to_send: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[bool] = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if to_send else (loop.add_reader, loop.remove_reader)

        def settle(in_time: bool) -> None:
            if not ready.done():
                ready.set_result(in_time)

        timer = loop.call_later(seconds, settle, False)
        add(self._socket, settle, True)
        try:
            if not await ready:
                raise TimeoutError
        finally:
            timer.cancel()
            remove(self._socket)
