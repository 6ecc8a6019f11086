"""The log on PostgreSQL: appends, and every read of records in order."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, LiteralString
from uuid import UUID

from sqlalchemy import BigInteger, Integer, bindparam, cast, func, select, true
from sqlalchemy.sql import ColumnElement

from hivemem_server.domain import errors
from hivemem_server.domain.appends import Append
from hivemem_server.domain.errors import EpisodeErased, EpisodeNotFound, HivememError
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogBounds, Window
from hivemem_server.domain.values import NO_RECORD, AppendOutcome, Episode, Namespace, Point, RecordKind
from hivemem_server.postgres import rows
from hivemem_server.postgres.appends import APPEND, arguments, outcomes
from hivemem_server.postgres.database import Database, Query, compiled
from hivemem_server.postgres.filters import NAMESPACE, record_conditions, record_params, shape
from hivemem_server.postgres.tables import log, namespaces

LAST_POSITION = 2**63 - 1

# The log's ends in one snapshot: the newest record, or the stored floor of an empty log.
BOUNDS: LiteralString = """
SELECT coalesce(l.position, n.floor), l.record_id, n.floor
FROM namespaces n
LEFT JOIN LATERAL (SELECT position, record_id FROM log WHERE namespace_id = n.namespace_id
                   ORDER BY position DESC LIMIT 1) l ON true
WHERE n.namespace_id = %s AND n.name IS NOT NULL
"""

# The id of the record at a position.
POINT: LiteralString = "SELECT record_id FROM log WHERE namespace_id = %s AND position = %s"

# The same with the floor, in one snapshot.
HISTORY: LiteralString = """
SELECT (SELECT record_id FROM log l WHERE l.namespace_id = n.namespace_id AND l.position = %s), n.floor
FROM namespaces n WHERE n.namespace_id = %s AND n.name IS NOT NULL
"""

# Heads of many logs at once, each one backwards step in an index.
HEADS: LiteralString = """
SELECT n.namespace_id, coalesce((SELECT max(position) FROM log l WHERE l.namespace_id = n.namespace_id), n.floor)
FROM namespaces n WHERE n.namespace_id = ANY(%s) AND n.name IS NOT NULL
"""

# Times never decrease with position, but only positions are indexed: halve the span until the boundary is found.
POSITION_AT: LiteralString = """
WITH RECURSIVE halves (low, high) AS (
    SELECT n.floor, coalesce((SELECT max(position) FROM log WHERE namespace_id = n.namespace_id), n.floor)
    FROM namespaces n WHERE n.namespace_id = %(namespace)s
    UNION ALL
    SELECT CASE WHEN l.time <= %(time)s THEN middle ELSE low END,
           CASE WHEN l.time <= %(time)s THEN high ELSE middle - 1 END
    FROM (SELECT low, high, (low + high + 1) / 2 AS middle FROM halves WHERE low < high) h
    JOIN log l ON l.namespace_id = %(namespace)s AND l.position = h.middle
)
SELECT low FROM halves WHERE low >= high
"""


class PostgresLog:
    """Implements LogStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, namespace: Namespace, appends: Sequence[Append]) -> list[AppendOutcome | HivememError]:
        """See LogStore."""
        found = await self._database.fetch(APPEND, arguments(namespace, appends))
        return outcomes(appends, found)

    async def bounds(self, namespace: Namespace) -> LogBounds:
        """See LogStore."""
        found = await self._database.fetch(BOUNDS, [namespace.key])
        if not found:
            raise _gone(namespace)
        position, record_id, floor = found[0]
        return LogBounds(head=Point(position=position, record_id=record_id or NO_RECORD), floor=floor)

    async def heads(self, namespace_keys: Sequence[int]) -> dict[int, int]:
        """See LogStore."""
        return dict(await self._database.fetch(HEADS, [list(namespace_keys)]))

    async def point(self, namespace: Namespace, position: int) -> Point | None:
        """See LogStore."""
        found = await self._database.fetch(POINT, [namespace.key, position])
        return Point(position=position, record_id=found[0][0]) if found else None

    async def history(self, namespace: Namespace, position: int) -> tuple[Point, int]:
        """See LogStore."""
        found = await self._database.fetch(HISTORY, [position, namespace.key])
        if not found:
            raise _gone(namespace)
        record_id, floor = found[0]
        return Point(position=position, record_id=record_id or NO_RECORD), floor

    async def position_at(self, namespace: Namespace, time: dt.datetime) -> int:
        """See LogStore."""
        found = await self._database.fetch(POSITION_AT, {"namespace": namespace.key, "time": time})
        if not found:
            raise _gone(namespace)
        return int(found[0][0])

    async def window(self, namespace: Namespace, wanted: Filter, after: int, span: int, limit: int) -> Window:
        """See LogStore."""
        params = record_params(namespace.key, wanted) | {"span": min(span, LAST_POSITION - after)}
        found = await self._database.query(_window(shape(wanted)), **params, after=after, limit=limit)
        if not found:
            raise _gone(namespace)
        floor, head, begin_id, end, end_id, *_ = found[0]
        records = [rows.record(row[5:]) for row in found if row[5] is not None]
        full = len(records) == limit
        if full:  # what lies behind the last of them is not known yet
            end, end_id = records[-1].position, records[-1].record_id
        begin = Point(position=after, record_id=begin_id or NO_RECORD)
        return Window(
            begin=begin, records=records, end=Point(position=end, record_id=end_id or NO_RECORD), head=head, floor=floor
        )

    async def page(
        self, namespace: Namespace, wanted: Filter, limit: int, *, newest_first: bool = False
    ) -> list[Episode]:
        """See LogStore."""
        found = await self._database.query(
            _page(shape(wanted), newest_first), **record_params(namespace.key, wanted), limit=limit
        )
        return [rows.episode(row) for row in found]

    async def get(self, namespace: Namespace, *, episode_id: UUID | None = None, position: int = 0) -> Episode:
        """See LogStore."""
        query = _BY_ID if episode_id else _BY_POSITION
        found = await self._database.query(query, namespace=namespace.key, key=episode_id or position)
        if found and found[0][1] == RecordKind.REMOVED:
            raise EpisodeErased(f"episode {found[0][2]} was erased", episode_id=found[0][2])
        if not found or found[0][1] != RecordKind.EPISODE:
            raise _no_episode(namespace, episode_id, position)
        return rows.episode(found[0])

    async def neighbours(
        self, namespace: Namespace, episode: Episode, before: int, after: int, *, same_agent: bool
    ) -> tuple[list[Episode], list[Episode]]:
        """See LogStore."""
        agents = (episode.agent_id,) if same_agent else ()
        scope = Filter(session_ids=(episode.session_id,), agent_ids=agents)
        earlier = replace(scope, through=episode.position - 1)
        later = replace(scope, after=episode.position)
        older = await self.page(namespace, earlier, before, newest_first=True) if before and earlier.through else []
        newer = await self.page(namespace, later, after) if after else []
        return older[::-1], newer


