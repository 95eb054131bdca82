"""Paperclip's API as an agent sees it: accepts the current token only, and records the requests."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class ReceivedRequest:
    """One request as it arrived."""

    method: str
    path: str
    headers: Message
    body: bytes


@dataclass
class FakePaperclip:
    """Whose token it accepts, and the requests it got.

    Attributes:
        owner: token and run id that hold the issue; anybody else gets 409 on a change, as from the real one.
        refusal: the status of anybody else's change.
        before: called with each request before it is answered.
    """

    owner: tuple[str, str] = ("token-1", "run-1")
    refusal: int = 409
    requests: list[ReceivedRequest] = field(default_factory=list)
    second_event: threading.Event = field(default_factory=threading.Event)
    before: Any = None
    url: str = ""


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    paperclip: FakePaperclip

    def do_GET(self) -> None:
        route = self.path.partition("?")[0]
        if route.endswith("/early"):
            self._respond(413, b"too large")
            self.close_connection = True
            return
        request = ReceivedRequest(self.command, self.path, self.headers, self._body())
        self.paperclip.requests.append(request)
        if self.paperclip.before is not None:
            self.paperclip.before(request)
        if route.endswith("/stream"):
            self._stream()
        elif route.endswith("/cut"):
            self._cut()
        elif route.endswith("/empty"):
            self.send_response(204)
            self.end_headers()
        elif route.endswith("/moved"):
            self._respond(302, b"", ("Location", f"{self.paperclip.url}/api/there"))
        elif route.endswith("/open"):
            self._respond(
                200, request.body or b"open", ("X-Folded", "a"), ("Set-Cookie", "one=1"), ("Set-Cookie", "two=2")
            )
        else:
            self._respond_to(request)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - http.server's names

    def _respond_to(self, request: ReceivedRequest) -> None:
        token, run = self.paperclip.owner
        owns = request.headers["Authorization"] == f"Bearer {token}" and request.headers["X-Paperclip-Run-Id"] == run
        self._respond(
            200 if owns else self.paperclip.refusal, b"done" if owns else b'{"error":"Issue run ownership conflict"}'
        )

    def _body(self) -> bytes:
        if self.headers["Transfer-Encoding"] != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"] or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _respond(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self) -> None:
        """Send one event at once, the other when `second_event` is set."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"7\r\nfirst\n\n\r\n")
        self.paperclip.second_event.wait(30)
        self.wfile.write(b"8\r\nsecond\n\n\r\n0\r\n\r\n")

    def _cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"half")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[FakePaperclip]:
    """A Paperclip at an address of this machine."""
    paperclip = FakePaperclip()
    server = ThreadingHTTPServer((host, 0), type("Api", (_Api,), {"paperclip": paperclip}))
    server.daemon_threads = True
    paperclip.url = f"{'https' if tls else 'http'}://{host}:{server.server_port}"
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield paperclip
    finally:
        paperclip.second_event.set()
        server.shutdown()
        thread.join()
        server.server_close()
