"""Ports for programs that cannot choose one themselves."""

import secrets
import socket
from contextlib import suppress
from typing import Final

FIRST, LAST = 10_000, 32_767
"""Below those that Linux gives to whoever asks for any port: of these, another test may get one at any time."""
HOST: Final = "127.0.0.1"


def free_port(host: str = HOST) -> int:
    """A port that nobody listens at."""
    while True:
        port = FIRST + secrets.randbelow(LAST - FIRST + 1)
        with suppress(OSError), socket.create_server((host, port)):
            return port
