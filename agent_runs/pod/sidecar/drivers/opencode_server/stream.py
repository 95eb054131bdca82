"""The live events of a server: quick, but what is lost in a cut is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from agent_runs.pod.sidecar.drivers.lines import decoded, dictionary
from agent_runs.pod.sidecar.drivers.opencode_server.wire import MAX_EVENT, Exchange, NoAnswer, Wire

SILENCE_SECONDS = 45.0
"""The server sends a heartbeat every 10 s (1.x) or 15 s."""


class Stream:
    """One connection to the server's events."""

    def __init__(self, wire: Wire, target: str) -> None:
        """Raises NoAnswer or Aborted."""
        self._buffer = bytearray()
        self._unread: list[dict[str, Any]] = []
        self._exchange: Exchange = wire.open("GET", target)
        try:
            self._connected()
        except BaseException:
            self.close()
            raise

    def read(self, seconds: float) -> list[dict[str, Any]]:
        """Return the payloads that have come; none if that took too long.

        Raises:
            NoAnswer: it has ended.
            Aborted: SIGTERM came.
        """
        if self._unread:
            unread, self._unread = self._unread, []
            return unread
        piece = self._exchange.data(seconds)
        if piece is None:
            raise NoAnswer("its live events have ended")
        return list(self._payloads(piece))

    def close(self) -> None:
        self._exchange.close()

    def _connected(self) -> None:
        """Wait for the first event: whatever happens after that is reported."""
        status = self._exchange.status()
        if status != 200:
            raise NoAnswer(f"its live events have the status {status}")
        end = time.monotonic() + SILENCE_SECONDS
        while not (payloads := self.read(end - time.monotonic())):
            if time.monotonic() > end:
                raise NoAnswer("its live events do not begin")
        if payloads[0].get("type") != "server.connected":
            raise NoAnswer("its live events do not begin with server.connected")
        self._unread = payloads[1:]

    def _payloads(self, piece: bytes) -> Iterator[dict[str, Any]]:
        self._buffer += piece
        if b"\n" not in piece:
            if len(self._buffer) > MAX_EVENT:
                raise NoAnswer("an event is too large")
            return
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        for line in lines:
            if line.startswith(b"data:"):
                try:
                    event = dictionary(decoded(bytes(line[5:])))
                except ValueError:
                    raise NoAnswer("an event is no JSON") from None
                yield dictionary(event["payload"]) if "payload" in event else event  # OpenCode 1 wraps them
