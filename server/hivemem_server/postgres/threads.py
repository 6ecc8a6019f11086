"""Threads on PostgreSQL. Their texts are in the episodes that opened them."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Integer, and_, bindparam, cast, select
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.sql import ColumnElement, Select

from hivemem_server.domain.filters import ThreadFilter
from hivemem_server.domain.values import Claim, Namespace, Thread, ThreadOrder, ThreadState
from hivemem_server.postgres.database import Database, Query, Row, compiled
from hivemem_server.postgres.filters import thread_conditions, thread_params, thread_shape
from hivemem_server.postgres.rows import loaded_thread
from hivemem_server.postgres.tables import agents, log, sessions, threads

_opener, _holder, _ender = agents.alias("opener"), agents.alias("holder"), agents.alias("ender")
_ending = log.alias("ending")

# What a page goes on from, for each order.
_ORDINAL, _PRIORITY = cast(threads.c.ordinal, BigInteger), cast(threads.c.priority, BigInteger)
_KEYS: dict[ThreadOrder, tuple[ColumnElement[int], ...]] = {
    ThreadOrder.OLDEST_FIRST: (threads.c.position, _ORDINAL),
    ThreadOrder.NEWEST_FIRST: (-threads.c.position, -_ORDINAL),
    ThreadOrder.PRIORITY: (-_PRIORITY, threads.c.position, _ORDINAL),
}


class PostgresThreads:
    """Implements ThreadStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, namespace: Namespace, wanted: ThreadFilter, order: ThreadOrder, after: Sequence[int], limit: int
    ) -> list[tuple[Sequence[int], Thread]]:
        """See ThreadStore."""
        query = _page(thread_shape(wanted), order, bool(after))
        params = thread_params(namespace.key, wanted)
        found = await self._database.query(query, **params, after=list(after), limit=limit)
        return [(row[-len(_KEYS[order]) :], thread(row)) for row in found]


@functools.lru_cache(maxsize=1_000)
def _page(shaped: ThreadFilter, order: ThreadOrder, begun: bool) -> Query:
    key = _KEYS[order]
    statement = select_threads().add_columns(*key).where(*thread_conditions(shaped))
    if begun:
        statement = statement.where(array(key) > bindparam("after", type_=ARRAY(BigInteger)))
    return compiled(statement.order_by(*key).limit(bindparam("limit", type_=Integer)))


def select_threads() -> Select[Any]:
    """All that `thread` needs."""

    def of(table: Any, key: Any) -> Any:
        return and_(table.c.namespace_id == threads.c.namespace_id, table.c.agent_key == key)

    joined = (
        threads.join(log, and_(log.c.namespace_id == threads.c.namespace_id, log.c.position == threads.c.position))
        .join(
            sessions,
            and_(sessions.c.namespace_id == threads.c.namespace_id, sessions.c.session_key == threads.c.session_key),
        )
        .join(_opener, of(_opener, threads.c.agent_key))
        .outerjoin(_holder, of(_holder, threads.c.claimed_by))
        .outerjoin(_ender, of(_ender, threads.c.ended_by))
        .outerjoin(
            _ending,
            and_(_ending.c.namespace_id == threads.c.namespace_id, _ending.c.position == threads.c.ended_position),
        )
    )
    return select(
        log.c.open_threads[threads.c.ordinal - 1],
        threads.c.state,
        sessions.c.session_id,
        sessions.c.user_id,
        _opener.c.agent_id,
        log.c.record_id,
        log.c.position,
        log.c.time,
        _holder.c.agent_id,
        threads.c.fence,
        threads.c.lease,
        threads.c.claim_time,
        threads.c.expire_time,
        _ender.c.agent_id,
        _ending.c.record_id,
        threads.c.ended_time,
        threads.c.superseded,
    ).select_from(joined)


def thread(row: Row) -> Thread:
    """A row of `select_threads` as a thread."""
    (opened, state, session_id, user_id, agent_id, episode_id, position, time, holder, fence, lease, claimed, expires,
     ended_by, ended_by_episode, ended, superseded) = row[:17]  # fmt: skip
    held = ThreadState(state) is ThreadState.CLAIMED
    claim = _claim(holder, fence, lease, claimed, expires) if held else None
    return Thread(
        opened=loaded_thread(opened),
        state=ThreadState(state),
        session_id=session_id,
        user_id=user_id,
        agent_id=agent_id,
        episode_id=episode_id,
        position=position,
        open_time=time,
        claim=claim,
        ended_by_agent_id=ended_by or "",
        ended_by_episode_id=ended_by_episode,
        end_time=ended,
        superseded=superseded,
    )


def _claim(holder: str, fence: int, lease: dt.timedelta, claimed: dt.datetime, expires: dt.datetime) -> Claim:
    return Claim(agent_id=holder, fence=fence, lease=lease, claim_time=claimed, expire_time=expires)
