"""Runs migrations on the connection that `hivemem_server.postgres.schema` hands over."""

from __future__ import annotations

from alembic import context

from hivemem_server.postgres.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
