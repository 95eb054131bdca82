"""A store database by an earlier version goes on, and whoever opens it first changes nobody else's mind."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcripts.database import Database
from agent_runs.transcripts.migrations import FOLDER, HEAD, revision, upgrade
from agent_runs.transcripts.schema import metadata_of
from agent_runs.transcripts.store import TranscriptStore
from tests.transcripts.stored_runs import StoredRun, stored_runs

BLOB = {"sqlite": "BLOB", "postgresql": "BYTEA"}
FIRST_SCHEMA = (
    """CREATE TABLE lines (
        run_id TEXT NOT NULL, attempt INTEGER NOT NULL, sequence BIGINT NOT NULL, stream TEXT NOT NULL,
        data {blob} NOT NULL, terminated BOOLEAN NOT NULL, at BIGINT NOT NULL,
        PRIMARY KEY (run_id, attempt, sequence))""",
    """CREATE TABLE attempts (
        run_id TEXT NOT NULL, attempt INTEGER NOT NULL, agent_id TEXT NOT NULL, company_id TEXT NOT NULL,
        lines BIGINT NOT NULL, bytes BIGINT NOT NULL, first_at BIGINT, last_at BIGINT, receipt TEXT,
        PRIMARY KEY (run_id, attempt))""",
)
"""As the version before revisions database it."""
FIRST_ROWS = (
    "INSERT INTO lines VALUES ('r', 1, 1, 'stdout', CAST('one' AS {blob}), true, 1700000000000000)",
    "INSERT INTO lines VALUES ('r', 1, 4, 'stderr', CAST('four' AS {blob}), false, 1700000001000000)",
    "INSERT INTO attempts VALUES ('r', 1, 'ada', 'acme', 2, 7, 1700000000000000, 1700000001000000, NULL)",
    "INSERT INTO attempts VALUES ('r', 2, 'ada', 'acme', 0, 0, NULL, NULL, '{{}}')",
)


def key(attempt: int) -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="r"), attempt=attempt)


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    database = Database(store_url)
    yield database
    await database.close()


async def made_by_the_first_version(database: Database) -> None:
    def make(connection: Connection) -> None:
        for statement in (*FIRST_SCHEMA, *FIRST_ROWS):
            connection.execute(text(statement.format(blob=BLOB[connection.dialect.name])))

    await database.write(make)


async def test_a_store_of_the_first_version_is_upgraded_without_loss(database: Database, store_url: str) -> None:
    await made_by_the_first_version(database)
    store = await TranscriptStore.open(store_url)
    kept = await store.read(key(1))
    assert [(line.sequence, line.stream, line.data, line.terminated) for line in kept] == [
        (1, "stdout", b"one", True),
        (4, "stderr", b"four", False),
    ]
    assert await store.receipt(key(2)) == OutputReceipt()
    assert await stored_runs(store) == [
        StoredRun("r", "ada", "acme", 2, 2, 7, kept[0].at, kept[1].at, sealed=True),
    ]
    assert await database.read(revision) == HEAD
    await store.close()


@pytest.mark.parametrize("steps", [("0001", HEAD), (HEAD,)], ids=["by all revisions", "created at once"])
async def test_schema_and_revisions_agree(database: Database, steps: tuple[str, ...]) -> None:
    for step in steps:
        async with database.schema_change() as connection:
            await connection.run_sync(upgrade, step)

    def differences(connection: Connection) -> list[object]:
        def is_no_partition(name: str | None, kind: str, _parents: object) -> bool:
            return kind != "table" or not str(name).startswith("lines_")

        options = {"compare_type": True, "compare_server_default": True, "include_name": is_no_partition}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata_of(connection.dialect.name)))

    assert await database.read(differences) == []
    assert ScriptDirectory(str(FOLDER)).get_current_head() == HEAD


async def test_a_store_of_any_revision_is_upgraded(database: Database, store_url: str) -> None:
    for step in reversed([script.revision for script in ScriptDirectory(str(FOLDER)).walk_revisions()]):
        async with database.schema_change() as connection:
            await connection.run_sync(upgrade, step)
        assert await database.read(revision) == step
    store = await TranscriptStore.open(store_url)
    assert await stored_runs(store) == []
    await store.close()


async def test_an_old_store_opened_by_many_at_once_is_upgraded_once(database: Database, store_url: str) -> None:
    await made_by_the_first_version(database)
    opened = await asyncio.gather(*(TranscriptStore.open(store_url) for _ in range(8)))
    assert [await store.last(key(1)) for store in opened] == [4] * 8
    await asyncio.gather(*(store.close() for store in opened))


async def test_a_failed_upgrade_leaves_the_store_as_it_was(database: Database, store_url: str) -> None:
    await made_by_the_first_version(database)
    late = text("ALTER TABLE attempts ADD COLUMN writer_since TEXT")  # the third column to come
    await database.write(lambda connection: connection.execute(late))
    with pytest.raises(Exception, match="writer_since"):
        await TranscriptStore.open(store_url)
    assert await database.read(revision) is None
    correction = text("ALTER TABLE attempts DROP COLUMN writer_since")
    await database.write(lambda connection: connection.execute(correction))
    store = await TranscriptStore.open(store_url)
    assert await store.last(key(1)) == 4
    await store.close()


async def test_a_store_of_a_newer_version_is_refused_with_the_remedy(database: Database, store_url: str) -> None:
    async with database.schema_change() as connection:
        await connection.run_sync(upgrade)
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(TranscriptsUnavailable, match=rf"has revision 9999, .* up to {HEAD}: update agent-runs"):
        await TranscriptStore.open(store_url)


async def test_only_an_old_store_loads_alembic(sqlite_url: str) -> None:
    program = """
import asyncio, sys
from agent_runs.transcripts.store import TranscriptStore

async def main():
    for _ in ("fresh", "up to date"):
        await (await TranscriptStore.open(sys.argv[1])).close()

asyncio.run(main())
assert "sqlalchemy" in sys.modules and "alembic" not in sys.modules
"""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, sqlite_url, cwd=root)
    assert await process.wait() == 0
