"""Keeps the planner's statistics fresh while tables grow from nothing.

A plan made for an empty table stays in use until the table is analysed, and is many times slower by then. Autovacuum
comes round once a minute; a fleet of agents writes ten thousand episodes in less.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import LiteralString

import structlog

from hivemem_server.domain.errors import StorageFull, Unavailable
from hivemem_server.postgres.database import Database

_log = structlog.get_logger()

CHECK_SECONDS = 2.0
FEWEST_CHANGES = 200
CHANGED_SHARE = 0.2

# Tables that changed by a fifth and more since they were last analysed.
STALE: LiteralString = """
SELECT relname FROM pg_stat_user_tables
WHERE relname IN ('log', 'threads', 'decisions', 'sessions', 'agents')
  AND schemaname = current_schema() AND n_mod_since_analyze > greatest(%s, %s * n_live_tup)
"""
ANALYZE: dict[str, LiteralString] = {
    "log": "ANALYZE (SKIP_LOCKED) log",
    "threads": "ANALYZE (SKIP_LOCKED) threads",
    "decisions": "ANALYZE (SKIP_LOCKED) decisions",
    "sessions": "ANALYZE (SKIP_LOCKED) sessions",
    "agents": "ANALYZE (SKIP_LOCKED) agents",
}


async def keep_fresh(database: Database) -> None:
    """Analyses what has changed much, for ever."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        with contextlib.suppress(Unavailable, StorageFull):  # the pool has logged it
            for (table,) in await database.fetch(STALE, [FEWEST_CHANGES, CHANGED_SHARE]):
                await database.fetch(ANALYZE[table])
                _log.debug("analysed a table that had grown", table=table)
