"""The Paperclip API proxy: the agent's only way to Paperclip, so that its token can change while it runs.

It listens on a free port of the pod's own loopback and forwards to one address. The agent has placeholders instead of
tokens; the proxy replaces them by the current tokens, read from the folder of a Secret (`token`, `run-id`,
`tools-token`) for each request, because the kubelet updates a changed Secret there. A request with a bearer token of
its own keeps it. One without any is refused, as is one that a web page in the agent's browser could send: for another
host, or from another origin.

Nothing is logged: neither requests nor tokens nor bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import h11

from agent_runs.pod.sidecar.connection import READ_BYTES, READ_SECONDS, Connection, connect
from agent_runs.pod.sidecar.requests import Header, RequestRefused, check, forwarded_headers, through_proxy, with_token
from agent_runs.pod.sidecar.tokens import Tokens
from agent_runs.pod.sidecar.upstream import Upstream

MAX_CONNECTIONS = 48
"""Connections at a time; further ones wait. With `MAX_REPLAY_BODY` this bounds the memory."""
MAX_REPLAY_BODY = 1024 * 1024
"""Bytes of a request that are kept, to repeat it if the token has changed meanwhile."""
KEEP_ALIVE_SECONDS = 75.0
"""Until the next request."""


class ClientDisconnected(Exception):
    """The agent ended its connection in the middle of a request."""


class Proxy:
    """Serves on a socket that is already open."""

    def __init__(self, listener: socket.socket, upstream: Upstream, folder: str, own: str) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._folders = folder, own
        self._trust = trusted_authorities() if upstream.scheme == "https" else None
        self.upstream = upstream
        host, port = listener.getsockname()
        self.address = f"http://{host}:{port}"

    async def serve(self) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_CONNECTIONS))
        accepting = asyncio.Lock()
        await asyncio.gather(*(self._serve_each(accepting) for _ in range(MAX_CONNECTIONS)))

    async def _serve_each(self, accepting: asyncio.Lock) -> None:
        """Serve one connection after the other. What ends one of them is logged nowhere."""
        while True:
            with contextlib.suppress(Exception):
                async with accepting:
                    connected, _ = await asyncio.get_running_loop().sock_accept(self._listener)
                await Relay(self, Connection(connected, h11.SERVER)).run()

    async def connect(self) -> Connection:
        return Connection(await asyncio.to_thread(connect, self.upstream, self._trust), h11.CLIENT)

    async def tokens(self) -> Tokens:
        """Return the current tokens.

        Raises:
            RequestRefused: the tokens cannot be read.
        """
        try:
            return await asyncio.to_thread(Tokens.read, *self._folders)
        except (OSError, ValueError):
            raise RequestRefused(503, "the token of this run cannot be read", "api_proxy_without_token") from None


class Relay:
    """Forwards the requests of one connection of the agent, one after the other."""

    def __init__(self, proxy: Proxy, agent: Connection) -> None:
        self._proxy = proxy
        self._agent = agent
        self._method = b""
        self._length: int | None = None
        self._beginning = bytearray()

    async def run(self) -> None:
        """Forward until the connection ends. A failure within an answer shows in its missing end only."""
        try:
            while isinstance(request := await self._receive(KEEP_ALIVE_SECONDS), h11.Request):
                await self._forward(request)
                self._method, self._length = b"", None
                self._agent.http.start_next_cycle()  # an error if the connection must be closed
        except RequestRefused as refusal:
            await self._refuse(refusal)
        finally:
            await self._agent.finish()

    async def _forward(self, request: h11.Request) -> None:
        self._method = request.method
        self._length = next((int(value) for name, value in request.headers if name == b"content-length"), None)
        check(request, self._agent.head, self._proxy.address)
        headers = forwarded_headers(request.headers.raw_items(), b"host", b"content-length", b"expect")
        whole = await self._receive_beginning()
        now = await self._proxy.tokens()
        with contextlib.ExitStack() as opened:
            try:
                server, answer = await self._ask(opened, request.target, with_token(headers, now), whole=whole)
                if answer.status_code in (401, 409) and whole and (later := await self._proxy.tokens()) != now:
                    server.close()
                    server, answer = await self._ask(opened, request.target, with_token(headers, later), whole=whole)
            except (OSError, h11.RemoteProtocolError) as error:
                where = f"{self._proxy.upstream.scheme}://{self._proxy.upstream.authority}"
                reason = f"Paperclip at {where} cannot be reached: {type(error).__name__}"
                raise RequestRefused(502, reason, "api_proxy_upstream_unreachable") from None
            await self._answer(server, answer)

    # from the agent

    async def _receive(self, seconds: float = READ_SECONDS) -> object:
        """Return the agent's next event.

        Raises:
            ClientDisconnected: there is none.
            RequestRefused: what it sent is malformed.
        """
        try:
            return await self._agent.receive(seconds)
        except OSError:
            raise ClientDisconnected from None
        except h11.RemoteProtocolError as error:
            unread, ended = self._agent.http.trailing_data
            if ended and self._length is not None:
                raise ClientDisconnected from None
            status = 400 if error.error_status_hint != 431 else 431 if b"\n" in unread else 414
            raise RequestRefused(status, "the request is malformed or too large") from None

    async def _receive_beginning(self) -> bool:
        """Receive the body, or its beginning if it is large; True if that is all of it."""
        self._beginning.clear()
        while len(self._beginning) <= MAX_REPLAY_BODY:
            event = await self._receive()
            if not isinstance(event, h11.Data):
                return True
            self._beginning += event.data
        return False

    # to and from Paperclip

    async def _ask(
        self, opened: contextlib.ExitStack, target: bytes, headers: list[Header], *, whole: bool
    ) -> tuple[Connection, h11.Response]:
        """Return the connection and the beginning of the answer."""
        upstream = self._proxy.upstream
        server = opened.enter_context(contextlib.closing(await self._proxy.connect()))
        rest = [*headers, *self._framing(whole=whole), (b"Connection", b"close")]
        all_headers = [(b"Host", upstream.authority.encode()), *rest]
        await server.send(h11.Request(method=self._method, target=upstream.path.encode() + target, headers=all_headers))
        # it may refuse the rest of the body, and its answer says why
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            await self._send_body(server, whole=whole)
        while not isinstance(answer := await server.receive(), h11.Response):
            pass  # an answer before the answer, such as 100 or 103
        return server, answer

    def _framing(self, *, whole: bool) -> list[Header]:
        size = len(self._beginning) if whole else self._length
        if size is None:
            return [(b"Transfer-Encoding", b"chunked")]
        has_body = size or self._length is not None or self._method in (b"PATCH", b"POST", b"PUT")
        return [(b"Content-Length", b"%d" % size)] if has_body else []

    async def _send_body(self, server: Connection, *, whole: bool) -> None:
        for at in range(0, len(self._beginning), READ_BYTES):
            await server.send(h11.Data(data=bytes(self._beginning[at : at + READ_BYTES])))
        if not whole:
            self._beginning.clear()
            while isinstance(event := await self._receive(), h11.Data):
                await server.send(event)
        await server.send(h11.EndOfMessage())

    # to the agent

    async def _answer(self, server: Connection, answer: h11.Response) -> None:
        chunked = any(name == b"transfer-encoding" for name, _ in answer.headers)
        received = forwarded_headers(answer.headers.raw_items(), *([b"content-length"] if chunked else []))
        headers = [through_proxy(each, self._proxy.upstream.base, self._proxy.address) for each in received]
        if self._agent.http.their_state is h11.SEND_BODY:
            headers.append((b"Connection", b"close"))  # the rest of the body is not read
        await self._agent.send(h11.Response(status_code=answer.status_code, reason=answer.reason, headers=headers))
        while isinstance(event := await server.receive(), h11.Data):
            await self._agent.send(event)
        await self._agent.send(h11.EndOfMessage())

    async def _refuse(self, refusal: RequestRefused) -> None:
        """Answer with the reason; the connection ends, for the rest of the request may still come."""
        body = json.dumps({"error": str(refusal), "code": refusal.code}).encode()
        head = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        answer = h11.Response(status_code=refusal.status, reason=HTTPStatus(refusal.status).phrase, headers=head)
        data = [] if self._method == b"HEAD" else [h11.Data(data=body)]
        await self._agent.send(answer, *data, h11.EndOfMessage())


def trusted_authorities() -> ssl.SSLContext:
    """Trust the system's authorities, or those of `SSL_CERT_FILE`, and those of `NODE_EXTRA_CA_CERTS`."""
    context = ssl.create_default_context()
    more = os.environ.get("NODE_EXTRA_CA_CERTS")
    if more:
        with contextlib.suppress(OSError, ssl.SSLError):
            context.load_verify_locations(more)
    return context


def serve(listener: socket.socket, upstream: Upstream, tokens: str, own: str) -> None:
    """Serve for ever.

    Args:
        listener: the open socket.
        upstream: Paperclip.
        tokens: the folder of the Secret.
        own: the sidecar's own folder, where tokens of a later run are.
    """
    asyncio.run(Proxy(listener, upstream, tokens, own).serve())
