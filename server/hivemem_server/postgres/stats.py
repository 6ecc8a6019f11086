"""Numbers about a namespace and its database."""

from __future__ import annotations

from typing import Any, LiteralString

from hivemem_server.domain.ports import DatabaseStats, IndexStats, NamespaceStats
from hivemem_server.domain.values import Namespace
from hivemem_server.postgres.database import Database

COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM sessions WHERE namespace_id = %(namespace)s),
       (SELECT count(*) FROM sessions WHERE namespace_id = %(namespace)s AND state = 1),
       (SELECT count(*) FROM agents WHERE namespace_id = %(namespace)s),
       (SELECT count(*) FROM log WHERE namespace_id = %(namespace)s AND record_kind = 1),
       (SELECT count(*) FROM threads WHERE namespace_id = %(namespace)s AND state IN (1, 2))
"""

INDEXES: LiteralString = """
SELECT m.model_key, m.name, m.dimension, coalesce(p.position, 0),
       (SELECT count(*) FROM index_set_aside a WHERE a.namespace_id = %(namespace)s AND a.model_key = m.model_key)
FROM models m LEFT JOIN index_progress p ON p.model_key = m.model_key AND p.namespace_id = %(namespace)s
ORDER BY m.model_key
"""

DATABASE: LiteralString = "SELECT current_setting('server_version'), pg_database_size(current_database())"


class PostgresStats:
    """Implements StatsStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def namespace(self, namespace: Namespace) -> NamespaceStats:
        """See StatsStore."""
        params = {"namespace": namespace.key}
        sessions, open_sessions, agents, episodes, threads = (await self._database.fetch(COUNTS, params))[0]
        indexes = [await self._index(params, *row) for row in await self._database.fetch(INDEXES, params)]
        return NamespaceStats(
            sessions=sessions,
            open_sessions=open_sessions,
            agents=agents,
            episodes=episodes,
            open_threads=threads,
            indexes=indexes,
        )

    async def _index(
        self, params: dict[str, int], key: int, name: str, dimension: int, position: int, set_aside: int
    ) -> IndexStats:
        count: Any = f"SELECT count(*) FROM vectors_{key} WHERE namespace_id = %(namespace)s"  # noqa: S608
        vectors = (await self._database.fetch(count, params))[0][0]
        return IndexStats(model=name, dimension=dimension, position=position, vectors=vectors, set_aside=set_aside)

    async def database(self) -> DatabaseStats:
        """See StatsStore."""
        version, size = (await self._database.fetch(DATABASE))[0]
        return DatabaseStats(version=version, size=size)
