"""The words of hivemem as values: frozen, typed, without behaviour of storage or wire."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from hivemem.redaction import Rules

AttributeValue: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]


class RecordKind(enum.IntEnum):
    """What a log record is. The numbers are those of the contract and of the table."""

    EPISODE = 1
    THREAD_EVENT = 2
    FACT_CHANGED = 3
    REMOVED = 4


class SessionState(enum.IntEnum):
    """Whether a session takes episodes."""

    OPEN = 1
    CLOSED = 2


class ThreadState(enum.IntEnum):
    """State of a thread."""

    OPEN = 1
    CLAIMED = 2
    RESOLVED = 3
    DROPPED = 4


class ThreadEventType(enum.IntEnum):
    """What happened to a thread."""

    CLAIMED = 1
    RELEASED = 2
    EXPIRED = 3
    RESOLVED = 4
    DROPPED = 5
    SUPERSEDED = 6


class ThreadOrder(enum.IntEnum):
    """Order of a list of threads."""

    OLDEST_FIRST = 1
    NEWEST_FIRST = 2
    PRIORITY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """One isolation boundary. `key` is internal; `digest_key` keys the digests of its episodes."""

    key: int
    name: str
    epoch: UUID
    digest_key: bytes
    settings: NamespaceSettings
    floor: int
    head: int
    create_time: dt.datetime
    update_time: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSettings:
    """What a namespace's owner decides."""

    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    text_language: str = "english"
    redaction: Rules = field(default_factory=Rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One shared piece of work."""

    session_id: str
    user_id: str
    goal: str
    labels: Mapping[str, str]
    state: SessionState
    continues_session_id: str
    create_time: dt.datetime
    update_time: dt.datetime
    close_time: dt.datetime | None
    last_position: int
    last_episode_time: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Something that was decided. Its id is unique in the namespace."""

    decision_id: str
    text: str
    supersedes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenThread:
    """Unfinished business as an episode opens it."""

    thread_id: str
    text: str
    priority: int = 0
    tags: tuple[str, ...] = ()
    plan_id: str = ""
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadReference:
    """Names a thread that an episode ends; `fence` 0 means that none is carried."""

    thread_id: str
    fence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpisode:
    """An episode to be appended; ids that were left out are derived already."""

    episode_id: UUID
    summary: str
    kind: str = "note"
    turn: int = 0
    tags: tuple[str, ...] = ()
    attributes: Attributes = field(default_factory=dict)
    event_time: dt.datetime | None = None
    decisions: tuple[Decision, ...] = ()
    open_threads: tuple[OpenThread, ...] = ()
    resolves: tuple[ThreadReference, ...] = ()
    drops: tuple[ThreadReference, ...] = ()
    supersedes_threads: tuple[ThreadReference, ...] = ()
    to_agents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode(NewEpisode):
    """An episode as it is stored."""

    position: int
    session_id: str
    agent_id: str
    revision: int
    commit_time: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadEvent:
    """Something happened to a thread."""

    thread_id: str
    type: ThreadEventType
    session_id: str
    agent_id: str
    episode_id: UUID | None = None
    fence: int = 0
    expire_time: dt.datetime | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """What the log holds at one position. `user_id` is the user of its session; `score` is the relevance to a query."""

    position: int
    record_id: UUID
    time: dt.datetime
    content: Episode | ThreadEvent
    user_id: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A lease on a thread."""

    agent_id: str
    fence: int
    lease: dt.timedelta
    claim_time: dt.datetime
    expire_time: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """Unfinished business in its state of now."""

    opened: OpenThread
    state: ThreadState
    session_id: str
    user_id: str
    agent_id: str
    episode_id: UUID
    position: int
    open_time: dt.datetime
    claim: Claim | None = None
    ended_by_agent_id: str = ""
    ended_by_episode_id: UUID | None = None
    end_time: dt.datetime | None = None
    superseded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingDecision:
    """A decision that no later one has superseded."""

    decision: Decision
    agent_id: str
    session_id: str
    position: int
    episode_id: UUID
    time: dt.datetime


class StreamState(enum.IntEnum):
    """What a writer expects of the stream; REVISION goes with a number."""

    ANY = 0
    NO_STREAM = 1
    EXISTS = 2
    REVISION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a writer believes of the stream."""

    state: StreamState = StreamState.ANY
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where one episode was stored."""

    position: int
    revision: int
    commit_time: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOutcome:
    """Where the episodes of one append were stored, in the order sent."""

    stored: tuple[Stored, ...]
    deduplicated: bool


NO_RECORD = UUID(int=0)  # where there is none, or none any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place in the log: a position, and the id of the record there, by which another history is told."""

    position: int
    record_id: UUID = NO_RECORD


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCursor:
    """The place that a reader left under a name; `epoch` is the log's when it did."""

    epoch: UUID
    point: Point
    commit_time: dt.datetime
