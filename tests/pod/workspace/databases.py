"""Databases that another process writes to."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

WRITER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(f"pragma journal_mode = {sys.argv[2]}")
database.execute("create table pairs (a integer, b integer)")
print(flush=True)
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""
INSERT = "database.executemany('insert into pairs values (?, ?)', "


class Writer:
    """A process that has a database open. SQLite's locks do not hold within one process."""

    def __init__(self, file: Path, mode: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, file, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._await()

    def do(self, code: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{code}\n".encode())
        self.process.stdin.flush()
        self._await()

    def execute(self, sql: str) -> None:
        self.do(f"database.execute({sql!r})")

    def _await(self) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == b"\n"


@contextmanager
def writing(file: Path, mode: str = "wal") -> Iterator[Writer]:
    """Have a new database open."""
    writer = Writer(file, mode)
    with writer.process:
        yield writer
        writer.process.kill()


@contextmanager
def repeating(action: Callable[[], None]) -> Iterator[None]:
    """Do something all the time, in another thread."""
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
