"""PostgreSQL's partitions of the lines: one for each day on which attempts were opened, so that a whole day is dropped.

There is no default partition: lines of a day without a partition are refused, never stored where no retention finds
them. Day 0 is the partition of the attempts that outlived their day's partition (`_move_kept`).
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_runs.transcripts.schema import EPOCH

KEPT: Final = 0
AHEAD: Final = 7
"""Days for which partitions are made ahead of time."""
LONGEST_USUAL_RUN: Final = 1
"""In days. A partition is dropped this long after the retention of its last attempt; what is kept longer is moved."""
_LOCK: Final = 0x7061727469  # "parti": one process at a time makes partitions
_DROP_LOCK: Final = 0x64726F70  # "drop"

_PARTITIONS: Final = text("""
    SELECT c.relname, i.inhparent IS NOT NULL AS attached, COALESCE(i.inhdetachpending, FALSE) AS detaching
    FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid AND i.inhparent = 'lines'::regclass
    WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'lines'::regclass)
    AND c.relname ~ '^lines_[0-9]{8}$' ORDER BY c.relname""")
_COPY_KEPT: Final = text("""
    INSERT INTO lines (run, attempt, day, sequence, stream, data, terminated, at)
    SELECT run, attempt, :kept, sequence, stream, data, terminated, at FROM lines
    WHERE day = :day AND (run, attempt) IN (SELECT run, attempt FROM attempts WHERE day = :day)""")


def day_of(at: datetime) -> int:
    """Days from the epoch until then, in UTC."""
    return (at - EPOCH).days


def name_of(day: int) -> str:
    """The name of a day's partition, with its date."""
    return "lines_kept" if day == KEPT else f"lines_{EPOCH + timedelta(days=day):%Y%m%d}"


def create_missing(connection: Connection, days: Iterable[int]) -> None:
    """Create the partitions of these days, unless they exist. Writers and readers do not wait for it."""
    wanted = set(days)
    if wanted <= _attached(connection):
        return
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    for day in sorted(wanted - _attached(connection)):
        # `CREATE TABLE … PARTITION OF` would wait for all transactions, and new ones for it: attaching does not.
        connection.execute(text(f"CREATE TABLE {name_of(day)} (LIKE lines INCLUDING ALL)"))
        bounds = f"FROM ({day}) TO ({day + 1})"
        connection.execute(text(f"ALTER TABLE lines ATTACH PARTITION {name_of(day)} FOR VALUES {bounds}"))


async def drop_expired(connection: AsyncConnection, before: datetime) -> int:
    """Drop the partitions of which every attempt of a usual length was sealed before this time; returns how many.

    Writers and readers do not wait for it. A process that is killed meanwhile leaves a partition that the next call
    drops. Of several processes one drops. `connection` commits each statement.
    """
    if not (await connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _DROP_LOCK})).scalar():
        return 0
    dropped = 0
    last = day_of(before) - 1 - LONGEST_USUAL_RUN
    for name, attached, detaching in (await connection.execute(_PARTITIONS)).all():
        day = _day(name)
        if day > last:
            break
        if attached and not detaching:
            await _move_kept(connection, day)
            await connection.execute(text(f"ALTER TABLE lines DETACH PARTITION {name} CONCURRENTLY"))
        elif detaching:
            await connection.execute(text(f"ALTER TABLE lines DETACH PARTITION {name} FINALIZE"))
        await connection.execute(text(f"DROP TABLE {name}"))
        dropped += 1
    return dropped


async def _move_kept(connection: AsyncConnection, day: int) -> None:
    """Move what is not expired to the partition of day 0: an open run, one that was long at work.

    In one transaction that locks the attempts: their writers continue there after it. What it leaves behind is found
    by nobody, since readers and writers take the day from the attempt.
    """
    numbers = {"day": day, "kept": KEPT}
    await connection.execute(text("BEGIN"))
    try:
        await connection.execute(text("SELECT 1 FROM attempts WHERE day = :day FOR UPDATE"), {"day": day})
        await connection.execute(_COPY_KEPT, numbers)
        await connection.execute(text("UPDATE attempts SET day = :kept WHERE day = :day"), numbers)
    except BaseException:
        await connection.execute(text("ROLLBACK"))
        raise
    await connection.execute(text("COMMIT"))


def _attached(connection: Connection) -> set[int]:
    kept = connection.execute(text("SELECT to_regclass('lines_kept')")).scalar()
    days = {_day(name) for name, attached, _ in connection.execute(_PARTITIONS).all() if attached}
    return days | ({KEPT} if kept else set())


def _day(name: str) -> int:
    return day_of(datetime.strptime(name.removeprefix("lines_"), "%Y%m%d").replace(tzinfo=UTC))
