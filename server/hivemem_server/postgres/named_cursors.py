"""Named cursors on PostgreSQL."""

from __future__ import annotations

from typing import LiteralString
from uuid import UUID

from hivemem_server.domain.values import NamedCursor, Namespace, Point
from hivemem_server.postgres.database import Database

GET: LiteralString = """
SELECT epoch, position, record_id, updated_time FROM cursors WHERE namespace_id = %(namespace)s AND name = %(name)s
"""

# Waits for a deletion of the namespace that is under way, and then stores nothing. Appends do not wait for it.
STORE: LiteralString = """
INSERT INTO cursors AS stored (namespace_id, name, epoch, position, record_id, updated_time)
SELECT n.namespace_id, %(name)s, %(epoch)s, %(position)s, %(record_id)s, clock_timestamp()
FROM namespaces n WHERE n.namespace_id = %(namespace)s AND n.name IS NOT NULL FOR KEY SHARE
ON CONFLICT (namespace_id, name)
"""

BEGIN: LiteralString = STORE + "DO NOTHING RETURNING position"

# The row that is there is locked before it is compared: of several that come at once none moves it backwards.
ADVANCE: LiteralString = (
    STORE
    + """
DO UPDATE SET epoch = excluded.epoch, position = excluded.position, record_id = excluded.record_id,
              updated_time = excluded.updated_time
WHERE stored.position <= excluded.position
RETURNING position
"""
)

EXCHANGE: LiteralString = """
UPDATE cursors
SET epoch = %(epoch)s, position = %(position)s, record_id = %(record_id)s, updated_time = clock_timestamp()
WHERE namespace_id = %(namespace)s AND name = %(name)s
  AND epoch = %(old_epoch)s AND position = %(old_position)s AND record_id = %(old_record_id)s
RETURNING position
"""


class PostgresCursors:
    """Implements CursorStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, namespace: Namespace, name: str) -> NamedCursor | None:
        """See CursorStore."""
        found = await self._database.fetch(GET, {"namespace": namespace.key, "name": name})
        if not found:
            return None
        epoch, position, record_id, time = found[0]
        return NamedCursor(epoch=epoch, point=Point(position=position, record_id=record_id), commit_time=time)

    async def advance(self, namespace: Namespace, name: str, point: Point) -> bool:
        """See CursorStore."""
        return bool(await self._database.fetch(ADVANCE, _params(namespace, name, point)))

    async def begin(self, namespace: Namespace, name: str, point: Point) -> bool:
        """See CursorStore."""
        return bool(await self._database.fetch(BEGIN, _params(namespace, name, point)))

    async def exchange(self, namespace: Namespace, name: str, epoch: UUID, there: Point, point: Point) -> bool:
        """See CursorStore."""
        old = {"old_epoch": epoch, "old_position": there.position, "old_record_id": there.record_id}
        return bool(await self._database.fetch(EXCHANGE, _params(namespace, name, point) | old))


def _params(namespace: Namespace, name: str, point: Point) -> dict[str, object]:
    return {
        "namespace": namespace.key,
        "name": name,
        "epoch": namespace.epoch,
        "position": point.position,
        "record_id": point.record_id,
    }
