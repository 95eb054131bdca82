"""Responses of unknown length, and the ways in which a fault cuts a response."""

from __future__ import annotations

import contextlib
import socket
import struct

from aiohttp import web

from dev_stack.cluster.faults import HttpFault

FAULTS = web.RequestKey("faults", list[HttpFault])


def cutting(request: web.Request) -> HttpFault | None:
    return next((hit for hit in request.get(FAULTS, ()) if hit.cut_after is not None), None)


class Stream:
    """A chunked response of unknown length, which a fault may cut."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse()
        self._fault = cutting(request)
        self._left = self._fault.cut_after or 0 if self._fault else 0

    async def open(self, content_type: str) -> None:
        self._response.content_type = content_type
        await self._response.prepare(self._request)
        await self._response.write(b"")  # the head must not wait for the first line of the body

    async def write(self, data: bytes) -> bool:
        """Send data; False when a fault has ended the response."""
        if self._fault is None:
            await self._response.write(data)
            return True
        part, self._left = data[: self._left], self._left - len(data)
        if self._fault.text and self._left <= 0:
            part = part[: part.rfind(b"\n") + 1]  # a kubelet puts its text behind a whole line
        if part:
            await self._response.write(part)
        if self._left > 0:
            return True
        if self._fault.text:
            await self._response.write(self._fault.text.encode())
        if not self._fault.clean:
            _reset(self._request)
            raise ConnectionResetError("cut by a fault")
        return False

    async def close(self) -> web.StreamResponse:
        """End the response properly, where the connection is still open."""
        with contextlib.suppress(ConnectionError):
            await self._response.write_eof()
        return self._response


async def send_part(request: web.Request, response: web.Response, fault: HttpFault) -> web.StreamResponse:
    """Send the beginning of a response and break the connection: the work is done, the client cannot know."""
    body = response.body if isinstance(response.body, bytes) else b""
    part = web.StreamResponse(status=response.status)
    part.content_type = response.content_type
    part.content_length = len(body)
    if fault.cut_after:
        await part.prepare(request)
        await part.write(body[: fault.cut_after])
    _reset(request)
    return part


def _reset(request: web.Request) -> None:
    """Break the connection so that the client sees a reset, not an end."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
