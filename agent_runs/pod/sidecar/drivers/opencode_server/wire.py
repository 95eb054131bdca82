"""HTTP to a server on loopback that does not deserve trust: answers are bounded, waiting is, and SIGTERM ends it."""

from __future__ import annotations

import base64
import codecs
import json
import re
import select
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import h11

from agent_runs.pod.sidecar.drivers.lines import decoded, refuse
from agent_runs.pod.sidecar.drivers.waiting import Waiter

HOST = "127.0.0.1"
READ_BYTES = 64 * 1024
MAX_ANSWER = 4 * 1024 * 1024
MAX_EVENT = 4 * 1024 * 1024
"""Of one event, in characters or bytes: the longest line of OpenCode that was seen has 3 MB. Results of tools may have
pictures in them."""
MAX_BEGINNING = 1000
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 90.0
"""For which a server may be silent before it is lost: on a busy machine it takes its time to load its plugins."""


class NoAnswer(Exception):
    """The server does not answer, or not in HTTP. `refused`: nobody listens there."""

    def __init__(self, reason: object, *, refused: bool = False) -> None:
        super().__init__(f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason))
        self.refused = refused


class TooLong(NoAnswer):
    """An answer has more bytes than are read."""


class Exchange:
    """One request and its answer. Each call may raise NoAnswer or Aborted.

    Args:
        seconds: for which sending, the beginning of the answer and its body may take, each.
    """

    def __init__(self, port: int, authorization: str, waiter: Waiter, seconds: float) -> None:
        self._http = h11.Connection(h11.CLIENT)
        self._waiter = waiter
        self._port = port
        self._authorization = authorization
        self._seconds = seconds
        try:
            self._socket = socket.create_connection((HOST, port), CONNECT_SECONDS)
        except OSError as error:
            raise NoAnswer(error, refused=isinstance(error, ConnectionRefusedError)) from None
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, method: str, target: str, body: bytes) -> None:
        headers = [("Host", f"{HOST}:{self._port}"), ("Authorization", self._authorization)]
        if body or method == "POST":
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = h11.Request(method=method, target=target, headers=headers)
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        left = memoryview(b"".join(self._http.send(part) or b"" for part in parts))
        end = time.monotonic() + self._seconds
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                if not self._waiter.ready(self._socket.fileno(), select.POLLOUT, end - time.monotonic()):
                    raise NoAnswer("it does not read") from None
            except OSError as error:
                raise NoAnswer(error) from None

    def status(self) -> int:
        end = time.monotonic() + self._seconds
        while True:
            event = self._next(end)
            if isinstance(event, h11.Response):
                return event.status_code
            if event is None:
                raise NoAnswer("it does not answer in time")

    def data(self, seconds: float) -> bytes | None:
        """Return the next piece of the body: empty if none came in that time, None at its end."""
        event = self._next(time.monotonic() + seconds)
        if event is None:
            return b""
        return bytes(event.data) if isinstance(event, h11.Data) else None

    def body(self) -> Iterator[bytes]:
        """Return the pieces of the body."""
        end = time.monotonic() + self._seconds
        while (piece := self.data(end - time.monotonic())) is not None:
            if not piece:
                raise NoAnswer("its answer does not end")
            yield piece

    def close(self) -> None:
        self._socket.close()

    def _next(self, end: float) -> h11.Event | None:
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(self._socket.recv(READ_BYTES))
                    continue
            except BlockingIOError:
                if not self._waiter.ready(self._socket.fileno(), select.POLLIN, end - time.monotonic()):
                    return None
                continue
            except (OSError, h11.RemoteProtocolError) as error:
                raise NoAnswer(error) from None
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise NoAnswer("it closed the connection")
            return event if not isinstance(event, type) else None


