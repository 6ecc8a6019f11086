"""Rows to values and back: how an episode's parts look in the log's columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import and_, select
from sqlalchemy.sql import FromClause, Select

from hivemem_server.domain.values import (
    Attributes,
    Decision,
    Episode,
    LogRecord,
    NewEpisode,
    OpenThread,
    RecordKind,
    ThreadEvent,
    ThreadEventType,
    ThreadReference,
)
from hivemem_server.postgres.database import Row
from hivemem_server.postgres.tables import agents, log, sessions

_encoded = json.JSONEncoder(ensure_ascii=False).encode
_ENDINGS = (
    ("resolves", ThreadEventType.RESOLVED),
    ("drops", ThreadEventType.DROPPED),
    ("supersedes_threads", ThreadEventType.SUPERSEDED),
)

RECORD_COLUMNS = (
    log.c.position, log.c.record_kind, log.c.record_id, log.c.time, sessions.c.session_id, agents.c.agent_id,
    log.c.revision, log.c.turn, log.c.kind, log.c.summary, log.c.tags, log.c.attributes, log.c.event_time,
    log.c.decisions, log.c.open_threads, log.c.ended_threads, log.c.to_agents, log.c.thread_event,
    sessions.c.user_id,
)  # fmt: skip


def with_names() -> FromClause:
    """The log with the ids of its sessions and agents."""
    return log.outerjoin(
        sessions, and_(sessions.c.namespace_id == log.c.namespace_id, sessions.c.session_key == log.c.session_key)
    ).outerjoin(agents, and_(agents.c.namespace_id == log.c.namespace_id, agents.c.agent_key == log.c.agent_key))


def select_records() -> Select[Any]:
    """All that `record` needs."""
    return select(*RECORD_COLUMNS).select_from(with_names())


def record(row: Row) -> LogRecord:
    """A row of RECORD_COLUMNS as a log record."""
    return LogRecord(position=row[0], record_id=row[2], time=row[3], content=_content(row), user_id=row[18] or "")


def _content(row: Row) -> Episode | ThreadEvent:
    if row[1] == RecordKind.EPISODE:
        return episode(row)
    if row[1] == RecordKind.THREAD_EVENT:
        return _thread_event(row)
    raise AssertionError(f"log record {row[0]} is of kind {row[1]}, which this server does not know")


def episode(row: Row) -> Episode:
    """A row of RECORD_COLUMNS as an episode."""
    (position, _, episode_id, time, session_id, agent_id, revision, turn, kind, summary, tags, attributes, event_time,
     decisions, open_threads, ended, to_agents) = row[:17]  # fmt: skip
    ends = _ended(ended) if ended else {}
    return Episode(
        episode_id=episode_id, position=position, session_id=session_id, agent_id=agent_id, revision=revision,
        turn=turn, kind=kind, summary=summary, commit_time=time, event_time=event_time,
        tags=tuple(tags) if tags else (),
        attributes=loaded_attributes(attributes) if attributes else {},
        decisions=tuple(map(loaded_decision, decisions)) if decisions else (),
        open_threads=tuple(map(loaded_thread, open_threads)) if open_threads else (),
        to_agents=tuple(to_agents) if to_agents else (),
        **ends,
    )  # fmt: skip


def _thread_event(row: Row) -> ThreadEvent:
    detail = row[17]
    by = detail.get("episode_id")
    return ThreadEvent(
        thread_id=detail["thread_id"], type=ThreadEventType(detail["type"]), session_id=row[4] or "",
        agent_id=row[5] or "", episode_id=UUID(by) if by else None, fence=detail.get("fence", 0),
        note=detail.get("note", ""),
    )  # fmt: skip


def _ended(items: Iterable[Mapping[str, Any]]) -> dict[str, tuple[ThreadReference, ...]]:
    grouped: dict[int, list[ThreadReference]] = {}
    for item in items:
        reference = ThreadReference(thread_id=item["id"], fence=item.get("fence", 0))
        grouped.setdefault(item["how"], []).append(reference)
    return {name: tuple(grouped.get(how, ())) for name, how in _ENDINGS}


def loaded_decision(item: Mapping[str, Any]) -> Decision:
    """A decision from its JSON."""
    return Decision(decision_id=item["id"], text=item["text"], supersedes=tuple(item.get("supersedes", ())))


def loaded_thread(item: Mapping[str, Any]) -> OpenThread:
    """An open thread from its JSON."""
    return OpenThread(
        thread_id=item["id"], text=item["text"], priority=item.get("priority", 0), tags=tuple(item.get("tags", ())),
        plan_id=item.get("plan_id", ""), step=item.get("step", 0),
    )  # fmt: skip


def loaded_attributes(stored: Mapping[str, Mapping[str, Any]]) -> Attributes:
    """Typed attributes from their JSON. A double may come back as a whole number, so its letter decides."""
    return {
        key: float(number) if (number := value.get("d")) is not None else next(iter(value.values()))
        for key, value in stored.items()
    }


def dumped_attributes(attributes: Attributes) -> str | None:
    """Attributes as JSON with a letter for each type; None if there are none."""
    return _dumped({key: {_letter(value): value} for key, value in attributes.items()})


def _letter(value: object) -> str:
    match value:
        case bool():
            return "b"
        case int():
            return "i"
        case float():
            return "d"
    return "s"


def dumped_decisions(new: NewEpisode) -> str | None:
    """Decisions as JSON; None if there are none."""
    return _dumped(
        [
            {"id": d.decision_id, "text": d.text, **({"supersedes": d.supersedes} if d.supersedes else {})}
            for d in new.decisions
        ]
    )


def dumped_threads(new: NewEpisode) -> str | None:
    """Open threads as JSON without what is unset; None if there are none."""
    return _dumped(
        [
            {
                "id": t.thread_id,
                "text": t.text,
                **_set(priority=t.priority, tags=t.tags, plan_id=t.plan_id, step=t.step),
            }
            for t in new.open_threads
        ]
    )


def dumped_ended(new: NewEpisode) -> str | None:
    """The threads that the episode ends as JSON; None if there are none."""
    return _dumped(
        [
            {"id": reference.thread_id, "how": int(how), **_set(fence=reference.fence)}
            for name, how in _ENDINGS
            for reference in getattr(new, name)
        ]
    )


def _set(**fields: object) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value}


def _dumped(content: Sequence[object] | Mapping[str, object]) -> str | None:
    return _encoded(content) if content else None


def array_literal(values: Iterable[object]) -> str:
    """Texts, numbers, truth values and None as PostgreSQL writes an array."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if not isinstance(value, str):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
