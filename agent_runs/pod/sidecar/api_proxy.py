"""The Paperclip API proxy: the agent's only way to Paperclip, so that its token can change while it runs.

It listens on a free port of the pod's own loopback and forwards to one address. The agent has placeholders instead of
tokens; the proxy replaces them by the current tokens, read from the folder of a Secret (`token`, `run-id`,
`tools-token`) for each request, because the kubelet updates a changed Secret there. A request with a bearer token of
its own keeps it. One without any is refused, as is one that a web page in the agent's browser could send: for another
host, or from another origin.

Nothing is logged: neither requests nor tokens nor bodies.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import itertools
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

from agent_runs.pod.sidecar.upstream import Upstream

KEY_PLACEHOLDER = "paperclip-api-proxy-sets-the-key"
"""The agent's value of `PAPERCLIP_API_KEY`."""
TOOLS_PLACEHOLDER = "paperclip-api-proxy-sets-the-tools-token"
"""The agent's value of `PAPERCLIP_RUNTIME_TOOLS_TOKEN`."""
TOKEN_FILE, RUN_ID_FILE, TOOLS_TOKEN_FILE = "token", "run-id", "tools-token"
"""Names in the folder of the Secret. Without connection tools there is no last one."""

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 48
"""Connections at a time; further ones wait. With `MAX_REPLAY_BODY` this bounds the memory."""
MAX_REPLAY_BODY = 1024 * 1024
"""Bytes of a request that are kept, to repeat it if the token has changed meanwhile."""
READ_BYTES = 64 * 1024
CONNECT_SECONDS, READ_SECONDS, KEEP_ALIVE_SECONDS = 10.0, 900.0, 75.0
"""Seconds: for a connection to Paperclip; without a byte within an answer; until the next request."""
MAX_TRAILERS = 100

