"""Reference SQL of a search by words: match, rank, and the episodes of the best. One statement."""

from __future__ import annotations

from typing import LiteralString

import psycopg

LIMIT = 10

SEARCH: LiteralString = """
WITH best AS (
    SELECT l.position, ts_rank(l.search, q, 1) AS rank
    FROM log l, to_tsquery('english', %s) q
    WHERE l.namespace_id = 1 AND l.search @@ q AND l.record_kind = 1
    ORDER BY rank DESC, l.position DESC LIMIT %s
)
SELECT b.rank, l.position, l.record_id, l.time, s.session_id, a.agent_id, l.revision, l.turn, l.kind, l.summary, l.tags,
       l.attributes, l.event_time, l.decisions, l.open_threads, l.ended_threads, l.to_agents
FROM best b
JOIN log l ON l.namespace_id = 1 AND l.position = b.position
JOIN sessions s ON s.namespace_id = 1 AND s.session_key = l.session_key
JOIN agents a ON a.namespace_id = 1 AND a.agent_key = l.agent_key
ORDER BY b.rank DESC, b.position DESC
"""


def search(connection: psycopg.Connection, text: str) -> int:
    """Finds episodes with any of the words; returns how many."""
    cursor = connection.execute(SEARCH, [" | ".join(text.split()), LIMIT], prepare=True, binary=True)
    return len(cursor.fetchall())
