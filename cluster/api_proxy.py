"""The agent's way to Paperclip: a small proxy beside it in the pod, so that its token can change while it works.

A stand-alone program for any Python from 3.9 on, only the standard library; the pod gets its text from a Secret:

    PAPERCLIP_UPSTREAM_URL=https://paperclip.example python3 -I api_proxy.py API_FOLDER TOKEN_FOLDER

It listens on a free port of the pod's own loopback and forwards to that one address. The agent knows fixed words
instead of tokens; here they become the current ones, read from TOKEN_FOLDER (`token`, `run-id`, `tools-token`) for each
request, because the kubelet brings a changed Secret there. A request that carries a bearer of its own keeps it.

API_FOLDER is shared with the agent's container: the FIFO `agent`, which the runner there keeps open as long as that
container lives, and the file `url` with our address, once we listen. When the agent's container ends, in whatever way,
the kernel closes the FIFO and this program exits with 0; until then SIGTERM does not end it, because an agent may still
report in its grace. The process that serves is a child: should it die, another one takes over the same port.

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
import select
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit

KEY_PLACEHOLDER = "paperclip-api-proxy-sets-the-key"
"""What the agent has for `PAPERCLIP_API_KEY`."""
TOOLS_PLACEHOLDER = "paperclip-api-proxy-sets-the-tools-token"
"""What it has for `PAPERCLIP_RUNTIME_TOOLS_TOKEN`."""
UPSTREAM = "PAPERCLIP_UPSTREAM_URL"
"""The variable with Paperclip's address."""
DOOR, ADDRESS = "agent", "url"
"""Names in the folder that both containers see: the FIFO, and the file with our address."""
TOKEN, RUN_ID, TOOLS_TOKEN = "token", "run-id", "tools-token"
"""Names in the folder of the Secret. Without connection tools the last one is missing."""

LOOPBACK = "127.0.0.1"
ROOM = 48
"""Connections at a time; more wait. With `KEPT` this bounds the memory."""
KEPT = 1024 * 1024
"""Bytes of a request that are kept, to send it again when the token has changed meanwhile."""
PIECE = 64 * 1024
CONNECTING, SILENCE, IDLE = 10.0, 900.0, 75.0
"""Seconds: for a connection to Paperclip; without a byte in the middle of an answer; until another request comes."""
LOOK = 1.0
"""Seconds between looks at the process that serves."""
TRAILERS = 100