class Wire:
    """The server. Each call may raise NoAnswer or Aborted.

    Args:
        seconds: as in `Exchange`.
    """

    def __init__(self, port: int, password: str, waiter: Waiter, seconds: float = ANSWER_SECONDS) -> None:
        self.waiter = waiter
        self.seconds = seconds
        self._port = port
        self._authorization = "Basic " + base64.b64encode(f"opencode:{password}".encode()).decode()

    def open(self, method: str, target: str, content: object = None) -> Exchange:
        """Return an exchange whose request is sent."""
        exchange = Exchange(self._port, self._authorization, self.waiter, self.seconds)
        try:
            exchange.send(method, target, b"" if content is None else json.dumps(content).encode())
        except BaseException:
            exchange.close()
            raise
        return exchange

    def call(self, method: str, target: str, content: object = None, max_answer: int = MAX_ANSWER) -> tuple[int, Any]:
        """Return status and JSON of an answer; the JSON is None if there is none.

        Raises:
            NoAnswer: also for a JSON that is none.
            TooLong: it has more bytes than `max_answer`.
        """
        exchange = self.open(method, target, content)
        try:
            status, answer = exchange.status(), bytearray()
            for piece in exchange.body():
                answer += piece
                if len(answer) > max_answer:
                    raise TooLong("its answer is too long")
        finally:
            exchange.close()
        if not answer:
            return status, None
        try:
            return status, decoded(bytes(answer))
        except ValueError:
            if status < 400:
                raise NoAnswer("its answer is no JSON") from None
            return status, None


class TooLarge(NamedTuple):
    """A value of which only the beginning is known."""

    beginning: str


def elements(pieces: Iterator[bytes]) -> Iterator[Any]:
    """Return the values in a JSON array, one after the other: it needs the memory of the largest only.

    An object that is too large is a `TooLarge`.

    Raises:
        NoAnswer: it is no JSON, or another value of it is too large.
    """
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    text, next_try = "", 0
    skipped: _Skipped | None = None
    for piece in pieces:
        text += decode(piece)
        if skipped is not None:
            text = skipped.rest(text)
            if not skipped.ended:
                continue
            skipped, next_try = None, 0
        if len(text) < next_try:
            continue
        values = _Values(text)
        yield from values
        text = text[values.end :]
        next_try = 2 * len(text)
        if len(text) > MAX_EVENT:
            beginning = text[_after(_SEPARATORS, text, 0) :]
            if not beginning.startswith("{"):
                raise NoAnswer("its answer has a value that is too large")
            yield TooLarge(beginning[:MAX_BEGINNING])
            skipped = _Skipped()
            text = skipped.rest(beginning)
            skipped = None if skipped.ended else skipped
    values = _Values(text)
    yield from values
    if skipped is not None or text[values.end :].strip() not in ("]", "[]"):
        raise NoAnswer("its answer is no array of JSON")


class _Skipped:
    """An object whose end is looked for."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False

    def rest(self, text: str) -> str:
        """Return what follows the object, or what is to be repeated before the next piece."""
        position = 0
        while (found := (_IN_STRING if self._in_string else _OUTSIDE).search(text, position)) is not None:
            position = found.end()
            if found[0] == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if found[0] in "{[" else -1
                if not self._depth:
                    self.ended = True
                    return text[position:]
        return "\\" if self._in_string and text.endswith("\\", position) else ""


class _Values:
    """The whole values at the beginning of an array or of its rest. `end` is where the last one ends."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.end = 0

    def __iter__(self) -> Iterator[Any]:
        """Raises NoAnswer for one that cannot be read."""
        position = _after(_SEPARATORS, self._text, 0)
        while position < len(self._text) and self._text[position] not in "[]":
            try:
                value, self.end = _DECODER.raw_decode(self._text, position)
            except json.JSONDecodeError:
                return
            except (ValueError, RecursionError):
                raise NoAnswer("its answer has a value that is too deep or none of JSON") from None
            yield value
            position = _after(_NEXT, self._text, self.end)


def _after(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found is not None else position


_SEPARATORS = re.compile(r"\s*[\[,]?\s*")
_IN_STRING, _OUTSIDE = re.compile(r'"|\\.', re.DOTALL), re.compile(r'["{}\[\]]')
_NEXT = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(parse_constant=refuse)
