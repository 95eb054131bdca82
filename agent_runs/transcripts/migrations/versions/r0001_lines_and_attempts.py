"""Lines, and one row of running counts per attempt. Stores from before there were revisions have these tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables, unless they exist."""
    op.create_table(
        "lines",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("terminated", sa.Boolean, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("company_id", sa.Text, nullable=False),
        sa.Column("lines", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("first_at", sa.BigInteger),
        sa.Column("last_at", sa.BigInteger),
        sa.Column("receipt", sa.Text),
        if_not_exists=True,
    )