def _gone(namespace: Namespace) -> HivememError:
    return errors.NamespaceNotFound(
        f"namespace {namespace.name!r} does not exist: create it first", namespace=namespace.name
    )


def _no_episode(namespace: Namespace, episode_id: UUID | None, position: int) -> HivememError:
    if episode_id:
        return EpisodeNotFound(f"no episode {episode_id} in namespace {namespace.name!r}", episode_id=episode_id)
    return EpisodeNotFound(f"no episode at position {position} of namespace {namespace.name!r}", position=position)


def _one(key: ColumnElement[Any]) -> Query:
    return compiled(
        rows.select_records().where(log.c.namespace_id == NAMESPACE, key == bindparam("key", type_=key.type))
    )


_BY_ID, _BY_POSITION = _one(log.c.record_id), _one(log.c.position)
_LIMIT = bindparam("limit", type_=Integer)


@functools.lru_cache(maxsize=1_000)
def _page(shaped: Filter, newest_first: bool) -> Query:
    order = log.c.position.desc() if newest_first else log.c.position
    return compiled(rows.select_records().where(*record_conditions(shaped)).order_by(order).limit(_LIMIT))


@functools.lru_cache(maxsize=1_000)
def _window(shaped: Filter) -> Query:
    """Bounds and rows in one statement, so that a log whose beginning is cut cannot lose the middle unseen."""
    after = bindparam("after", type_=BigInteger)
    head = select(func.max(log.c.position)).where(log.c.namespace_id == NAMESPACE).scalar_subquery()
    bounds = (
        select(namespaces.c.floor, func.coalesce(head, namespaces.c.floor).label("head"))
        .where(namespaces.c.namespace_id == NAMESPACE, namespaces.c.name.is_not(None))
        .cte("bounds")
    )
    span_end = cast(after + bindparam("span", type_=BigInteger), BigInteger)
    end = func.greatest(func.least(bounds.c.head, span_end), after)
    begin_id = select(log.c.record_id).where(log.c.namespace_id == NAMESPACE, log.c.position == after).scalar_subquery()
    end_id = select(log.c.record_id).where(log.c.namespace_id == NAMESPACE, log.c.position == end).scalar_subquery()
    records = (
        rows.select_records()
        .where(*record_conditions(shaped), log.c.position > after, log.c.position <= span_end)
        .order_by(log.c.position)
        .limit(_LIMIT)
        .lateral("records")
    )
    return compiled(
        select(bounds.c.floor, bounds.c.head, begin_id, end, end_id, *records.c)
        .select_from(bounds.outerjoin(records, true()))
        .order_by(records.c.position)
    )
