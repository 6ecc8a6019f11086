"""The least that reading the log can cost: psycopg reads rows and protobuf encodes them, nothing else."""

from __future__ import annotations

import datetime as dt
from typing import Any, LiteralString

import psycopg
from hivemem.v1 import types_pb2
from hivemem.v1.episode_service_pb2 import SubscribeEpisodesResponse

BATCH = 500  # records in a message, as the contract has it by default
EPISODE = 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)

READ: LiteralString = """
SELECT l.position, l.record_id, l.time, s.session_id, a.agent_id, l.revision, l.turn, l.kind, l.summary, l.tags,
       l.attributes, l.event_time, l.decisions, l.open_threads, l.ended_threads, l.to_agents
FROM log l
JOIN sessions s ON s.namespace_id = l.namespace_id AND s.session_key = l.session_key
JOIN agents a ON a.namespace_id = l.namespace_id AND a.agent_key = l.agent_key
WHERE l.namespace_id = 1 AND l.position > %s AND l.record_kind = 1
ORDER BY l.position LIMIT %s
"""


def read_log(connection: psycopg.Connection, after: int, count: int) -> int:
    """Reads so many episodes in batches and encodes them; returns their bytes."""
    size, position, end = 0, after, after + count
    while position < end:
        rows = connection.execute(READ, [position, BATCH], prepare=True, binary=True).fetchall()
        size += len(_encoded(rows))
        position = rows[-1][0]
    return size


def _encoded(rows: list[tuple[Any, ...]]) -> bytes:
    response = SubscribeEpisodesResponse()
    for row in rows:
        _add(response.batch.records.add(), row)
    response.batch.position = rows[-1][0]
    return response.SerializeToString()


def _add(record: types_pb2.LogRecord, row: tuple[Any, ...]) -> None:
    (position, episode_id, time, session, agent, revision, turn, kind, summary, tags, _, _, decisions, threads, _,
     to_agents) = row  # fmt: skip
    seconds, micros = divmod((time - _EPOCH) // _MICROSECOND, 1_000_000)
    record.position = position
    record.time.seconds, record.time.nanos = seconds, micros * 1_000
    episode = record.episode
    episode.episode_id, episode.position, episode.revision, episode.turn = str(episode_id), position, revision, turn
    episode.session_id, episode.agent_id, episode.kind, episode.summary = session, agent, kind, summary
    episode.commit_time.CopyFrom(record.time)
    episode.tags.extend(tags or ())
    episode.to_agents.extend(to_agents or ())
    for item in decisions or ():
        episode.decisions.add(decision_id=item["id"], text=item["text"])
    for item in threads or ():
        episode.open_threads.add(thread_id=item["id"], text=item["text"])
