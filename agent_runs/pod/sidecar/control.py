"""The sidecar's end of its commands (`commands`): repeat frames, acknowledge that all of them are stored, claim a
server that rests, change the tokens of its run, and tell an agent something.

They come through a socket in a folder that only the sidecar's container mounts, so the agent cannot reach it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

from agent_runs.pod.sidecar.commands import SOCKET

MAX_COMMAND = 100
READ_SECONDS = 5.0
_REPLAY = re.compile(rb"replay ([0-9]{1,18}) ([0-9]{1,18})\n")
_ACKNOWLEDGE = b"acknowledge\n"
_REQUEST = re.compile(rb"(claim|rotate|tell) ([0-9]{1,18}\.request)\n")
Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


class Control:
    """The socket, and what its commands do.

    Args:
        repeat: returns frames again.
        answer: does what a request says, which is `claim`, `rotate` or `tell`, and returns the answer to it.
    """

    def __init__(self, folder: str, repeat: Callable[[int, int], Iterator[bytes]], answer: Answer) -> None:
        os.chdir(folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(SOCKET)
        self._listener.listen(8)
        self._listener.setblocking(False)
        self._repeat = repeat
        self._answer = answer
        self.acknowledged = False

    @property
    def file(self) -> int:
        """Readable when a command comes."""
        return self._listener.fileno()

    def close(self) -> None:
        """Take the last commands, and no more: who comes later learns that nobody has got his."""
        self.serve()
        self._listener.close()

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
        elif (request := _REQUEST.fullmatch(command)) is not None:
            with open(request[2], encoding="utf-8", errors="surrogateescape") as file:
                content = json.load(file)
            connection.sendall(json.dumps(self._answer(request[1].decode(), content)).encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)  # the driver of the turn that began is a child, and has the socket too
        elif (replay := _REPLAY.fullmatch(command)) is not None and not os.fork():
            try:
                connection.settimeout(None)
                for text in self._repeat(int(replay[1]), int(replay[2])):
                    connection.sendall(text)
            finally:
                os._exit(0)  # whatever happens: this process is not the sidecar
