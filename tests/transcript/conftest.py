"""A fresh place for a store, in every dialect: what a store promises, it promises on each of them."""

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from agent_runs.transcript.store import TranscriptStore
from tests.support.ran import note_ran
from tests.transcript.postgres import CannotStart, Postgres, drop_database, make_database


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of our own, for the whole session."""
    try:
        server = Postgres()
        server.start()
    except CannotStart as reason:
        pytest.skip(f"PostgreSQL cannot start here: {reason}")
    note_ran("PostgreSQL", server.version)
    yield server
    server.remove()


@pytest.fixture
async def postgres_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A database of its own, on the server of TRANSCRIPTS_URL (its user must be allowed to make one), else on ours."""
    url_from_environment = os.environ.get("TRANSCRIPTS_URL")
    server = url_from_environment or request.getfixturevalue("postgres").url()
    name = f"transcripts-{uuid.uuid4()}"
    await make_database(server, name)
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    await drop_database(server, name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file of its own."""
    return f"sqlite:///{tmp_path / 'transcripts.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """A place for a store, in each dialect."""
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
async def any_store(store_url: str) -> AsyncIterator[TranscriptStore]:
    """An open store, in each dialect."""
    store = await TranscriptStore.open(store_url)
    yield store
    await store.close()
