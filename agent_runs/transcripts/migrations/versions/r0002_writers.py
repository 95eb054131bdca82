"""Who may write an attempt, and when it was opened: fencing and retention."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns. Existing attempts count as opened with their first line, or else now."""
    for column in (
        sa.Column("opened_at", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("writer_run_id", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("writer_since", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("writer_number", sa.BigInteger, nullable=False, server_default="0"),
    ):
        op.add_column("attempts", column)
    attempts = sa.table("attempts", sa.column("opened_at"), sa.column("first_at", sa.BigInteger))
    now = sa.literal(time.time_ns() // 1000, sa.BigInteger)
    op.execute(attempts.update().values(opened_at=sa.func.coalesce(attempts.c.first_at, now)))
