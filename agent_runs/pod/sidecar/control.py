"""The sidecar's commands, for the worker by `exec`: repeat frames, and acknowledge that all of them are stored.

They go through a socket in a folder that only the sidecar's container mounts, so the agent cannot reach it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator

SOCKET = "socket"
"""Its name, in the working directory of both sides: a path may have 107 bytes only."""
MAX_COMMAND = 100
READ_SECONDS = 5.0
_REPLAY = re.compile(rb"replay ([0-9]{1,18}) ([0-9]{1,18})\n")
_ACKNOWLEDGE = b"acknowledge\n"


class Control:
    """The socket, and what its commands do."""

    def __init__(self, folder: str, repeat: Callable[[int, int], Iterator[bytes]]) -> None:
        os.chdir(folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)  # noqa: PTH108 - pathlib is not needed here
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(SOCKET)
        self._listener.listen(8)
        self._listener.setblocking(False)
        self._repeat = repeat
        self.acknowledged = False

    @property
    def file(self) -> int:
        """Readable when a command comes."""
        return self._listener.fileno()

    def serve(self) -> None:
        """Take the commands that wait. Frames are repeated by a child, because that may take long."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(READ_SECONDS)
                    self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        command = connection.recv(MAX_COMMAND)
        if command == _ACKNOWLEDGE:
            self.acknowledged = True
            connection.sendall(b"\n")
        elif (replay := _REPLAY.fullmatch(command)) is not None and not os.fork():
            try:
                connection.settimeout(None)
                for text in self._repeat(int(replay[1]), int(replay[2])):
                    connection.sendall(text)
            finally:
                os._exit(0)  # whatever happens: this process is not the sidecar


def send(folder: str, *words: str) -> None:
    """Send a command and print what it returns.

    Raises:
        OSError: the sidecar does not run.
    """
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(SOCKET)
        connection.sendall(" ".join(words).encode() + b"\n")
        while piece := connection.recv(65536):
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
