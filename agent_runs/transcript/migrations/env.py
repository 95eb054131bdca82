"""Run by Alembic: migrates over the connection of its configuration, in that connection's own transaction."""

from alembic import context

from agent_runs.transcript.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
