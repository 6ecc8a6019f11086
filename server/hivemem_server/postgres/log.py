"""The log on PostgreSQL: the append function's caller, and every read of records in order."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, LiteralString
from uuid import UUID

from sqlalchemy import BigInteger, Integer, bindparam, cast, func, literal_column, select, true
from sqlalchemy.sql import ColumnElement

from hivemem_server.domain import errors
from hivemem_server.domain.appends import Append, Condition
from hivemem_server.domain.errors import EpisodeErased, EpisodeNotFound, HivememError
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.passages import searchable_text
from hivemem_server.domain.ports import LogBounds, Window
from hivemem_server.domain.values import (
    AppendOutcome,
    Episode,
    Namespace,
    NewEpisode,
    Point,
    RecordKind,
    Stored,
    StreamState,
    ThreadState,
)
from hivemem_server.postgres import rows
from hivemem_server.postgres.database import Database, Query, Row, compiled
from hivemem_server.postgres.filters import NAMESPACE, as_json, reading_json, record_conditions, record_params, shape
from hivemem_server.postgres.tables import log, namespaces

NIL = UUID(int=0)
WINDOWS_AT_ONCE = 4  # of all followers, so that however many they are, appends find a connection

# One autocommit statement: the namespace's lock is never held across a round trip.
APPEND: LiteralString = """
SELECT append, outcome, details, r_position, r_revision, r_time FROM append_v1(
    %s, %s::text[], %s::text[], %s::smallint[], %s::bigint[], %s::int[], %s::text[], %s::jsonb[],
    %s::int[], %s::uuid[], %s::bytea[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::jsonb[],
    %s::timestamptz[], %s::jsonb[], %s::jsonb[], %s::jsonb[], %s::text[])
"""

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
        self._windows = asyncio.Semaphore(WINDOWS_AT_ONCE)

    async def append(self, namespace: Namespace, appends: Sequence[Append]) -> list[AppendOutcome | HivememError]:
        """See LogStore."""
        rows_found = await self._database.fetch(APPEND, _arguments(namespace, appends))
        grouped: list[list[Row]] = [[] for _ in appends]
        for row in rows_found:
            grouped[row[0] - 1].append(row)
        return [_outcome(append, found) for append, found in zip(appends, grouped, strict=True)]

    async def bounds(self, namespace: Namespace) -> LogBounds:
        """See LogStore."""
        found = await self._database.fetch(BOUNDS, [namespace.key])
        if not found:
            raise _gone(namespace)
        position, record_id, floor = found[0]
        return LogBounds(head=Point(position=position, record_id=record_id or NIL), floor=floor)

    async def heads(self, namespace_keys: Sequence[int]) -> dict[int, int]:
        """See LogStore."""
        return dict(await self._database.fetch(HEADS, [list(namespace_keys)]))

    async def point(self, namespace: Namespace, position: int) -> Point | None:
        """See LogStore."""
        found = await self._database.fetch(POINT, [namespace.key, position])
        return Point(position=position, record_id=found[0][0]) if found else None

    async def position_at(self, namespace: Namespace, time: dt.datetime) -> int:
        """See LogStore."""
        found = await self._database.fetch(POSITION_AT, {"namespace": namespace.key, "time": time})
        if not found:
            raise _gone(namespace)
        return int(found[0][0])

    async def window(self, namespace: Namespace, wanted: Filter, after: int, span: int, limit: int) -> Window:
        """See LogStore."""
        params = record_params(namespace.key, wanted)
        async with self._windows:
            found = await self._database.query(_window(shape(wanted)), **params, after=after, span=span, limit=limit)
        if not found:
            raise _gone(namespace)
        floor, head, begin_id, end, end_id, *_ = found[0]
        records = [rows.record(row[5:]) for row in found if row[5] is not None]
        full = len(records) == limit
        if full:  # what lies behind the last of them is not known yet
            end, end_id = records[-1].position, records[-1].record_id
        begin = Point(position=after, record_id=begin_id or NIL)
        return Window(
            begin=begin, records=records, end=Point(position=end, record_id=end_id or NIL), head=head, floor=floor
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


def _arguments(namespace: Namespace, appends: Sequence[Append]) -> list[object]:
    """The arguments of append_v1, one array a column."""
    columns = [
        _episode_row(index, append.agent_id, new, digest)
        for index, append in enumerate(appends, 1)
        for new, digest in zip(append.episodes, append.digests, strict=True)
    ]
    return [
        namespace.key,
        [append.session_id for append in appends],
        [append.agent_id for append in appends],
        [int(append.expectation.state) for append in appends],
        [append.expectation.revision for append in appends],
        *_condition_columns(namespace, appends),
        *map(list, zip(*columns, strict=True)),
    ]


def _condition_columns(namespace: Namespace, appends: Sequence[Append]) -> list[list[object]]:
    conditions = [(index, condition) for index, append in enumerate(appends, 1) for condition in append.conditions]
    queries = [_breaking(shape(condition.wanted)) for _, condition in conditions]
    return [
        [index for index, _ in conditions],
        [reading_json(query) for query in queries],
        [
            as_json(query, record_params(namespace.key, _later(condition)))
            for query, (_, condition) in zip(queries, conditions, strict=True)
        ],
    ]


def _later(condition: Condition) -> Filter:
    """What breaks the condition."""
    return replace(condition.wanted, after=max(condition.after, condition.wanted.after))


@functools.lru_cache(maxsize=1_000)
def _breaking(shaped: Filter) -> Query:
    """The query for the position of the first record that breaks a condition of this shape."""
    conditions = record_conditions(replace(shaped, after=1))
    return compiled(select(log.c.position).where(*conditions).order_by(log.c.position).limit(literal_column("1")))


def _episode_row(index: int, agent_id: str, new: NewEpisode, digest: bytes) -> tuple[object, ...]:
    return (
        index,
        new.episode_id,
        digest,
        new.turn,
        new.kind,
        new.summary,
        searchable_text(agent_id, new),
        rows.array_literal(new.tags),
        rows.dumped_attributes(new.attributes),
        new.event_time,
        rows.dumped_decisions(new),
        rows.dumped_threads(new),
        rows.dumped_ended(new),
        rows.array_literal(new.to_agents),
    )


def _outcome(append: Append, found: Sequence[Row]) -> AppendOutcome | HivememError:
    outcome = found[0][1]
    if outcome not in ("OK", "DUPLICATE"):
        return _refusal(append, outcome, found[0][2] or {})
    stored = [Stored(position=row[3], revision=row[4], commit_time=row[5]) for row in found]
    if outcome == "OK":
        stored.sort(key=lambda one: one.position)
    return AppendOutcome(stored=tuple(stored), deduplicated=outcome == "DUPLICATE")


def _refusal(append: Append, outcome: str, details: dict[str, Any]) -> HivememError:
    """The error of an append that the database refused, from its reason and numbers."""
    session = append.session_id
    match outcome:
        case "NAMESPACE_NOT_FOUND":
            return errors.NamespaceNotFound("the namespace does not exist any more")
        case "SESSION_NOT_FOUND":
            message = f"session {session!r} does not exist: create it first"
            return errors.SessionNotFound(message, session_id=session)
        case "SESSION_CLOSED":
            message = f"session {session!r} is closed: continue it in a new one with continues_session_id"
            return errors.SessionClosed(message, session_id=session)
        case "EPISODE_ID_REUSED":
            message = f"episode id {details['episode_id']} is known with other content: make a new id for new content"
            return errors.EpisodeIdReused(message, **details)
        case "EPISODE_ERASED":
            return EpisodeErased(f"episode {details['episode_id']} was erased; a resend stores nothing", **details)
        case "PARTIAL_DUPLICATE":
            message = f"{details['known']} of {details['sent']} episodes are stored already: send the others alone"
            return errors.PartialDuplicate(message, **details)
        case "REVISION_CONFLICT":
            return _revision_conflict(append, details["actual"], details.get("conditions", {}))
        case "CONDITION_FAILED":
            message = "news that the conditions did not expect: read on and decide again"
            return errors.ConditionFailed(message, **_failed_conditions(details["conditions"]))
    return _thread_refusal(outcome, details)


def _revision_conflict(append: Append, actual: int, failed: dict[str, int]) -> HivememError:
    wanted = {
        StreamState.NO_STREAM: "no episode yet",
        StreamState.EXISTS: "an episode",
        StreamState.REVISION: f"revision {append.expectation.revision}",
    }[append.expectation.state]
    expected = {StreamState.NO_STREAM: 0, StreamState.EXISTS: "exists"}.get(
        append.expectation.state, append.expectation.revision
    )
    return errors.RevisionConflict(
        f"the stream of {append.agent_id!r} in session {append.session_id!r} is at revision {actual},"
        f" expected was {wanted}: read it and decide again",
        expected=expected,
        actual=actual,
        **_failed_conditions(failed),
    )


def _failed_conditions(failed: dict[str, int]) -> dict[str, int]:
    """Metadata that names each condition that does not hold, and the position that breaks it."""
    return {f"conditions[{index}]": position for index, position in failed.items()}


def _thread_refusal(outcome: str, details: dict[str, Any]) -> HivememError:
    thread = details.get("thread_id")
    match outcome:
        case "THREAD_NOT_FOUND":
            return errors.ThreadNotFound(f"thread {thread!r} does not exist in this namespace", thread_id=thread)
        case "THREAD_STATE":
            state = ThreadState(details["state"]).name
            cure = "choose another id, or none" if details.get("opening") else "it cannot be ended again"
            return errors.ThreadStateConflict(
                f"thread {thread!r} is there and {state.lower()}: {cure}", thread_id=thread, state=state
            )
        case "FENCE_STALE":
            message = f"the claim on thread {thread!r} with fence {details['fence']} is over: stop work on it"
            return errors.FenceStale(message, **details)
        case "CLAIM_HELD":
            message = f"thread {thread!r} is claimed by {details['agent_id']!r} until {details['expire_time']}"
            return errors.ClaimHeld(message, **details)
    path = f"episodes[{details['episode']}].decisions[{details['item']}]"
    if outcome == "DECISION_KNOWN":
        rule = f"{details['decision_id']!r} is known already: choose another id, or none"
        return errors.InvalidField.at(f"{path}.decision_id", rule)
    if outcome == "DECISION_UNKNOWN":
        return errors.InvalidField.at(f"{path}.supersedes", f"there is no decision {details['decision_id']!r}")
    raise AssertionError(f"append_v1 returned an outcome that this server does not know: {outcome}")
