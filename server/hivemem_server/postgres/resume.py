"""What resuming needs, read in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString

from psycopg import AsyncConnection
from sqlalchemy import ARRAY, Integer, and_, any_, bindparam, func, select

from hivemem_server.domain import limits
from hivemem_server.domain.resume import (
    AgentSeen,
    AwayReport,
    PlanProgress,
    ResumeMaterial,
    ResumeTarget,
    SessionSummary,
)
from hivemem_server.domain.values import NO_RECORD, Namespace, Point, RecordKind, StandingDecision
from hivemem_server.postgres import rows
from hivemem_server.postgres.database import Database, Query, Row, compiled
from hivemem_server.postgres.filters import NAMESPACE, UNFINISHED
from hivemem_server.postgres.log import BOUNDS
from hivemem_server.postgres.sessions import no_session, select_sessions, session
from hivemem_server.postgres.tables import agents, decisions, log, sessions, threads
from hivemem_server.postgres.threads import select_threads, thread

# The user's open session with the newest episode; without an open one, the closed one with the newest.
LATEST: LiteralString = """
SELECT s.session_key FROM sessions s
LEFT JOIN LATERAL (SELECT l.position FROM log l
                   WHERE l.namespace_id = s.namespace_id AND l.session_key = s.session_key AND l.record_kind = 1
                   ORDER BY l.position DESC LIMIT 1) newest ON true
WHERE s.namespace_id = %(namespace)s AND s.user_id = %(user)s
ORDER BY s.state, newest.position DESC NULLS LAST, s.session_key DESC LIMIT 1
"""

# The key of a session.
KEY: LiteralString = "SELECT session_key FROM sessions WHERE namespace_id = %(namespace)s AND session_id = %(session)s"

# The session and those that it continues, nearest first.
CHAIN: LiteralString = """
WITH RECURSIVE chain (session_key, continues_key, depth) AS (
    SELECT session_key, continues_key, 0 FROM sessions
    WHERE namespace_id = %(namespace)s AND session_key = %(session)s
    UNION ALL
    SELECT s.session_key, s.continues_key, c.depth + 1
    FROM chain c JOIN sessions s ON s.namespace_id = %(namespace)s AND s.session_key = c.continues_key
    WHERE c.depth < 100
)
SELECT session_key FROM chain ORDER BY depth
"""

# How far each plan with unfinished steps in these sessions has come.
PLANS: LiteralString = """
SELECT t.plan_id, coalesce(min(t.step) FILTER (WHERE t.state IN (1, 2)), 0), count(DISTINCT t.step),
       count(DISTINCT t.step) FILTER (WHERE t.state = 3), count(*) OVER ()
FROM threads t
WHERE t.namespace_id = %(namespace)s AND t.session_key = ANY(%(sessions)s) AND t.plan_id IS NOT NULL
GROUP BY t.plan_id HAVING bool_or(t.state IN (1, 2)) ORDER BY t.plan_id LIMIT %(limit)s
"""

# Who wrote to these sessions, and when last. In the index of streams it goes from one stream to the next, so that it
# reads two rows of each, however long they are.
AGENTS: LiteralString = """
WITH RECURSIVE streams (session_key, agent_key) AS (
    SELECT s.session_key, 0 FROM unnest(%(sessions)s::int[]) s (session_key)
    UNION ALL
    SELECT s.session_key, next.agent_key
    FROM streams s
    CROSS JOIN LATERAL (SELECT l.agent_key FROM log l
                        WHERE l.namespace_id = %(namespace)s AND l.session_key = s.session_key AND l.record_kind = 1
                          AND l.agent_key > s.agent_key
                        ORDER BY l.agent_key LIMIT 1) next
),
seen AS (
    SELECT DISTINCT ON (s.agent_key) s.agent_key, newest.time, newest.position
    FROM streams s
    CROSS JOIN LATERAL (SELECT l.position, l.time FROM log l
                        WHERE l.namespace_id = %(namespace)s AND l.session_key = s.session_key AND l.record_kind = 1
                          AND l.agent_key = s.agent_key
                        ORDER BY l.revision DESC LIMIT 1) newest
    ORDER BY s.agent_key, newest.position DESC
)
SELECT a.agent_id, a.created_time, seen.time, seen.position, count(*) OVER ()
FROM seen JOIN agents a ON a.namespace_id = %(namespace)s AND a.agent_key = seen.agent_key
ORDER BY seen.position DESC LIMIT %(limit)s
"""

# The last word of each of the user's other sessions.
SUMMARIES: LiteralString = """
SELECT s.session_id, s.goal, newest.summary, newest.position, newest.time
FROM sessions s
JOIN LATERAL (SELECT l.position, l.time, l.summary FROM log l
              WHERE l.namespace_id = s.namespace_id AND l.session_key = s.session_key AND l.record_kind = 1
              ORDER BY l.position DESC LIMIT 1) newest ON true
