"""Run by Alembic: migrates over the connection of its configuration, in that connection's own transaction."""

from alembic import context

from agent_runs.transcripts.schema import metadata_of

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata_of(connection.dialect.name))
with context.begin_transaction():
    context.run_migrations()
