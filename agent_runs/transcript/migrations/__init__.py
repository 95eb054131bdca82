"""Migrates a store's database to the newest schema, also when several processes open it at the same moment.

A store that is up to date costs one query, and a new one is created at once: Alembic is imported only for an old one.
Revisions only add, with defaults: workers of the previous version keep writing while the new ones start. To add a
revision, change `agent_runs.transcript.schema`, write `versions/rNNNN_….py` like the last one and set HEAD; a test
compares.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, inspect, text

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.transcript.database import Database
from agent_runs.transcript.schema import attempts, metadata

HEAD: Final = "0001"
FOLDER: Final = Path(__file__).parent
_LOCK: Final = 0x7472616E736372  # "transcr": one migration at a time per PostgreSQL database


async def migrate(database: Database) -> None:
    """Create or change the tables, unless they have the schema of this version.

    Raises:
        TranscriptsUnavailable: the file or server cannot be used, or a newer version has changed its schema.
    """
    if await database.read(revision) == HEAD:
        return
    await database.change_schema(upgrade)


def revision(connection: Connection) -> str | None:
    """The schema's revision; None for an empty database, or one from before there were revisions."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection) -> None:
    """Run the missing revisions in the connection's transaction, which is the only one that does so."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    current = revision(connection)
    if current == HEAD:
        return
    if current is None and not inspect(connection).has_table(attempts.name):
        _create(connection)
        return
    from alembic import command  # noqa: PLC0415 (0.3 s that a start seldom needs)
    from alembic.util import CommandError  # noqa: PLC0415 (same)

    try:
        command.upgrade(config(connection), HEAD)
    except CommandError as error:
        raise TranscriptsUnavailable(
            f"this version of agent-runs does not know the transcript store's revision {current}, only those up to "
            f"{HEAD}: use the version that wrote it, or a newer one"
        ) from error


def _create(connection: Connection) -> None:
    """A new store, as if all revisions had run: the demo need not wait for Alembic."""
    metadata.create_all(connection)
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def config(connection: Connection) -> Any:
    """Alembic's configuration, without a file."""
    from alembic.config import Config  # noqa: PLC0415 (0.3 s that a start seldom needs)

    alembic = Config(attributes={"connection": connection})
    alembic.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return alembic
