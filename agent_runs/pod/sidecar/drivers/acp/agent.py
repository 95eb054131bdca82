"""The agent's standard input and output: a FIFO, and a file that is read from its beginning however often.

Both are in a folder that the agent's container can write to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import time
from typing import NamedTuple

from agent_runs.pod.sidecar import shared
from agent_runs.pod.sidecar.drivers.acp import INPUT, PROTOCOL
from agent_runs.pod.sidecar.drivers.waiting import Waiter
from agent_runs.pod.sidecar.watching import Watch

USAGE, ENDED = "usage", "ended"
"""Names in the folder; see `acp.sh`."""
PIECE = 64 * 1024
"""Bytes that are read at once."""
MAX_LINE = 4 * 1024 * 1024
"""Bytes of a line that is read; the longest that was seen has 0.6 MB."""
LOOK_SECONDS = 0.1
SEND_SECONDS = 60.0
"""For the agent to read what it is sent."""
COPY_SECONDS = 2.0
MAX_USAGE = 8 * 1024 * 1024
_COPIED = re.compile(r"[\w.-]{1,128}", re.ASCII)
_GLOB = re.compile(r"[^\n]{1,500}")


class AgentEnded(Exception):
    """There is no agent any more."""

    def __init__(self, code: int | None) -> None:
        super().__init__("the agent ended" if code is None else f"the agent ended with exit code {code}")


class NotProtocol(Exception):
    """The agent does not do what the protocol demands."""


class RawLine(NamedTuple):
    """One line of the agent's output.

    Attributes:
        data: without its newline; None if it is too long.
        begin: bytes before it.
    """

    data: bytes | None
    size: int
    begin: int


class Agent:
    """The agent, seen from its two ends.

    Attributes:
        at: bytes of the output that whole lines were returned of.
    """

    def __init__(self, folder: str, waiter: Waiter) -> None:
        """Raises OSError if there is no file of its output."""
        self._folder = folder
        self._waiter = waiter
        self._input: int
        self._output = shared.open_file(folder, PROTOCOL, os.O_RDONLY)
        self._watch = Watch([self._output])
        self._buffer = bytearray()
        self._read = self._size = self.at = 0

    def connect(self) -> None:
        """Wait until the agent's container has begun.

        Raises:
            Aborted: SIGTERM came.
            NotProtocol: something else is in the place of its input.
        """
        while True:
            try:
                self._input = shared.open_fifo(self._folder, INPUT, os.O_WRONLY)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise NotProtocol(f"its standard input cannot be opened: {error.strerror}") from None
                self._waiter.ready(None, 0, LOOK_SECONDS)
            else:
                return

    def send(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            AgentEnded, Aborted: see there.
            NotProtocol: the agent does not read.
        """
        left, end = memoryview(data), time.monotonic() + SEND_SECONDS
        while left:
            if self._has_ended():
                raise AgentEnded(self._code())
            try:
                left = left[os.write(self._input, left) :]
            except BlockingIOError:
                self._waiter.ready(self._input, select.POLLOUT, LOOK_SECONDS)
            except BrokenPipeError:
                raise AgentEnded(self._code()) from None
            if left and time.monotonic() > end:
                raise NotProtocol(f"it did not read its standard input for {SEND_SECONDS:g} s")

    def lines(self, seconds: float) -> list[RawLine]:
        """Return the next whole lines; none if there were none in that time.

        Raises:
            AgentEnded: and all of its lines were returned.
            Aborted: SIGTERM came.
            NotProtocol: it has emptied the file.
        """
        ended = self._has_ended()
        while piece := os.pread(self._output, PIECE, self._read):
            if found := self._split(piece):
                return found
        if os.fstat(self._output).st_size < self._read:
            raise NotProtocol("the file of its standard output was emptied")
        if ended:
            raise AgentEnded(self._code())
        self._waiter.ready(self._watch.file, select.POLLIN, min(seconds, LOOK_SECONDS))
        self._watch.drain()
        return []

    def _split(self, piece: bytes) -> list[RawLine]:
        self._read += len(piece)
        *ends, rest = piece.split(b"\n")
        found: list[RawLine] = []
        for end in ends:
            self._keep(end)
            if self._size:
                data = bytes(self._buffer) if self._size <= MAX_LINE else None
                found.append(RawLine(data, self._size, self.at))
            self.at += self._size + 1
            self._buffer, self._size = bytearray(), 0
        self._keep(rest)
        return found

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MAX_LINE:
            self._buffer += data
        else:
            self._buffer = bytearray()

    def _has_ended(self) -> bool:
        """Whether it has ended, or nobody has its standard input any more: its container has ended."""
        if shared.exists(self._folder, ENDED):
            return True
        poll = select.poll()
        poll.register(self._input, 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))

    def _code(self) -> int | None:
        text = shared.read(self._folder, ENDED, 8).strip()
        return int(text) if text.isdigit() and int(text) < 256 else None

    def session_file(self, session: str, glob: str) -> bytes:
        """Return the end of the newest file of the session that the glob names; nothing if there is none.

        Raises:
            Aborted: SIGTERM came.
        """
        if not _COPIED.fullmatch(session) or not _GLOB.fullmatch(glob):
            return b""
        with contextlib.suppress(OSError):
            shared.remove(self._folder, USAGE)
        try:
            orders = shared.open_fifo(self._folder, shared.ORDERS, os.O_WRONLY)
        except OSError:
            return b""
        with contextlib.suppress(OSError):
            os.write(orders, f"copy {session} {glob}\n".encode())
        os.close(orders)
        end = time.monotonic() + COPY_SECONDS
        while not shared.exists(self._folder, USAGE) and time.monotonic() < end:
            self._waiter.ready(None, 0, LOOK_SECONDS / 5)
        return shared.read(self._folder, USAGE, MAX_USAGE, from_end=True)
