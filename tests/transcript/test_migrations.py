"""The tables of a store are those that its revisions make, and a store of another version is refused by name."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.transcript.database import Database
from agent_runs.transcript.migrations import FOLDER, HEAD, config, upgrade
from agent_runs.transcript.schema import metadata
from agent_runs.transcript.store import Line, TranscriptStore

KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="r"))


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    database = Database(store_url)
    yield database
    await database.close()


@pytest.mark.parametrize("by_revisions", [True, False], ids=["by all revisions", "created at once"])
async def test_schema_and_revisions_agree(database: Database, *, by_revisions: bool) -> None:
    await database.change_schema(upgrade if not by_revisions else lambda each: command.upgrade(config(each), HEAD))

    def differences(connection: Connection) -> list[object]:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))

    assert await database.read(differences) == []
    assert ScriptDirectory(str(FOLDER)).get_current_head() == HEAD


async def test_a_store_that_many_create_at_once_is_created_once(store_url: str) -> None:
    stores = await asyncio.gather(*(TranscriptStore.open(store_url) for _ in range(8)))
    await stores[0].append(KEY, [Line(1, "stdout", b"x", at=datetime.now(UTC))])
    assert [await store.last(KEY) for store in stores] == [1] * 8
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_store_of_a_newer_version_is_refused_with_the_remedy(database: Database, store_url: str) -> None:
    newer = text("UPDATE alembic_version SET version_num = '9999'")
    await database.change_schema(upgrade)
    await database.write(lambda connection: connection.execute(newer))
    with pytest.raises(TranscriptsUnavailable, match=rf"revision 9999, .* up to {HEAD}: use the version that wrote it"):
        await TranscriptStore.open(store_url)


async def test_only_an_old_store_loads_alembic(sqlite_url: str) -> None:
    program = """
import asyncio, sys
from agent_runs.transcript.store import Line, TranscriptStore

async def main():
    for _ in ("fresh", "up to date"):
        await (await TranscriptStore.open(sys.argv[1])).close()

asyncio.run(main())
assert "sqlalchemy" in sys.modules and "alembic" not in sys.modules
"""
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, sqlite_url, cwd=root)
    assert await process.wait() == 0
