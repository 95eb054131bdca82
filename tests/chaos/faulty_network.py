"""A reverse proxy with faults between a client and the API server of any cluster.

It listens for HTTP on loopback and forwards everything, tokens included; its faults are those of the embedded cluster.
A message of a kubelet may be put anywhere into a body, also into the middle of a line.
"""

import asyncio
import base64
import json
import re
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from dev_stack.cluster.faults import HttpFault

_HOP_BY_HOP = {"host", "connection", "upgrade", "transfer-encoding", "content-length", "keep-alive"}


class _Broken(Exception):
    """The connection is to be reset."""


@dataclass
class Hold:
    """The next request whose path and query this expression is found in waits on its way, or its answer does.

    Attributes:
        answer: the answer of an exec is held back, and broken off at its release.
        arrived: it waits.
    """

    path: str
    answer: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let it go on, or break it off."""
        self._released.set()

    def takes(self, request: web.Request) -> bool:
        """Whether this is the request."""
        return not self.arrived.is_set() and re.search(self.path, request.path_qs) is not None

    async def wait(self) -> None:
        """Return at the release."""
        self.arrived.set()
        await self._released.wait()


@dataclass
class FaultyNetwork:
    """The faults between a client that uses `kubeconfig` and the cluster.

    Attributes:
        requests: method, path and query of all requests.
    """

    server: str
    session: aiohttp.ClientSession
    kubeconfig: Path
    requests: list[str] = field(default_factory=list)
    faults: list[HttpFault] = field(default_factory=list)
    _holds: list[Hold] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _ends: set[asyncio.Event] = field(default_factory=set)

    def http(self, **what: Any) -> HttpFault:
        """Add a fault for the next matching requests; it counts its `hits`."""
        self.faults.append(HttpFault(**what))
        return self.faults[-1]

    def hold(self, path: str, *, answer: bool = False) -> Hold:
        """Hold back the next request whose path and query this expression is found in, or its answer."""
        self._holds.append(Hold(path, answer))
        return self._holds[-1]

    async def until_requested(self, expression: str, count: int = 1) -> None:
        """Return after so many further requests that this expression is found in."""
        known = len(self.requests)
        while sum(re.search(expression, each) is not None for each in self.requests[known:]) < count:
            self._arrived.clear()
            await self._arrived.wait()

    def count(self, end: str) -> int:
        """How many requests had a path with this end."""
        return sum(each.partition("?")[0].endswith(end) for each in self.requests)

    def end_follows(self) -> None:
        """End every open log stream cleanly, at whatever byte."""
        for end in self._ends:
            end.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        self._arrived.set()
        hold = next((each for each in self._holds if each.takes(request)), None)
        if hold is not None and not hold.answer:
            await hold.wait()
        fault = next((each for each in self.faults if each.takes(request.method, request.path_qs)), None)
        if fault is not None:
            await asyncio.sleep(fault.delay)
            if fault.status is not None:
                return _refusal(fault)
        try:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await self._websocket(request, fault, hold if hold is not None and hold.answer else None)
            return await self._http(request, fault)
        except (_Broken, aiohttp.ClientError, OSError):
            _reset(request)
            return web.Response(status=502)  # the connection is closed: no client receives it

    async def _http(self, request: web.Request, fault: HttpFault | None) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        url = URL(self.server + request.raw_path, encoded=True)
        async with self.session.request(request.method, url, headers=headers, data=body or None) as upstream:
            answer = web.StreamResponse(status=upstream.status)
            answer.content_type = upstream.content_type
            await answer.prepare(request)
            async with aclosing(self._body(upstream, fault, following="follow=true" in request.query_string)) as pieces:
                async for piece in pieces:
                    await answer.write(piece)
            await answer.write_eof()
            return answer

    async def _body(
        self, upstream: aiohttp.ClientResponse, fault: HttpFault | None, *, following: bool
    ) -> AsyncGenerator[bytes]:
        pieces = upstream.content.iter_any()
        async with aclosing(_until(pieces, self._ends) if following else _all(pieces)) as forwarded:
            if fault is None or fault.cut_after is None:
                async for piece in forwarded:
                    yield piece
                return
            left = fault.cut_after
            async for piece in forwarded:
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    break
            yield fault.text.encode()
            if not fault.clean:
                raise _Broken

    async def _websocket(self, request: web.Request, fault: HttpFault | None, held: Hold | None) -> web.StreamResponse:
        protocols = [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        headers = {"Authorization": request.headers.get("Authorization", "")}
        try:
            opened = await self.session.ws_connect(
                URL(self.server + request.raw_path, encoded=True), protocols=protocols, headers=headers, max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            return web.Response(status=error.status)
        left = None if fault is None else fault.cut_after
        async with opened as theirs:
            ours = web.WebSocketResponse(protocols=protocols, max_msg_size=0)
            await ours.prepare(request)
            sending = asyncio.create_task(_forward_input(ours, theirs))
            try:
                async for message in theirs:
                    if message.type is not aiohttp.WSMsgType.BINARY:
                        break
                    if held is not None and len(message.data) > 1:
                        await held.wait()
                        raise _Broken
                    if left is not None and (left := left - len(message.data)) <= 0:
                        raise _Broken
                    await ours.send_bytes(message.data)
            finally:
                sending.cancel()
                await asyncio.wait([sending])
            await ours.close()
            return ours


@asynccontextmanager
async def faulty_network(kubeconfig: Path, folder: Path) -> AsyncIterator[FaultyNetwork]:
    """A proxy in front of the cluster of `kubeconfig`, which has a token; clients use `FaultyNetwork.kubeconfig`."""
    config = json.loads(await asyncio.to_thread(kubeconfig.read_text))
    (cluster,) = config["clusters"]
    server, authority = cluster["cluster"]["server"], cluster["cluster"]["certificate-authority-data"]
    tls = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        network = FaultyNetwork(server, session, folder / "kubeconfig")
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", network.handle)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            listener = socket.create_server(("127.0.0.1", 0))
            await web.SockSite(runner, listener).start()
            cluster["cluster"] = {"server": f"http://127.0.0.1:{listener.getsockname()[1]}"}
            network.kubeconfig.touch(mode=0o600)
            network.kubeconfig.write_text(json.dumps(config))
            yield network
        finally:
            await runner.cleanup()


async def _forward_input(ours: web.WebSocketResponse, theirs: aiohttp.ClientWebSocketResponse) -> None:
    """What the client sends; a connection that breaks ends the reading of the output as well."""
    with suppress(aiohttp.ClientError, OSError):
        async for message in ours:
            if message.type is aiohttp.WSMsgType.BINARY:
                await theirs.send_bytes(message.data)


async def _all(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    async for piece in pieces:
        yield piece


async def _until(pieces: AsyncIterator[bytes], ends: set[asyncio.Event]) -> AsyncGenerator[bytes]:
    """The pieces, until the event is set that this adds to `ends`."""
    end = asyncio.Event()
    ends.add(end)
    ended = asyncio.create_task(end.wait())
    try:
        while True:
            coming = asyncio.create_task(_next(pieces))
            try:
                await asyncio.wait([coming, ended], return_when=asyncio.FIRST_COMPLETED)
                if not coming.done() or (piece := coming.result()) is None:
                    return
            finally:
                coming.cancel()
            yield piece
    finally:
        ends.discard(end)
        ended.cancel()


def _next(pieces: AsyncIterator[bytes]) -> Coroutine[Any, Any, bytes | None]:
    async def piece() -> bytes | None:
        return await anext(pieces, None)

    return piece()


def _refusal(fault: HttpFault) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.status}
    status |= {"reason": "InternalError", "message": fault.message}
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return web.json_response(status, status=fault.status or 500, headers=headers)


def _reset(request: web.Request) -> None:
    """Break the connection so that the client sees a reset, not an end."""
    with suppress(AttributeError, OSError):
        transport = request.transport
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
