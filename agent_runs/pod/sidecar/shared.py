"""Files that the agent can exchange for anything at any time: those in the folder that both containers share.

Nothing else of the sidecar opens a path that the agent can change. Here no link is followed, which could lead to files
of the sidecar; no open waits, as that of a FIFO would; and what is opened is what was expected there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

ORDERS = "orders"
"""Name of the FIFO through which commands go to the script in the agent's container (`driving`)."""


def open_file(folder: str, name: str, flags: int) -> int:
    """Open a regular file.

    Raises:
        OSError: there is none, or something else is in its place.
    """
    return _open(folder, name, flags, stat.S_ISREG)


def open_fifo(folder: str, name: str, flags: int) -> int:
    """Open a FIFO, which is not waited for: without a reader there is no writing end (ENXIO).

    Raises:
        OSError: as `open_file`.
    """
    return _open(folder, name, flags, stat.S_ISFIFO)


def _open(folder: str, name: str, flags: int, is_expected: Callable[[int], bool]) -> int:
    flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(f"{folder}/{name}", flags, 0o600)
    if not is_expected(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "something else is in its place")
    return file


def make_fifo(folder: str, name: str) -> None:
    """Make a FIFO, whatever is there.

    Raises:
        OSError: something that cannot be deleted is in its place.
    """
    remove(folder, name)
    os.mkfifo(f"{folder}/{name}", 0o600)


def write(folder: str, name: str, text: str) -> None:
    """Write a file that only this user can read, whatever is there.

    Raises:
        OSError: as `make_fifo`, or the disk is full.
    """
    remove(folder, name)
    file = open_file(folder, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with open(file, "w", encoding="utf-8", errors="surrogateescape") as writing:
        writing.write(text)


def read(folder: str, name: str, limit: int, *, from_end: bool = False) -> bytes:
    """Return the beginning of a file, or its end; nothing if there is no file."""
    with contextlib.suppress(OSError):
        file = open_file(folder, name, os.O_RDONLY)
        try:
            return os.pread(file, limit, max(os.fstat(file).st_size - limit, 0) if from_end else 0)
        finally:
            os.close(file)
    return b""


def exists(folder: str, name: str) -> bool:
    return os.path.lexists(f"{folder}/{name}")


def remove(folder: str, name: str) -> None:
    """Delete it, if it is there.

    Raises:
        OSError: it is a folder.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}/{name}")
