"""Lines, one row of running counts per attempt, revoked links."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "lines",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("terminated", sa.Boolean, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("company_id", sa.Text, nullable=False),
        sa.Column("lines", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("first_at", sa.BigInteger),
        sa.Column("last_at", sa.BigInteger),
        sa.Column("receipt", sa.Text),
        sa.Column("opened_at", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("writer_run_id", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("writer_since", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("writer_number", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("tally", sa.Text),
        *(sa.Column(name, sa.BigInteger) for name in ("input_tokens", "cached_tokens", "output_tokens", "steps")),
        sa.Column("cost_micros", sa.BigInteger),
        sa.Column("model", sa.Text),
        sa.Column("last_output", sa.Text),
    )
    op.create_index("attempts_by_opening", "attempts", ["opened_at"])
    op.create_table(
        "revocations",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("revoked_at", sa.BigInteger, nullable=False),
    )
