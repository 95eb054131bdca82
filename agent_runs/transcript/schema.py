"""The tables, for every dialect: lines, one row per attempt with its running counts and its writer, revoked links.

`run` is `RunKey.name`. `migrations` upgrades an older database to this. Times are whole microseconds since the epoch:
exact, ordered and the same in SQLite and PostgreSQL.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Dialect, Index, Integer, LargeBinary, MetaData, Table, Text, text
from sqlalchemy.types import TypeDecorator

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)


def to_ticks(moment: datetime) -> int:
    return (moment - EPOCH) // _TICK


class Instant(TypeDecorator[datetime]):
    """An aware datetime, kept as microseconds since the epoch and read back in UTC."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002 (SQLAlchemy's hook)
        return None if value is None else to_ticks(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 (same)
        return None if value is None else EPOCH + value * _TICK


metadata = MetaData()

lines = Table(
    "lines",
    metadata,
    Column("run", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("stream", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("terminated", Boolean, nullable=False),
    Column("at", Instant, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("run", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("agent_id", Text, nullable=False),
    Column("company_id", Text, nullable=False),
    Column("lines", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("first_at", Instant),
    Column("last_at", Instant),
    Column("receipt", Text),
    Column("opened_at", Instant, nullable=False, server_default="0"),
    Column("writer_run_id", Text, nullable=False, server_default=text("''")),
    Column("writer_since", Instant, nullable=False, server_default="0"),
    Column("writer_number", BigInteger, nullable=False, server_default="0"),
    Column("tally", Text),
    Column("input_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("steps", BigInteger),
    Column("cost_micros", BigInteger),
    Column("model", Text),
    Column("last_output", Text),
)
"""`tally`: what the writer has counted, for whoever writes on; opaque here. What follows is
`agent_runs.transcript.usage`."""
Index("attempts_by_opening", attempts.c.opened_at)
"""Of a column that never changes: updates of a row then cost PostgreSQL no write to an index."""

revocations = Table(
    "revocations",
    metadata,
    Column("run", Text, primary_key=True),
    Column("revoked_at", Instant, nullable=False),
)
"""Links to a run that were created until this time open nothing."""
