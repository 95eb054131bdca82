"""Transcript stores in SQLite files, and what may happen to such a file."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from agent_runs.transcript.store import TranscriptStore


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder}/transcripts.db"


@asynccontextmanager
async def sqlite_store(folder: Path) -> AsyncIterator[TranscriptStore]:
    """The store in this folder, open."""
    store = await TranscriptStore.open(sqlite_url(folder))
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another program locks the file."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()
