"""Until when the links to a run are revoked."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "revocations",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("revoked_at", sa.BigInteger, nullable=False),
    )
