"""Copies an SQLite database that may be written to. The copy has all that was committed, and needs no other file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

sqlite3: Any = None
with contextlib.suppress(ImportError):  # an image may lack it
    import sqlite3

HEADER = b"SQLite format 3\0"
BESIDE = ("-journal", "-shm", "-wal")
"""What SQLite keeps beside a database."""
COPY = "database.copy"
"""Name of the copy while it is made, in the working directory, which no agent reaches."""
BUSY_SECONDS = 5.0
_LOCKED = (5, 6)
"""SQLITE_BUSY, SQLITE_LOCKED; the module names them since Python 3.11."""


class NotCopied(Exception):
    """The text says why."""


def is_database(file: int) -> bool:
    return os.pread(file, len(HEADER), 0) == HEADER


def copy(folder: int, name: str, file: int) -> int:
    """A descriptor of a copy that has no name.

    Args:
        file: the database, as it was opened in the folder. It may be closed only afterwards: the end of any descriptor
            of a file ends the locks that SQLite has on it.

    Raises:
        NotCopied: it is locked, damaged, or was exchanged.
    """
    if sqlite3 is None:
        raise NotCopied("this Python has no module sqlite3")
    uri = f"file:/proc/self/fd/{folder}/{quote(name)}"
    try:
        try:
            _copy(f"{uri}?mode=ro", file)
        except sqlite3.OperationalError:  # a journal is left: roll it back, as its next user would
            _copy(f"{uri}?mode=rw", file)
        return os.open(COPY, os.O_RDONLY | os.O_CLOEXEC)
    except (sqlite3.Error, OSError) as error:
        raise NotCopied(f"its copy failed: {error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(COPY)


def _copy(uri: str, file: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(COPY)
    before = _files()
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0)) as source:
        found, wanted = [os.fstat(each) for each in _files() - before], os.fstat(file)
        if [(each.st_dev, each.st_ino) for each in found] != [(wanted.st_dev, wanted.st_ino)]:
            raise NotCopied("it was exchanged")
        with contextlib.closing(sqlite3.connect(COPY)) as target:
            target.execute("PRAGMA synchronous = OFF")
            source.backup(target, progress=_lock_limit(), sleep=0.1)


def _lock_limit() -> Callable[[int, int, int], None]:
    """Ends a copy whose database stays locked: the module would wait for ever."""
    end = time.monotonic() + BUSY_SECONDS

    def check(status: int, _left: int, _pages: int) -> None:
        if status in _LOCKED and time.monotonic() > end:
            raise sqlite3.OperationalError("the database is locked")

    return check


def _files() -> set[int]:
    """All descriptors of this process, but for the one that lists them."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.fstat(int(each))
            found.add(int(each))
    return found
