"""Sessions on PostgreSQL."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, LiteralString

from sqlalchemy import Integer, Text, and_, bindparam, case, func, select, true, update
from sqlalchemy.sql import Select

from hivemem_server.domain.errors import NamespaceNotFound, SessionExists, SessionNotFound
from hivemem_server.domain.filters import SessionFilter
from hivemem_server.domain.values import Namespace, RecordKind, Session, SessionState
from hivemem_server.postgres.database import Database, Query, Row, compiled
from hivemem_server.postgres.filters import NAMESPACE, session_conditions, session_params
from hivemem_server.postgres.tables import log, sessions

OPEN: LiteralString = "SELECT open_session_v1(%s, %s, %s, %s, %s, %s)"

# Takes the namespace's lock, so that an append is ordered either before the closing or after it.
CLOSE: LiteralString = """
WITH locked AS MATERIALIZED (SELECT FROM namespaces WHERE namespace_id = %(namespace)s FOR NO KEY UPDATE)
UPDATE sessions SET state = 2, closed_time = clock_timestamp(), updated_time = clock_timestamp()
WHERE namespace_id = %(namespace)s AND session_id = %(session)s AND state = 1 AND EXISTS (SELECT FROM locked)
"""

_NEWEST = 2**31 - 1  # above every key
_earlier = sessions.alias("earlier")


class PostgresSessions:
    """Implements SessionStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(
        self,
        namespace: Namespace,
        session_id: str,
        *,
        user_id: str,
        goal: str,
        labels: Mapping[str, str],
        continues_session_id: str,
    ) -> tuple[Session, bool]:
        """See SessionStore."""
        found = await self._database.fetch(
            OPEN, [namespace.key, session_id, user_id, goal, dict(labels), continues_session_id]
        )
        match found[0][0]:
            case "NAMESPACE_NOT_FOUND":
                raise NamespaceNotFound(f"namespace {namespace.name!r} does not exist", namespace=namespace.name)
            case "SESSION_EXISTS":
                raise SessionExists(
                    f"session {session_id!r} belongs to another user: choose another id", session_id=session_id
                )
            case "SESSION_NOT_FOUND":
                raise SessionNotFound(
                    f"session {continues_session_id!r}, which is to be continued, does not exist for this user",
                    session_id=continues_session_id,
                )
            case outcome:
                return await self.get(namespace, session_id), outcome == "CREATED"

    async def get(self, namespace: Namespace, session_id: str) -> Session:
        """See SessionStore."""
        found = await self._database.query(_by_id(), namespace=namespace.key, session_id=session_id)
        if not found:
            raise no_session(session_id)
        return session(found[0])

    async def page(
        self, namespace: Namespace, wanted: SessionFilter, before: int, limit: int
    ) -> list[tuple[int, Session]]:
        """See SessionStore."""
        query = _page(bool(wanted.user_ids), wanted.state is not None, bool(wanted.labels))
        params = session_params(namespace.key, wanted)
        found = await self._database.query(query, **params, before=before or _NEWEST, limit=limit)
        return [(row[0], session(row)) for row in found]

    async def update(
        self, namespace: Namespace, session_id: str, *, goal: str | None, labels: Mapping[str, str] | None
    ) -> Session:
        """See SessionStore."""
        changes: dict[str, object] = {} if goal is None else {"goal": goal}
        if labels is not None:
            changes["labels"] = dict(labels)
        if changes:
            await self._database.query(
                compiled(
                    update(sessions)
                    .where(sessions.c.namespace_id == namespace.key, sessions.c.session_id == session_id)
                    .values(**changes, updated_time=func.clock_timestamp())
                )
            )
        return await self.get(namespace, session_id)

    async def close(self, namespace: Namespace, session_id: str) -> Session:
        """See SessionStore."""
        await self._database.fetch(CLOSE, {"namespace": namespace.key, "session": session_id})
        return await self.get(namespace, session_id)


def no_session(session_id: str) -> SessionNotFound:
    """The error of an unknown session."""
    return SessionNotFound(f"session {session_id!r} does not exist: create it first", session_id=session_id)


def select_sessions() -> Select[Any]:
    """All that `session` needs, the internal key first."""
    newest = (
        select(log.c.position, log.c.time)
        .where(
            log.c.namespace_id == sessions.c.namespace_id,
            log.c.session_key == sessions.c.session_key,
            log.c.record_kind == int(RecordKind.EPISODE),
        )
        .order_by(log.c.position.desc())
        .limit(1)
        .lateral("newest")
    )
    continued = and_(
        _earlier.c.namespace_id == sessions.c.namespace_id, _earlier.c.session_key == sessions.c.continues_key
    )
    return select(
        sessions.c.session_key,
        sessions.c.session_id,
        sessions.c.user_id,
        sessions.c.goal,
        sessions.c.labels,
        sessions.c.state,
        func.coalesce(_earlier.c.session_id, ""),
        sessions.c.created_time,
        sessions.c.updated_time,
        case((sessions.c.state == int(SessionState.CLOSED), sessions.c.closed_time)),
        func.coalesce(newest.c.position, 0),
        newest.c.time,
    ).select_from(sessions.outerjoin(_earlier, continued).outerjoin(newest, true()))


@functools.cache
def _by_id() -> Query:
    session_id = bindparam("session_id", type_=Text)
    return compiled(select_sessions().where(sessions.c.namespace_id == NAMESPACE, sessions.c.session_id == session_id))


@functools.cache
def _page(users: bool, state: bool, labels: bool) -> Query:
    conditions = session_conditions(users=users, state=state, labels=labels)
    conditions.append(sessions.c.session_key < bindparam("before", type_=Integer))
    return compiled(
        select_sessions()
        .where(*conditions)
        .order_by(sessions.c.session_key.desc())
        .limit(bindparam("limit", type_=Integer))
    )


def session(row: Row) -> Session:
    """A row of `select_sessions` as a session."""
    _, session_id, user_id, goal, labels, state, continues, created, updated, closed, position, time = row
    return Session(
        session_id=session_id,
        user_id=user_id,
        goal=goal,
        labels=labels,
        state=SessionState(state),
        continues_session_id=continues,
        create_time=created,
        update_time=updated,
        close_time=closed,
        last_position=position,
        last_episode_time=time,
    )
