"""The usage of each attempt, and an index for queries over time."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns, empty for existing attempts, and the index."""
    for name in ("input_tokens", "cached_tokens", "output_tokens", "steps", "cost_micros"):
        op.add_column("attempts", sa.Column(name, sa.BigInteger))
    for name in ("model", "last_output"):
        op.add_column("attempts", sa.Column(name, sa.Text))
    op.create_index("attempts_by_opening", "attempts", ["opened_at"])