_VISIBLE_ASCII = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_HOP_BY_HOP = frozenset(
    {
        *(
            "connection",
            "keep-alive",
            "proxy-connection",
            "proxy-authenticate",
            "proxy-authorization",
        ),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that are about one connection. Source: RFC 9110 section 7.6.1."""

Header = tuple[str, str]


def connect(upstream: Upstream, trust: ssl.SSLContext) -> http.client.HTTPConnection:
    """Return an open connection."""
    connection: http.client.HTTPConnection
    if upstream.scheme == "https":
        connection = http.client.HTTPSConnection(upstream.host, upstream.port, timeout=CONNECT_SECONDS, context=trust)
    else:
        connection = http.client.HTTPConnection(upstream.host, upstream.port, timeout=CONNECT_SECONDS)
    connection.connect()
    connection.sock.settimeout(READ_SECONDS)
    return connection


class Tokens(NamedTuple):
    """The current tokens, and the Paperclip run that they belong to."""

    token: str
    run_id: str
    tools_token: str

    @classmethod
    def read(cls, folder: str) -> Tokens:
        """Read the files of the Secret in one consistent state: the kubelet replaces `..data` atomically.

        Raises:
            OSError: the files do not exist.
        """
        for _ in range(10):
            with contextlib.suppress(FileNotFoundError):
                return cls._of(os.path.join(folder, "..data"))  # noqa: PTH118 - os is what os.open needs
            with contextlib.suppress(FileNotFoundError):
                return cls._of(folder)
            time.sleep(0.01)  # replaced during the read
        return cls._of(folder)

    @classmethod
    def _of(cls, folder: str) -> Tokens:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return cls(
                _text(directory, TOKEN_FILE),
                _text(directory, RUN_ID_FILE),
                _text(directory, TOOLS_TOKEN_FILE, missing=""),
            )
        finally:
            os.close(directory)


def _text(directory: int, name: str, missing: str | None = None) -> str:
    try:
        file = os.open(name, os.O_RDONLY, dir_fd=directory)
    except FileNotFoundError:
        if missing is None:
            raise
        return missing
    with os.fdopen(file) as content:
        return content.read(READ_BYTES).strip()


class ClientDisconnected(Exception):
    """The agent ended its connection in the middle of a request."""


class RequestRefused(Exception):
    """A request that is not forwarded: status and reason."""

    def __init__(self, status: int, reason: str, code: str = "api_proxy_refused") -> None:
        super().__init__(reason)
        self.status = status
        self.code = code


# requests


def target_of(path: str) -> str:
    """Return the path of a request as it is appended to Paperclip's address.

    Raises:
        RequestRefused: it is no path, or it could leave that address.
    """
    if not path.startswith("/"):
        raise RequestRefused(400, "only paths of Paperclip's API are forwarded, no other addresses")
    if not _VISIBLE_ASCII.fullmatch(path) or "#" in path:
        raise RequestRefused(400, "the path has characters that must be percent-encoded")
    decoded = unquote(path.partition("?")[0])
    if any(part in (".", "..") for part in re.split(r"[/\\]", decoded)):
        raise RequestRefused(400, "the path must not have '.' or '..' in it")
    return path


def forwarded_headers(received: Iterable[Header]) -> list[Header]:
    """Return the headers that are forwarded to Paperclip, without those that the proxy sets.

    Raises:
        RequestRefused: a header is malformed.
    """
    headers = list(received)
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name) or any(sign in value for sign in "\r\n\0"):
            raise RequestRefused(400, "a header is malformed")
    of_connection = {
        word.strip().lower() for name, value in headers if name.lower() == "connection" for word in value.split(",")
    }
    left_out = _HOP_BY_HOP | of_connection | {"host", "content-length", "expect"}
    return [(name, value) for name, value in headers if name.lower() not in left_out]


def check_sender(headers: list[Header], address: str) -> None:
    """Refuse what a web page could make a browser in the pod send: the agent's own programs know the address.

    Raises:
        RequestRefused: the request is for another host, or says that it comes from another origin.
    """
    hosts, origins, sites = (
        [value.strip().lower() for name, value in headers if name.lower() == wanted]
        for wanted in ("host", "origin", "sec-fetch-site")
    )
    if any(f"http://{host}" != address for host in hosts) or len(hosts) > 1:
        raise RequestRefused(403, f"the Host header must be that of {address}")
    if any(origin != address for origin in origins):
        raise RequestRefused(403, "requests of web pages are not forwarded: foreign Origin")
    if any(site not in ("none", "same-origin") for site in sites):
        raise RequestRefused(403, "requests of web pages are not forwarded: foreign Sec-Fetch-Site")


def with_token(headers: list[Header], now: Tokens) -> list[Header]:
    """Return the headers with the current token in place of the agent's placeholder.

    Raises:
        RequestRefused: there is no Authorization, more than one, or no token.
    """
    credentials = [value for name, value in headers if name.lower() == "authorization"]
    if len(credentials) > 1:
        raise RequestRefused(400, "a request has one Authorization header at the most")
    if not credentials:
        raise RequestRefused(401, "send PAPERCLIP_API_KEY: Authorization: Bearer $PAPERCLIP_API_KEY")
    scheme, _, word = credentials[0].strip().partition(" ")
    bearer = word.strip() if scheme.lower() == "bearer" else ""
    if bearer not in (KEY_PLACEHOLDER, TOOLS_PLACEHOLDER):
        return headers
    token = now.token if bearer == KEY_PLACEHOLDER else now.tools_token
    if not token:
        raise RequestRefused(503, "this run has no such token", "api_proxy_without_token")
    rest = [(name, value) for name, value in headers if name.lower() not in ("authorization", "x-paperclip-run-id")]
    sends_run_id = bearer == KEY_PLACEHOLDER or len(rest) + 1 < len(headers)
    return [
        *rest,
        ("Authorization", f"Bearer {token}"),
        *([("X-Paperclip-Run-Id", now.run_id)] if sends_run_id and now.run_id else []),
    ]


class Body:
    """The body of a request: whole if it is small, else its beginning and the rest as it comes."""

    def __init__(self, pieces: Iterator[bytes], length: int | None) -> None:
        self._rest = pieces
        self._length = length
        self._beginning = bytearray()
        self.whole = False
        while not self.whole and len(self._beginning) <= MAX_REPLAY_BODY:
            piece = next(pieces, None)
            if piece is None:
                self.whole = True
            else:
                self._beginning += piece

    @property
    def framing(self) -> Header | None:
        """The header that delimits it; None for a request without a body."""
        if self.whole:
            size = len(self._beginning)
            return ("Content-Length", str(size)) if self._length is not None or size else None
        if self._length is not None:
            return ("Content-Length", str(self._length))
        return ("Transfer-Encoding", "chunked")

    def send(self, connection: http.client.HTTPConnection) -> None:
        """Send all of it. A body that is not whole can be sent only once."""
        if self.whole:
            connection.send(self._beginning)
            return
        chunked = self._length is None
        kept, self._beginning = bytes(self._beginning), bytearray()
        for piece in itertools.chain([kept], self._rest):
            connection.send(_framed(piece) if chunked else piece)
        if chunked:
            connection.send(b"0\r\n\r\n")


def _framed(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


# one connection of the agent


class Relay(http.server.BaseHTTPRequestHandler):
    """Forwards the requests of one connection one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = KEEP_ALIVE_SECONDS

    @property
    def _proxy(self) -> Server:
        return cast("Server", self.server)

    def do_GET(self) -> None:
        """Forward a request of any method."""
        self.connection.settimeout(READ_SECONDS)
        try:
            self._forward()
        except RequestRefused as refusal:
            self._refuse(refusal)
        except (OSError, http.client.HTTPException, ClientDisconnected):
            self.close_connection = True  # within an answer: only a missing end mark can show it
        finally:
            with contextlib.suppress(OSError):
                self.connection.settimeout(KEEP_ALIVE_SECONDS)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - http.server's names

    def _forward(self) -> None:
        target = target_of(self.path)
        if self.request_version not in ("HTTP/1.0", "HTTP/1.1"):
            raise RequestRefused(400, "only HTTP/1.0 and HTTP/1.1 are forwarded")
        if self.headers.defects:
            raise RequestRefused(400, "a header is malformed")
        headers = forwarded_headers(self.headers.items())
        check_sender(self.headers.items(), self._proxy.address)
        body = self._body()
        now = self._proxy.tokens()
        try:
            connection, answer = self._request_upstream(target, with_token(headers, now), body)
            if answer.status in (401, 409) and body.whole and (later := self._proxy.tokens()) != now:
                connection.close()
                connection, answer = self._request_upstream(target, with_token(headers, later), body)
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._proxy.upstream.scheme}://{self._proxy.upstream.authority}"
            reason = f"Paperclip at {where} cannot be reached: {type(error).__name__}"
            raise RequestRefused(502, reason, "api_proxy_upstream_unreachable") from None
        with contextlib.closing(connection):
            self._answer(answer)

    def _request_upstream(
        self, target: str, headers: list[Header], body: Body
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        upstream = self._proxy.upstream
        connection = connect(upstream, self._proxy.trust)
        try:
            connection.putrequest(self.command, upstream.path + target, skip_host=True, skip_accept_encoding=True)
            framing = [body.framing] if body.framing else []
            for name, value in [("Host", upstream.authority), *headers, *framing, ("Connection", "close")]:
                connection.putheader(name, value)
            connection.endheaders()
            try:
                body.send(connection)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # Paperclip refused the rest of it, and its answer has the reason
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        if answer.status < 200:
            raise RequestRefused(502, "Paperclip's answer is not valid", "api_proxy_upstream_unreachable")
        empty = self.command == "HEAD" or answer.status in (204, 304)
        length = answer.getheader("Content-Length") if answer.length is not None or empty else None
        chunked = not empty and length is None and self.request_version != "HTTP/1.0"
        if length is None and not chunked and not empty:
            self.close_connection = True
        self._head(answer, ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", length))
        if empty:
            return
        while piece := answer.read1(READ_BYTES):
            self.wfile.write(_framed(piece) if chunked else piece)
        if answer.length:
            self.close_connection = True  # cut: the agent gets what came and sees that the rest is missing
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _head(self, answer: http.client.HTTPResponse, framing: tuple[str, str | None]) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, self._rewrite_location(name, re.sub(r"[\r\n]+[ \t]*", " ", value)))
        if framing[1] is not None:
            self.send_header(framing[0], framing[1])
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _rewrite_location(self, name: str, value: str) -> str:
        """Rewrite a redirection within Paperclip so that it leads through the proxy."""
        base = self._proxy.upstream.base
        if name.lower() in ("location", "content-location") and (value + "/").startswith(base + "/"):
            return self._proxy.address + value[len(base) :]
        return value

    def _body(self) -> Body:
        lengths = self.headers.get_all("Content-Length") or []
        codings = self.headers.get_all("Transfer-Encoding") or []
        if codings:
            if lengths or len(codings) > 1 or codings[0].strip().lower() != "chunked":
                raise RequestRefused(400, "the body's length is ambiguous")
            return Body(self._chunks(), None)
        if not lengths:
            return Body(iter(()), 0 if self.command in ("POST", "PUT", "PATCH") else None)
        if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,15}", lengths[0].strip()):
            raise RequestRefused(400, "the body's length is ambiguous")
        length = int(lengths[0])
        return Body(self._pieces(length), length)

    def _pieces(self, left: int) -> Iterator[bytes]:
        while left:
            piece = self._read(min(left, READ_BYTES))
            left -= len(piece)
            yield piece

    def _read(self, most: int) -> bytes:
        try:
            piece: bytes = self.rfile.read1(most)
        except OSError:
            piece = b""
        if not piece:
            raise ClientDisconnected
        return piece

    def _line(self, most: int) -> bytes:
        try:
            return self.rfile.readline(most)
        except OSError:
            raise ClientDisconnected from None

    def _chunks(self) -> Iterator[bytes]:
        while True:
            size = _CHUNK_SIZE_LINE.fullmatch(self._line(1024))
            if size is None:
                raise RequestRefused(400, "a chunk of the body is malformed")
            left = int(size[1], 16)
            if not left:
                break
            yield from self._pieces(left)
            if self._line(3) != b"\r\n":
                raise RequestRefused(400, "a chunk of the body is malformed")
        for _ in range(MAX_TRAILERS):
            if self._line(READ_BYTES) in (b"\r\n", b"\n", b""):
                return
        raise RequestRefused(400, "the body has too many trailers")

    def _refuse(self, refusal: RequestRefused) -> None:
        """Answer with the reason and close the connection, for the rest of the request may still come."""
        self.close_connection = True
        self.request_version = self.protocol_version  # an unreadable request has none, or one without headers
        body = json.dumps({"error": str(refusal), "code": refusal.code}).encode()
        with contextlib.suppress(OSError):
            self.send_response_only(refusal.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what http.server itself refuses, without its page that quotes the request."""
        del message, explain
        self.command = getattr(self, "command", None) or ""
        self._refuse(RequestRefused(int(code), "the request is malformed or of a kind that is not forwarded"))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing."""


class Server(http.server.ThreadingHTTPServer):
    """Serves on a socket that is already open."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, upstream: Upstream, folder: str) -> None:
        super().__init__((LOOPBACK, 0), Relay, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.upstream = upstream
        self.trust = trusted_authorities() if upstream.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.address = address_of(listener)
        self._folder = folder
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def tokens(self) -> Tokens:
        """Return the current tokens.

        Raises:
            RequestRefused: the tokens cannot be read.
        """
        try:
            return Tokens.read(self._folder)
        except (OSError, UnicodeDecodeError):
            raise RequestRefused(503, "the token of this run cannot be read", "api_proxy_without_token") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait for a free slot, then serve the connection."""
        self._slots.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the connection, then free its slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about a broken connection."""


def address_of(listener: socket.socket) -> str:
    """Return the agent's `PAPERCLIP_API_URL`."""
    return f"http://{LOOPBACK}:{listener.getsockname()[1]}"


def trusted_authorities() -> ssl.SSLContext:
    """Trust the system's authorities, or those of `SSL_CERT_FILE`, and those of `NODE_EXTRA_CA_CERTS`."""
    context = ssl.create_default_context()
    more = os.environ.get("NODE_EXTRA_CA_CERTS")
    if more:
        with contextlib.suppress(OSError, ssl.SSLError):
            context.load_verify_locations(more)
    return context


def serve(listener: socket.socket, upstream: Upstream, tokens: str) -> None:
    """Serve for ever.

    Args:
        listener: the open socket.
        upstream: Paperclip.
        tokens: the folder of the Secret.
    """
    Server(listener, upstream, tokens).serve_forever()
