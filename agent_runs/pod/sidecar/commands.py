"""The worker's end of the sidecar's commands, a process by `exec` for each of them (`control` is the other end).

It starts for every claim and at the end of every run, so it imports as little as it can.
"""

import os
import socket
import sys
import time
from collections.abc import Iterator

NOT_REACHED = 69
"""Exit code of a command that the sidecar has certainly not got. Source: EX_UNAVAILABLE, sysexits.h."""
SOCKET = "socket"
"""Its name, in the working directory of both ends: a path may have 107 bytes only."""
MAX_REQUEST = 16 * 1024 * 1024
"""Bytes: a prompt has 1 MiB at most, and JSON may make it six times as large."""

DELIVERY_TRIES, DELIVERY_PAUSE = 20, 0.1
"""How often a message is asked after, and seconds between: most reach the agent within one."""


def main(command: str, folder: str, *words: str) -> None:
    """Send a command to the sidecar and print its answer. Claim, rotate and tell have their request on standard input.

    Raises:
        OSError, ValueError: the sidecar ended meanwhile, or the input is no request.
        SystemExit: with `NOT_REACHED`: it does not run.
    """
    os.chdir(folder)
    if command in ("claim", "rotate", "tell"):
        _send_request(command)
    else:
        _print(_answer(command, *words))


def _send_request(command: str) -> None:
    """Send what standard input has, its length in a first line.

    It goes through a file that only the sidecar can read, because a message on the socket is short.
    """
    length = int(sys.stdin.buffer.readline(20))
    content = sys.stdin.buffer.read(length) if 0 < length <= MAX_REQUEST else b""
    if len(content) != length:
        raise ValueError("the input is cut off or too long")
    name = f"{os.getpid()}.request"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with open(os.open(name, flags, 0o600), "wb") as file:
            file.write(content)
        _print(_delivery(name) if command == "tell" else _answer(command, name))
    finally:
        os.unlink(name)


def _delivery(name: str) -> Iterator[bytes]:
    """What comes of a message, so that a pod that ends soon after it need not be asked again."""
    answer = b"".join(_answer("tell", name))
    for _ in range(DELIVERY_TRIES):
        if b'"accepted": true' not in answer or b"delivered" in answer:
            break
        time.sleep(DELIVERY_PAUSE)
        try:
            answer = b"".join(_answer("tell", name)) or answer
        except SystemExit:  # the sidecar ended, and has had the message
            break
    yield answer


def _answer(*words: str) -> Iterator[bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(SOCKET)
        except (ConnectionRefusedError, FileNotFoundError):
            sys.exit(NOT_REACHED)
        connection.sendall(" ".join(words).encode() + b"\n")
        while piece := connection.recv(65536):
            yield piece


def _print(answer: Iterator[bytes]) -> None:
    for piece in answer:
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
