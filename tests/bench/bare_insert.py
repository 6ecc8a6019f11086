"""The least that storing episodes can cost: psycopg inserts rows into the real tables, with their indexes.

One statement is one commit. Positions, revisions and keys are known beforehand; nothing is locked, looked up, compared
or checked but what the tables' own constraints check.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import LiteralString, Self
from uuid import uuid4

import psycopg

from .texts import Written

NAMESPACE = 1
OPEN, RESOLVED = 1, 3
DIGEST_BYTES = 33

# Any number of episodes with their decisions and threads, one array a column.
INSERT_MANY: LiteralString = """
WITH decided AS (
    INSERT INTO decisions (namespace_id, decision_id, session_key, position, ordinal)
    SELECT 1, d.id, d.session_key, d.position, 1
    FROM unnest(%(decision_id)s::text[], %(session_key)s::int[], %(position)s::bigint[]) d (id, session_key, position)
), opened AS (
    INSERT INTO threads (namespace_id, thread_id, session_key, agent_key, position, ordinal, state, priority)
    SELECT 1, t.id, t.session_key, t.agent_key, t.position, 1, t.state, 0
    FROM unnest(%(thread_id)s::text[], %(thread_session)s::int[], %(thread_agent)s::int[],
                %(thread_position)s::bigint[], %(thread_state)s::smallint[])
         t (id, session_key, agent_key, position, state)
)
INSERT INTO log (namespace_id, position, record_kind, record_id, time, session_key, agent_key, revision, turn, kind,
                 summary, decisions, open_threads, digest, search)
SELECT 1, e.position, 1, e.id, clock_timestamp(), e.session_key, e.agent_key, e.revision, e.turn, 'note', e.summary,
       e.decisions, e.threads, e.digest, to_tsvector('english', e.search)
FROM unnest(%(position)s::bigint[], %(id)s::uuid[], %(session_key)s::int[], %(agent_key)s::int[],
            %(revision)s::bigint[], %(turn)s::bigint[], %(summary)s::text[], %(decisions)s::jsonb[],
            %(threads)s::jsonb[], %(digest)s::bytea[], %(search)s::text[])
     e (position, id, session_key, agent_key, revision, turn, summary, decisions, threads, digest, search)
"""

# One episode with its decision and, if it has one, its thread.
INSERT_ONE: LiteralString = """
WITH decided AS (
    INSERT INTO decisions (namespace_id, decision_id, session_key, position, ordinal)
    VALUES (1, %(decision_id)s, %(session_key)s, %(position)s, 1)
), opened AS (
    INSERT INTO threads (namespace_id, thread_id, session_key, agent_key, position, ordinal, state, priority)
    SELECT 1, %(thread_id)s::text, %(session_key)s, %(agent_key)s, %(position)s, 1, 1, 0
    WHERE %(thread_id)s::text IS NOT NULL
)
INSERT INTO log (namespace_id, position, record_kind, record_id, time, session_key, agent_key, revision, turn, kind,
                 summary, decisions, open_threads, digest, search)
VALUES (1, %(position)s, 1, %(id)s, clock_timestamp(), %(session_key)s, %(agent_key)s, %(revision)s, %(turn)s, 'note',
        %(summary)s, %(decisions)s::jsonb, %(threads)s::jsonb, %(digest)s, to_tsvector('english', %(search)s::text))