_VISIBLE = re.compile(r"[!-~]+")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_LINK = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that are about one connection. Source: RFC 9110 section 7.6.1."""

Header = tuple[str, str]


class Upstream(NamedTuple):
    """Where Paperclip is. `path` comes before every path of a request, without a slash at its end."""

    scheme: str
    host: str
    port: int | None
    path: str

    @classmethod
    def read(cls, url: str) -> Upstream:
        """Of an absolute http(s) URL without login, query or fragment.

        Raises:
            ValueError: it is something else.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(f"{UPSTREAM} must be an absolute http:// or https:// URL without a login")
        return cls(parts.scheme, parts.hostname, parts.port, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Host and port as the `Host` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def base(self) -> str:
        """The whole address."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def connected(self, trust: ssl.SSLContext) -> http.client.HTTPConnection:
        """An open connection."""
        connection: http.client.HTTPConnection
        if self.scheme == "https":
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=CONNECTING, context=trust)
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=CONNECTING)
        connection.connect()
        connection.sock.settimeout(SILENCE)
        return connection


class Tokens(NamedTuple):
    """Whom the agent speaks for at this moment."""

    token: str
    run_id: str
    tools_token: str

    @classmethod
    def read(cls, folder: str) -> Tokens:
        """From the files of the Secret, all of one state: the kubelet replaces `..data` in one step.

        Raises:
            OSError: they are not there.
        """
        for _ in range(10):
            with contextlib.suppress(FileNotFoundError):
                return cls._of(os.path.join(folder, "..data"))  # noqa: PTH118 - os is what os.open needs
            with contextlib.suppress(FileNotFoundError):
                return cls._of(folder)
            time.sleep(0.01)  # replaced while we looked
        return cls._of(folder)

    @classmethod
    def _of(cls, folder: str) -> Tokens:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return cls(_text(place, TOKEN), _text(place, RUN_ID), _text(place, TOOLS_TOKEN, missing=""))
        finally:
            os.close(place)


def _text(place: int, name: str, missing: str | None = None) -> str:
    try:
        file = os.open(name, os.O_RDONLY, dir_fd=place)
    except FileNotFoundError:
        if missing is None:
            raise
        return missing
    with os.fdopen(file) as content:
        return content.read(PIECE).strip()


class HungUp(Exception):
    """The agent ended its connection in the middle of a request."""


class Refused(Exception):
    """What is not forwarded: status and a sentence."""

    def __init__(self, status: int, why: str, code: str = "api_proxy_refused") -> None:
        super().__init__(why)
        self.status = status
        self.code = code


# what is sent


def target_of(path: str) -> str:
    """The path of a request as it is appended to Paperclip's address.

    Raises:
        Refused: it is no path, or it could leave that address.
    """
    if not path.startswith("/"):
        raise Refused(400, "only paths of Paperclip's API are forwarded, no other addresses")
    if not _VISIBLE.fullmatch(path) or "#" in path:
        raise Refused(400, "the path has characters that must be percent-encoded")
    decoded = unquote(path.partition("?")[0])
    if any(part in (".", "..") for part in re.split(r"[/\\]", decoded)):
        raise Refused(400, "the path must not have '.' or '..' in it")
    return path


def own_headers(given: Iterable[Header]) -> list[Header]:
    """The headers that go on to Paperclip, without those that are ours to set.

    Raises:
        Refused: one that would not arrive as it was meant.
    """
    headers = list(given)
    for name, value in headers:
        if not _NAME.fullmatch(name) or any(sign in value for sign in "\r\n\0"):
            raise Refused(400, "a header is malformed")
    named = {
        word.strip().lower() for name, value in headers if name.lower() == "connection" for word in value.split(",")
    }
    left_out = _LINK | named | {"host", "content-length", "expect"}
    return [(name, value) for name, value in headers if name.lower() not in left_out]


def authorised(headers: list[Header], now: Tokens) -> list[Header]:
    """The headers with the current token in place of the words that the agent knows.

    Raises:
        Refused: more than one Authorization; or there is no token.
    """
    given = [value for name, value in headers if name.lower() == "authorization"]
    if len(given) > 1:
        raise Refused(400, "a request has one Authorization header at the most")
    scheme, _, word = given[0].strip().partition(" ") if given else ("bearer", "", KEY_PLACEHOLDER)
    bearer = word.strip() if scheme.lower() == "bearer" else ""
    if bearer not in (KEY_PLACEHOLDER, TOOLS_PLACEHOLDER):
        return headers
    token = now.token if bearer == KEY_PLACEHOLDER else now.tools_token
    if not token:
        raise Refused(503, "this run has no such token", "api_proxy_without_token")
    rest = [(name, value) for name, value in headers if name.lower() not in ("authorization", "x-paperclip-run-id")]
    named = bearer == KEY_PLACEHOLDER or len(rest) + 1 < len(headers)
    return [
        *rest,
        ("Authorization", f"Bearer {token}"),
        *([("X-Paperclip-Run-Id", now.run_id)] if named and now.run_id else []),
    ]


class Body:
    """The body of a request: whole if it is small, else its beginning and the rest as it comes."""

    def __init__(self, pieces: Iterator[bytes], length: int | None) -> None:
        self._rest = pieces
        self._length = length
        self._kept = bytearray()
        self.whole = False
        while not self.whole and len(self._kept) <= KEPT:
            piece = next(pieces, None)
            if piece is None:
                self.whole = True
            else:
                self._kept += piece

    @property
    def framing(self) -> Header | None:
        """How its end is told; None for a request without a body."""
        if self.whole:
            size = len(self._kept)
            return ("Content-Length", str(size)) if self._length is not None or size else None
        if self._length is not None:
            return ("Content-Length", str(self._length))
        return ("Transfer-Encoding", "chunked")

    def send(self, connection: http.client.HTTPConnection) -> None:
        """All of it. What is not whole can be sent once only."""
        if self.whole:
            connection.send(self._kept)
            return
        chunked = self._length is None
        kept, self._kept = bytes(self._kept), bytearray()
        for piece in itertools.chain([kept], self._rest):
            connection.send(_framed(piece) if chunked else piece)
        if chunked:
            connection.send(b"0\r\n\r\n")


def _framed(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


# one connection of the agent


class Relay(http.server.BaseHTTPRequestHandler):
    """Forwards one request after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE

    @property
    def _home(self) -> Server:
        return cast("Server", self.server)

    def do_GET(self) -> None:
        """Any method."""
        self.connection.settimeout(SILENCE)
        try:
            self._forward()
        except Refused as refusal:
            self._refuse(refusal)
        except (OSError, http.client.HTTPException, HungUp):
            self.close_connection = True  # in the middle of an answer: only an end without its mark tells of it
        finally:
            with contextlib.suppress(OSError):
                self.connection.settimeout(IDLE)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - http.server's names

    def _forward(self) -> None:
        target = target_of(self.path)
        if self.request_version not in ("HTTP/1.0", "HTTP/1.1"):
            raise Refused(400, "only HTTP/1.0 and HTTP/1.1 are forwarded")
        if self.headers.defects:
            raise Refused(400, "a header is malformed")
        headers = own_headers(self.headers.items())
        body = self._body()
        now = self._home.tokens()
        try:
            connection, answer = self._asked(target, authorised(headers, now), body)
            if answer.status in (401, 409) and body.whole and (later := self._home.tokens()) != now:
                connection.close()
                connection, answer = self._asked(target, authorised(headers, later), body)
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._home.upstream.scheme}://{self._home.upstream.authority}"
            told = f"Paperclip at {where} cannot be reached: {type(error).__name__}"
            raise Refused(502, told, "api_proxy_upstream_unreachable") from None
        with contextlib.closing(connection):
            self._answer(answer)

    def _asked(
        self, target: str, headers: list[Header], body: Body
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        upstream = self._home.upstream
        connection = upstream.connected(self._home.trust)
        try:
            connection.putrequest(self.command, upstream.path + target, skip_host=True, skip_accept_encoding=True)
            framing = [body.framing] if body.framing else []
            for name, value in [("Host", upstream.authority), *headers, *framing, ("Connection", "close")]:
                connection.putheader(name, value)
            connection.endheaders()
            try:
                body.send(connection)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # Paperclip did not want all of it, and says why
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        if answer.status < 200:
            raise Refused(502, "Paperclip's answer is none", "api_proxy_upstream_unreachable")
        empty = self.command == "HEAD" or answer.status in (204, 304)
        length = answer.getheader("Content-Length") if answer.length is not None or empty else None
        chunked = not empty and length is None and self.request_version != "HTTP/1.0"
        if length is None and not chunked and not empty:
            self.close_connection = True
        self._head(answer, ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", length))
        if empty:
            return
        while piece := answer.read1(PIECE):
            self.wfile.write(_framed(piece) if chunked else piece)
        if answer.length:
            self.close_connection = True  # cut off: the agent gets what came, and misses the rest
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _head(self, answer: http.client.HTTPResponse, framing: tuple[str, str | None]) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _LINK | {"content-length"}:
                self.send_header(name, self._ours(name, re.sub(r"[\r\n]+[ \t]*", " ", value)))
        if framing[1] is not None:
            self.send_header(framing[0], framing[1])
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _ours(self, name: str, value: str) -> str:
        """A redirection within Paperclip leads through us again."""
        base = self._home.upstream.base
        if name.lower() in ("location", "content-location") and (value + "/").startswith(base + "/"):
            return self._home.address + value[len(base) :]
        return value

    def _body(self) -> Body:
        lengths = self.headers.get_all("Content-Length") or []
        codings = self.headers.get_all("Transfer-Encoding") or []
        if codings:
            if lengths or len(codings) > 1 or codings[0].strip().lower() != "chunked":
                raise Refused(400, "the body's length is ambiguous")
            return Body(self._chunks(), None)
        if not lengths:
            return Body(iter(()), 0 if self.command in ("POST", "PUT", "PATCH") else None)
        if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,15}", lengths[0].strip()):
            raise Refused(400, "the body's length is ambiguous")
        length = int(lengths[0])
        return Body(self._pieces(length), length)

    def _pieces(self, left: int) -> Iterator[bytes]:
        while left:
            piece = self._read(min(left, PIECE))
            left -= len(piece)
            yield piece

    def _read(self, most: int) -> bytes:
        try:
            piece: bytes = self.rfile.read1(most)
        except OSError:
            piece = b""
        if not piece:
            raise HungUp
        return piece

    def _line(self, most: int) -> bytes:
        try:
            return self.rfile.readline(most)
        except OSError:
            raise HungUp from None

    def _chunks(self) -> Iterator[bytes]:
        while True:
            size = _CHUNK.fullmatch(self._line(1024))
            if size is None:
                raise Refused(400, "a chunk of the body is malformed")
            left = int(size[1], 16)
            if not left:
                break
            yield from self._pieces(left)
            if self._line(3) != b"\r\n":
                raise Refused(400, "a chunk of the body is malformed")
        for _ in range(TRAILERS):
            if self._line(PIECE) in (b"\r\n", b"\n", b""):
                return
        raise Refused(400, "the body has too many trailers")

    def _refuse(self, refusal: Refused) -> None:
        """Says why. The connection ends, for the rest of the request may still come."""
        self.close_connection = True
        self.request_version = self.protocol_version  # of an unreadable request none is known, or one without headers
        told = json.dumps({"error": str(refusal), "code": refusal.code}).encode()
        with contextlib.suppress(OSError):
            self.send_response_only(refusal.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(told)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses, without its page that quotes the request."""
        del message, explain
        self.command = getattr(self, "command", None) or ""
        self._refuse(Refused(int(code), "the request is malformed or of a kind that is not forwarded"))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Nothing is logged."""


class Server(http.server.ThreadingHTTPServer):
    """Serves on a socket that is open already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, upstream: Upstream, folder: str) -> None:
        super().__init__((LOOPBACK, 0), Relay, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.upstream = upstream
        self.trust = trusted() if upstream.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.address = address_of(listener)
        self._folder = folder
        self._room = threading.BoundedSemaphore(ROOM)

    def tokens(self) -> Tokens:
        """The current ones.

        Raises:
            Refused: they cannot be read.
        """
        try:
            return Tokens.read(self._folder)
        except (OSError, UnicodeDecodeError):
            raise Refused(503, "the token of this run cannot be read", "api_proxy_without_token") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Waits for room."""
        self._room.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Makes room again."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke. Nothing is logged."""


def address_of(listener: socket.socket) -> str:
    """What the agent gets as `PAPERCLIP_API_URL`."""
    return f"http://{LOOPBACK}:{listener.getsockname()[1]}"


def trusted() -> ssl.SSLContext:
    """The system's authorities, or those of `SSL_CERT_FILE`, and those that Node programs are told of."""
    context = ssl.create_default_context()
    more = os.environ.get("NODE_EXTRA_CA_CERTS")
    if more:
        with contextlib.suppress(OSError, ssl.SSLError):
            context.load_verify_locations(more)
    return context


# the life of the proxy


class Door:
    """The FIFO that the agent's container keeps open while it lives."""

    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - pathlib is not needed here
        os.mkfifo(path, 0o600)
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        self._opened = False

    @property
    def held(self) -> bool | None:
        """Whether the agent's container lives; None before it has opened the door."""
        try:
            said = os.read(self._file, PIECE)
        except BlockingIOError:
            said = b"open"
        if said:
            self._opened = True
            return True
        # Linux tells of a hang-up only once somebody had opened it.
        hung_up = any(event & select.POLLHUP for _, event in self._poll.poll(0))
        return False if self._opened or hung_up else None

    def wait(self, seconds: float) -> None:
        """Until something happens there, or so long."""
        self._poll.poll(int(seconds * 1000))


def keep(door: Door, server: Server, told_to_stop: threading.Event) -> None:
    """Serves until the agent's container has ended; a stop counts only while nobody has come."""
    child = _serving(server)
    try:
        while (held := door.held) is not False and not (held is None and told_to_stop.is_set()):
            door.wait(LOOK)
            if os.waitpid(child, os.WNOHANG)[0]:
                time.sleep(LOOK / 10)
                child = _serving(server)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _serving(server: Server) -> int:
    child = os.fork()
    if child:
        return child
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        server.serve_forever()
    finally:
        os._exit(1)


def main(folder: str, tokens: str) -> None:
    """Runs until the agent's container has ended.

    Raises:
        ValueError, KeyError: Paperclip's address is unusable, or missing.
        OSError: the folder cannot be used.
    """
    told_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())
    upstream = Upstream.read(os.environ[UPSTREAM])
    listener = socket.create_server((LOOPBACK, 0), backlog=ROOM)
    server = Server(listener, upstream, tokens)
    door = Door(os.path.join(folder, DOOR))  # noqa: PTH118 - pathlib is not needed here
    told = os.path.join(folder, ADDRESS)  # noqa: PTH118 - as above
    with open(told + ".new", "w") as file:  # noqa: PTH123 - as above
        file.write(server.address + "\n")
    os.replace(told + ".new", told)  # noqa: PTH105 - as above
    keep(door, server, told_to_stop)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
