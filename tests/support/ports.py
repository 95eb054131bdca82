"""Ports for programs that cannot choose one themselves."""

import secrets
import socket
from contextlib import ExitStack, suppress
from typing import Final

FIRST, LAST = 10_000, 32_767
"""Below those that Linux gives to whoever asks for any port: of these, another test may get one at any time."""
HOST: Final = "127.0.0.1"


def free_port(host: str = HOST, *, count: int = 1) -> int:
    """The first of so many ports in a row that nobody listens at."""
    while True:
        port = FIRST + secrets.randbelow(LAST - FIRST + 2 - count)
        with suppress(OSError), ExitStack() as bound:
            for each in range(port, port + count):
                bound.enter_context(socket.create_server((host, each)))
            return port
