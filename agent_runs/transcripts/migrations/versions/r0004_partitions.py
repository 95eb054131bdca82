"""The day on which an attempt was opened, and on PostgreSQL the lines in partitions by it."""

import sqlalchemy as sa
from alembic import op

from agent_runs.transcripts.partitions import KEPT, create_missing

revision = "0004"
down_revision = "0003"

_DAY = 86_400_000_000


def upgrade() -> None:
    """Add the column. PostgreSQL rewrites the lines: a primary key must have the column that partitions."""
    op.add_column("attempts", sa.Column("day", sa.Integer, nullable=False, server_default="0"))
    attempts = sa.table("attempts", sa.column("day"), sa.column("opened_at", sa.BigInteger))
    op.execute(attempts.update().values(day=attempts.c.opened_at // _DAY))
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    op.create_index("attempts_by_day", "attempts", ["day"])
    op.rename_table("lines", "unpartitioned_lines")
    op.execute("ALTER INDEX lines_pkey RENAME TO unpartitioned_lines_pkey")
    op.create_table(
        "lines",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("terminated", sa.Boolean, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        postgresql_partition_by="RANGE (day)",
    )
    days = connection.execute(sa.text("SELECT DISTINCT day FROM attempts")).scalars()
    create_missing(connection, {KEPT, *days})
    op.execute(
        "INSERT INTO lines (run_id, attempt, day, sequence, stream, data, terminated, at) "
        "SELECT run_id, attempt, a.day, sequence, stream, data, terminated, at "
        "FROM unpartitioned_lines JOIN attempts AS a USING (run_id, attempt)"
    )
    op.drop_table("unpartitioned_lines")
