"""The index of vectors on PostgreSQL: what is to be embedded, and how far it has come."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from sqlalchemy import BigInteger, Integer, bindparam

from hivemem_server.domain.embedder import EmbeddingModel
from hivemem_server.domain.passages import passage
from hivemem_server.domain.ports import IndexWork
from hivemem_server.domain.values import RecordKind
from hivemem_server.postgres import rows
from hivemem_server.postgres.database import Database, compiled
from hivemem_server.postgres.filters import NAMESPACE
from hivemem_server.postgres.search import PostgresSearch, written
from hivemem_server.postgres.tables import log

# Takes the lease on one namespace whose log is ahead of its index. The lease of another replica is respected until it
# runs out; losing the race for a lease gives no row.
TAKE: LiteralString = """
INSERT INTO index_progress AS p (namespace_id, model_key, position, holder, lease_until)
SELECT n.namespace_id, %(model)s, n.floor, %(holder)s, clock_timestamp() + %(lease)s
FROM namespaces n
LEFT JOIN index_progress k ON k.namespace_id = n.namespace_id AND k.model_key = %(model)s
WHERE n.name IS NOT NULL
  AND (SELECT max(position) FROM log l WHERE l.namespace_id = n.namespace_id) > coalesce(k.position, n.floor)
  AND (k.holder IS NULL OR k.holder = %(holder)s OR k.lease_until < clock_timestamp())
ORDER BY k.lease_until NULLS FIRST
LIMIT 1
ON CONFLICT (namespace_id, model_key) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until
    WHERE p.holder IS NULL OR p.holder = excluded.holder OR p.lease_until < clock_timestamp()
RETURNING namespace_id, position
"""

# Moves the index on, unless another replica has taken over meanwhile, and gives the lease back at the end of the log.
MOVE: LiteralString = """
UPDATE index_progress
SET position = %(through)s, holder = CASE WHEN %(more)s THEN holder END,
    lease_until = CASE WHEN %(more)s THEN lease_until END
WHERE namespace_id = %(namespace)s AND model_key = %(model)s AND holder = %(holder)s AND position <= %(through)s
"""

RELEASE: LiteralString = "UPDATE index_progress SET holder = NULL, lease_until = NULL WHERE holder = %s"

SET_ASIDE: LiteralString = """
INSERT INTO index_set_aside (namespace_id, model_key, position, reason)
SELECT %(namespace)s, %(model)s, p, %(reason)s FROM unnest(%(positions)s::bigint[]) p
ON CONFLICT (namespace_id, model_key, position) DO UPDATE SET reason = excluded.reason
"""


_NEXT = compiled(
    rows.select_records()
    .where(log.c.namespace_id == NAMESPACE, log.c.position > bindparam("after", type_=BigInteger))
    .order_by(log.c.position)
    .limit(bindparam("limit", type_=Integer))
)


class PostgresIndex:
    """Implements IndexStore."""

    def __init__(self, database: Database, search: PostgresSearch) -> None:
        self._database = database
        self._search = search

    async def take(self, model: EmbeddingModel, holder: UUID, lease: dt.timedelta, limit: int) -> IndexWork | None:
        """See IndexStore."""
        taken = await self._database.fetch(
            TAKE, {"model": self._search.model_key(model), "holder": holder, "lease": lease}
        )
        if not taken:
            return None
        namespace, done = taken[0]
        records = await self._database.query(_NEXT, namespace=namespace, after=done, limit=limit)
        episodes = [rows.episode(row) for row in records if row[1] == RecordKind.EPISODE]
        return IndexWork(
            namespace_key=namespace,
            holder=holder,
            positions=[episode.position for episode in episodes],
            passages=[passage(episode.agent_id, episode) for episode in episodes],
            through=records[-1][0] if records else done,
            more=len(records) == limit,
        )

    async def release(self, holder: UUID) -> None:
        """See IndexStore."""
        await self._database.fetch(RELEASE, [holder])

    async def put(
        self, work: IndexWork, model: EmbeddingModel, vectors: Sequence[Sequence[float] | None], refusal: str
    ) -> None:
        """See IndexStore."""
        key = self._search.model_key(model)
        known = [
            (position, vector) for position, vector in zip(work.positions, vectors, strict=True) if vector is not None
        ]
        refused = [position for position, vector in zip(work.positions, vectors, strict=True) if vector is None]
        names = {"namespace": work.namespace_key, "model": key, "holder": work.holder, "through": work.through}
        insert: Any = (
            f"INSERT INTO vectors_{key} (namespace_id, position, embedding)"  # noqa: S608 - the key is a number
            " SELECT %(namespace)s, p, v::halfvec FROM unnest(%(positions)s::bigint[], %(vectors)s::text[]) x (p, v)"
            " ON CONFLICT DO NOTHING"
        )
        async with self._database.transaction() as connection:
            moved = await connection.execute(MOVE, names | {"more": work.more})
            if not moved.rowcount:
                return
            if known:
                texts = [written(vector) for _, vector in known]
                await connection.execute(insert, names | {"positions": [p for p, _ in known], "vectors": texts})
            if refused:
                await connection.execute(SET_ASIDE, names | {"positions": refused, "reason": refusal})
