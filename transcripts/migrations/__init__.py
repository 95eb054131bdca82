"""Brings a store's database to the newest schema, whoever else opens it at the same moment.

A store that is up to date costs one look, and a fresh one is made at once: Alembic is imported only for an old one.
Revisions only add, with defaults: workers of the version before go on writing while the new ones start. To make one,
change `transcripts.schema`, write `versions/rNNNN_….py` after the last one's example and set HEAD; a test compares.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, inspect, text

from contracts.errors import TranscriptsUnavailable
from transcripts.database import Database
from transcripts.schema import attempts, metadata

HEAD: Final = "0002"
FOLDER: Final = Path(__file__).parent
_LOCK: Final = 0x7472616E736372  # "transcr": one migration at a time per PostgreSQL database


async def bring_up_to_date(database: Database) -> None:
    """Make or change the tables, unless they are as this version knows them.

    Raises:
        TranscriptsUnavailable: the file or server cannot be used, or a newer version made it.
    """
    if await database.ask(revision) == HEAD:
        return
    async with database.changing() as connection:
        await connection.run_sync(upgrade)


def revision(connection: Connection) -> str | None:
    """The schema's revision; None for an empty database, or one of the time before there were revisions."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection, to: str = HEAD) -> None:
    """Run what is missing in the connection's transaction, which is the only one that does so."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    found = revision(connection)
    if found == to:
        return
    if to == HEAD and found is None and not inspect(connection).has_table(attempts.name):
        _make(connection)
        return
    from alembic import command  # noqa: PLC0415 (0.3 s that a start seldom needs)
    from alembic.util import CommandError  # noqa: PLC0415 (same)

    try:
        command.upgrade(config(connection), to)
    except CommandError as error:
        told = f"the transcript store has revision {found}, this version knows up to {HEAD}: update it ({error})"
        raise TranscriptsUnavailable(told) from error


def _make(connection: Connection) -> None:
    """A fresh store, as if all revisions had run: the demo need not wait for Alembic."""
    metadata.create_all(connection)
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def config(connection: Connection) -> Any:
    """Alembic's configuration, without a file."""
    from alembic.config import Config  # noqa: PLC0415 (0.3 s that a start seldom needs)

    made = Config(attributes={"connection": connection})
    made.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return made
