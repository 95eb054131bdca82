"""Runs by their names, which have the agent's id."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Name each run after its agent, too. Links of runs that the store no longer knows open nothing anyway."""
    for table in ("lines", "revocations"):
        op.alter_column(table, "run_id", new_column_name="run")
    op.execute(
        "UPDATE lines SET run = (SELECT a.agent_id || '~' || a.run_id FROM attempts AS a "
        "WHERE a.run_id = lines.run AND a.attempt = lines.attempt)"
    )
    op.execute("DELETE FROM revocations WHERE run NOT IN (SELECT run_id FROM attempts)")
    op.execute(
        "UPDATE revocations SET run = (SELECT a.agent_id || '~' || a.run_id FROM attempts AS a "
        "WHERE a.run_id = revocations.run LIMIT 1)"
    )
    op.alter_column("attempts", "run_id", new_column_name="run")
    op.execute("UPDATE attempts SET run = agent_id || '~' || run")