WHERE s.namespace_id = %(namespace)s AND s.user_id = %(user)s AND s.session_key <> ALL(%(sessions)s)
ORDER BY newest.position DESC LIMIT %(limit)s
"""

# What happened in these sessions after a position, by agent.
AWAY: LiteralString = """
SELECT a.agent_id, count(*) FILTER (WHERE l.record_kind = 1), sum(jsonb_array_length(l.open_threads)),
       count(*) FILTER (WHERE l.record_kind = 2 AND (l.thread_event->>'type')::int >= 4)
FROM log l LEFT JOIN agents a ON a.namespace_id = l.namespace_id AND a.agent_key = l.agent_key
WHERE l.namespace_id = %(namespace)s AND l.session_key = ANY(%(sessions)s) AND l.position > %(since)s
GROUP BY a.agent_id
"""


_CHAIN = bindparam("sessions", type_=ARRAY(Integer))
_LIMIT = bindparam("limit", type_=Integer)

_SESSIONS = compiled(
    select_sessions().where(sessions.c.namespace_id == NAMESPACE, sessions.c.session_key == any_(_CHAIN))
)

_EPISODES = compiled(
    rows.select_records()
    .where(
        log.c.namespace_id == NAMESPACE, log.c.session_key == any_(_CHAIN), log.c.record_kind == int(RecordKind.EPISODE)
    )
    .order_by(log.c.position.desc())
    .limit(_LIMIT)
)

_DECISIONS = compiled(
    select(
        log.c.decisions[decisions.c.ordinal - 1],
        agents.c.agent_id,
        sessions.c.session_id,
        log.c.position,
        log.c.record_id,
        log.c.time,
    )
    .select_from(
        decisions.join(
            rows.with_names(),
            and_(log.c.namespace_id == decisions.c.namespace_id, log.c.position == decisions.c.position),
        )
    )
    .where(
        decisions.c.namespace_id == NAMESPACE,
        decisions.c.session_key == any_(_CHAIN),
        decisions.c.superseded_by.is_(None),
    )
    .order_by(decisions.c.position.desc(), decisions.c.ordinal.desc())
    .limit(_LIMIT)
)

# How many of them there are, beyond the limit too.
_DECISION_COUNT = compiled(
    select(func.count()).where(
        decisions.c.namespace_id == NAMESPACE,
        decisions.c.session_key == any_(_CHAIN),
        decisions.c.superseded_by.is_(None),
    )
)
_THREAD_COUNT = compiled(
    select(func.count()).where(threads.c.namespace_id == NAMESPACE, threads.c.session_key == any_(_CHAIN), UNFINISHED)
)

_THREADS = compiled(
    select_threads()
    .where(threads.c.namespace_id == NAMESPACE, threads.c.session_key == any_(_CHAIN), UNFINISHED)
    .order_by(
        threads.c.plan_id.nulls_last(), threads.c.step, threads.c.priority.desc(), threads.c.position, threads.c.ordinal
    )
    .limit(_LIMIT)
)


class PostgresResume:
    """Implements ResumeStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def material(self, namespace: Namespace, target: ResumeTarget) -> ResumeMaterial:
        """See ResumeStore."""
        async with self._database.snapshot() as connection:
            reader = _Reader(connection, namespace.key)
            head = await reader.head()
            key = await reader.session_key(target)
            if key is None:
                return ResumeMaterial(session=None, left_out={}, head=head)
            chain = [row[0] for row in await reader.fetch(CHAIN, session=key)]
            return await reader.material(target, chain, head)


