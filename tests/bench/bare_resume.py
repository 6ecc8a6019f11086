"""Reference SQL of resuming a session: what has to be read, one statement after the other on one connection."""

from __future__ import annotations

from typing import LiteralString

import psycopg

EPISODES, ITEMS, SUMMARIES = 10, 1_000, 10

SESSION: LiteralString = """
SELECT session_key, session_id, user_id, goal, labels, state, created_time, updated_time, closed_time
FROM sessions WHERE namespace_id = 1 AND session_id = %s
"""

LAST_EPISODES: LiteralString = """
SELECT l.position, l.record_id, l.time, a.agent_id, l.revision, l.turn, l.kind, l.summary, l.tags, l.attributes,
       l.event_time, l.decisions, l.open_threads, l.ended_threads, l.to_agents
FROM log l JOIN agents a ON a.namespace_id = 1 AND a.agent_key = l.agent_key
WHERE l.namespace_id = 1 AND l.session_key = %s AND l.record_kind = 1 ORDER BY l.position DESC LIMIT %s
"""

STANDING_DECISIONS: LiteralString = """
SELECT l.decisions->(d.ordinal - 1), a.agent_id, d.position, l.record_id, l.time
FROM decisions d
JOIN log l ON l.namespace_id = 1 AND l.position = d.position
JOIN agents a ON a.namespace_id = 1 AND a.agent_key = l.agent_key
WHERE d.namespace_id = 1 AND d.session_key = %s AND d.superseded_by IS NULL
ORDER BY d.position DESC, d.ordinal DESC LIMIT %s
"""

UNFINISHED_THREADS: LiteralString = """
SELECT t.thread_id, t.state, t.priority, t.tags, t.plan_id, t.step, t.fence, t.expire_time, a.agent_id, t.position,
       l.record_id, l.time, l.open_threads->(t.ordinal - 1)->>'text'
FROM threads t
JOIN log l ON l.namespace_id = 1 AND l.position = t.position
JOIN agents a ON a.namespace_id = 1 AND a.agent_key = t.agent_key
WHERE t.namespace_id = 1 AND t.session_key = %s AND t.state IN (1, 2)
ORDER BY t.plan_id, t.step, t.priority DESC, t.position, t.ordinal LIMIT %s
"""

PLANS: LiteralString = """
SELECT plan_id, min(step) FILTER (WHERE state IN (1, 2)), count(*), count(*) FILTER (WHERE state = 3)
FROM threads WHERE namespace_id = 1 AND session_key = %s AND plan_id IS NOT NULL GROUP BY plan_id
"""

AGENTS: LiteralString = """
SELECT a.agent_id, a.created_time, seen.time, seen.position
FROM (SELECT agent_key, max(time) AS time, max(position) AS position
      FROM log WHERE namespace_id = 1 AND session_key = %s AND record_kind = 1 GROUP BY agent_key) seen
JOIN agents a ON a.namespace_id = 1 AND a.agent_key = seen.agent_key
"""

OTHER_SESSIONS: LiteralString = """
SELECT s.session_id, s.goal, l.summary, l.position, l.time
FROM sessions s
CROSS JOIN LATERAL (SELECT summary, position, time FROM log WHERE namespace_id = 1 AND session_key = s.session_key
                    AND record_kind = 1 ORDER BY position DESC LIMIT 1) l
WHERE s.namespace_id = 1 AND s.user_id = %s AND s.session_key <> %s
ORDER BY l.position DESC LIMIT %s
"""

HEAD: LiteralString = "SELECT position, record_id FROM log WHERE namespace_id = 1 ORDER BY position DESC LIMIT 1"


def resume(connection: psycopg.Connection, session_id: str) -> int:
    """Reads all that resuming needs; returns the number of rows."""

    def rows(query: LiteralString, *parameters: object) -> list[tuple[object, ...]]:
        return connection.execute(query, parameters, prepare=True, binary=True).fetchall()

    ((key, _, user, *_),) = rows(SESSION, session_id)
    return sum(
        map(
            len,
            (
                rows(LAST_EPISODES, key, EPISODES),
                rows(STANDING_DECISIONS, key, ITEMS),
                rows(UNFINISHED_THREADS, key, ITEMS),
                rows(PLANS, key),
                rows(AGENTS, key),
                rows(OTHER_SESSIONS, user, key, SUMMARIES),
                rows(HEAD),
            ),
        )
    )