"""

# What the rows refer to.
NAMESPACE_ROW: LiteralString = """
INSERT INTO namespaces (namespace_id, name, epoch, digest_key, created_time, updated_time)
VALUES (1, 'default', %s, %s, now(), now())
"""
SESSIONS: LiteralString = """
INSERT INTO sessions (namespace_id, session_key, session_id, user_id, goal, state, created_time, updated_time)
SELECT 1, k, 'session-' || k, 'user-' || (k %% 50), 'Find out what matters and write it down', 1, now(), now()
FROM generate_series(1, %s) k
"""
AGENTS: LiteralString = """
INSERT INTO agents (namespace_id, agent_key, agent_id, created_time)
SELECT 1, k, 'agent-' || k, now() FROM generate_series(1, %s) k
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An episode with its place."""

    written: Written
    position: int
    session_key: int
    agent_key: int
    revision: int
    thread_state: int = OPEN


class Placer:
    """Gives episodes dense positions, and dense revisions in their streams."""

    def __init__(self, position: int = 0) -> None:
        self._position = position
        self._revisions: dict[tuple[int, int], int] = {}

    def placed(self, written: Written, session: int, agent: int, state: int = OPEN) -> Placed:
        """The episode at the next place."""
        self._position += 1
        revision = self._revisions[session, agent] = self._revisions.get((session, agent), 0) + 1
        return Placed(
            written=written,
            position=self._position,
            session_key=session,
            agent_key=agent,
            revision=revision,
            thread_state=state,
        )

    def one_stream(self, written: Iterable[Written]) -> list[Placed]:
        """The episodes at the next places, all of one agent in one session."""
        return [self.placed(one, 1, 1) for one in written]


def columns(placed: Sequence[Placed]) -> dict[str, list[object]]:
    """The parameters of INSERT_MANY."""
    rows = [one_row(one) for one in placed]
    names = ("position", "id", "session_key", "agent_key", "revision", "turn", "summary", "decisions", "threads")
    found = {name: [row[name] for row in rows] for name in (*names, "digest", "search", "decision_id")}
    opening = [one for one in placed if one.written.thread]
    return found | {
        "thread_id": [_thread_id(one) for one in opening],
        "thread_session": [one.session_key for one in opening],
        "thread_agent": [one.agent_key for one in opening],
        "thread_position": [one.position for one in opening],
        "thread_state": [one.thread_state for one in opening],
    }


def one_row(placed: Placed) -> dict[str, object]:
    """The parameters of INSERT_ONE."""
    written = placed.written
    searched = [f"agent-{placed.agent_key}", written.summary, written.decision, written.thread]
    thread = [{"id": _thread_id(placed), "text": written.thread}]
    return {
        "position": placed.position,
        "id": written.episode_id,
        "session_key": placed.session_key,
        "agent_key": placed.agent_key,
        "revision": placed.revision,
        "turn": written.turn,
        "summary": written.summary,
        "decisions": json.dumps([{"id": _decision_id(placed), "text": written.decision}]),
        "threads": json.dumps(thread) if written.thread else None,
        "digest": random.Random(placed.position).randbytes(DIGEST_BYTES),
        "search": "\n".join(filter(None, searched)),
        "decision_id": _decision_id(placed),
        "thread_id": _thread_id(placed) if written.thread else None,
    }


def _decision_id(placed: Placed) -> str:
    return f"{placed.written.episode_id}/d1"


def _thread_id(placed: Placed) -> str:
    return f"{placed.written.episode_id}/t1"


class BareLog:
    """A connection that inserts, each statement durable when it returns."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def prepare(self, *, sessions: int = 1, agents: int = 1) -> None:
        """Makes what the rows refer to, in a database without anything in it."""
        self._connection.execute(NAMESPACE_ROW, [uuid4(), random.Random(0).randbytes(32)])
        self._connection.execute(SESSIONS, [sessions])
        self._connection.execute(AGENTS, [agents])

    def insert_many(self, parameters: dict[str, list[object]]) -> None:
        """Commits rows made by `columns`."""
        self._connection.execute(INSERT_MANY, parameters, prepare=True)

    def insert_one(self, parameters: dict[str, object]) -> None:
        """Commits a row made by `one_row`."""
        self._connection.execute(INSERT_ONE, parameters, prepare=True)

    def settle(self) -> None:
        """Does now what the database would do at a moment of its own choice: statistics, visibility, a checkpoint."""
        self._connection.execute("VACUUM (ANALYZE) log, threads, decisions, sessions, agents")
        self._connection.execute("CHECKPOINT")