class _Reader:
    """Reads one snapshot."""

    def __init__(self, connection: AsyncConnection, namespace: int) -> None:
        self._connection = connection
        self._namespace = namespace

    async def fetch(self, query: LiteralString, **params: object) -> list[Row]:
        cursor = await self._connection.execute(query, params | {"namespace": self._namespace}, binary=True)
        return await cursor.fetchall()

    async def query(self, query: Query, **params: object) -> list[Row]:
        text, params_ = query.with_params(params)
        return await self.fetch(text, **params_)

    async def head(self) -> Point:
        cursor = await self._connection.execute(BOUNDS, [self._namespace])
        row = await cursor.fetchone()
        return Point(position=row[0], record_id=row[1] or NO_RECORD) if row else Point(position=0)

    async def session_key(self, target: ResumeTarget) -> int | None:
        if target.user_id:
            found = await self.fetch(LATEST, user=target.user_id)
            return found[0][0] if found else None
        found = await self.fetch(KEY, session=target.session_id)
        if not found:
            raise no_session(target.session_id)
        return int(found[0][0])

    async def material(self, target: ResumeTarget, chain: Sequence[int], head: Point) -> ResumeMaterial:
        most = limits.RESUME_ITEMS
        scope = {"sessions": list(chain)}
        found = {row[0]: session(row) for row in await self.query(_SESSIONS, **scope)}
        current, *continued = [found[key] for key in chain]
        episodes = await self.query(_EPISODES, **scope, limit=target.max_episodes)
        decided = await self.query(_DECISIONS, **scope, limit=most)
        unfinished = await self.query(_THREADS, **scope, limit=most)
        plans = await self.fetch(PLANS, **scope, limit=most)
        seen = await self.fetch(AGENTS, **scope, limit=most)
        return ResumeMaterial(
            session=current,
            continued_sessions=continued,
            episodes=[rows.episode(row) for row in reversed(episodes)],
            decisions=[_decision(row) for row in reversed(decided)],
            open_threads=[thread(row) for row in unfinished],
            plans=[_plan(row) for row in plans],
            agents=[_agent(row) for row in seen],
            summaries=await self._summaries(current.user_id, chain, target.max_summaries),
            away=await self._away(target.since, chain),
            left_out={
                "decisions": await self._left_out(_DECISION_COUNT, decided, **scope),
                "open_threads": await self._left_out(_THREAD_COUNT, unfinished, **scope),
                "plans": plans[0][-1] - len(plans) if plans else 0,
                "agents": seen[0][-1] - len(seen) if seen else 0,
            },
            head=head,
        )

    async def _left_out(self, count: Query, found: Sequence[Row], **scope: object) -> int:
        """How many rows there are beyond those found."""
        if len(found) < limits.RESUME_ITEMS:
            return 0
        return int((await self.query(count, **scope))[0][0]) - len(found)

    async def _summaries(self, user_id: str, chain: Sequence[int], most: int) -> list[SessionSummary]:
        if not user_id:
            return []
        found = await self.fetch(SUMMARIES, user=user_id, sessions=list(chain), limit=most)
        return [_summary(row) for row in found]

    async def _away(self, since: int | None, chain: Sequence[int]) -> AwayReport | None:
        if since is None:
            return None
        found = await self.fetch(AWAY, sessions=list(chain), since=since)
        return AwayReport(
            since_position=since,
            episode_counts={agent: count for agent, count, _, _ in found if count},
            opened_threads=sum(opened or 0 for _, _, opened, _ in found),
            ended_threads=sum(ended for _, _, _, ended in found),
        )


def _decision(row: Row) -> StandingDecision:
    item, agent_id, session_id, position, episode_id, time = row
    return StandingDecision(
        decision=rows.loaded_decision(item),
        agent_id=agent_id,
        session_id=session_id,
        position=position,
        episode_id=episode_id,
        time=time,
    )


def _plan(row: Row) -> PlanProgress:
    plan_id, current, total, resolved, _ = row
    return PlanProgress(plan_id=plan_id, current_step=current, total_steps=total, resolved_steps=resolved)


def _agent(row: Row) -> AgentSeen:
    agent_id, created, seen, position, _ = row
    return AgentSeen(agent_id=agent_id, create_time=created, last_seen_time=seen, last_position=position)


def _summary(row: Row) -> SessionSummary:
    session_id, goal, summary, position, time = row
    return SessionSummary(session_id=session_id, goal=goal, summary=summary, position=position, time=time)
