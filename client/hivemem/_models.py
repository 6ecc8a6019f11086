"""What goes in and comes out: frozen values with the names of the contract.

Times are aware datetimes, ids are strings, positions and revisions count from 1. None says that something is
not set; lists that are not set are empty. What the client hands out holds tuples and dicts; what it takes may
hold any sequence.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Required, TypeAlias, TypedDict, overload

from hivemem._ids import new_episode_id

if TYPE_CHECKING:
    from datetime import datetime, timedelta

AttributeValue: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]


class Start(enum.Enum):
    """Where a subscription starts."""

    # From the first record that is retained.
    BEGINNING = "beginning"
    # Only what comes after the subscription has started.
    NOW = "now"


class RecordKind(enum.StrEnum):
    """Kinds of log records."""

    EPISODE = "episode"
    THREAD_EVENT = "thread_event"
    FACT_CHANGED = "fact_changed"
    REMOVED = "removed"


class SessionState(enum.StrEnum):
    """Whether a session takes episodes. `unknown`, here and below, comes from a newer server only."""

    UNKNOWN = "unknown"
    OPEN = "open"
    CLOSED = "closed"


class ThreadState(enum.StrEnum):
    """State of a thread."""

    UNKNOWN = "unknown"
    OPEN = "open"
    CLAIMED = "claimed"
    RESOLVED = "resolved"
    DROPPED = "dropped"


class ThreadOrder(enum.StrEnum):
    """Order of a list of threads."""

    OLDEST_FIRST = "oldest_first"
    NEWEST_FIRST = "newest_first"
    # By falling priority, then in the order they were opened.
    PRIORITY = "priority"


class ThreadEventType(enum.StrEnum):
    """What happened to a thread."""

    UNKNOWN = "unknown"
    CLAIMED = "claimed"
    RELEASED = "released"
    EXPIRED = "expired"
    RESOLVED = "resolved"
    DROPPED = "dropped"
    SUPERSEDED = "superseded"


class RemovalReason(enum.StrEnum):
    """Why a record was removed."""

    UNKNOWN = "unknown"
    RETENTION = "retention"
    ERASURE = "erasure"


class Presence(enum.StrEnum):
    """Whether an agent is there. `unknown`: it never sent a heartbeat."""

    UNKNOWN = "unknown"
    LIVE = "live"
    AWAY = "away"
    GONE = "gone"


class Shortfall(enum.StrEnum):
    """Why there may be fewer or poorer hits than asked for."""

    UNKNOWN = "unknown"
    # No more episodes match the filter and the query.
    NO_MORE_MATCHES = "no_more_matches"
    # Hits below `min_score` were left out.
    MIN_SCORE = "min_score"
    # Episodes above `indexed_position` were found by their words only.
    INDEX_BEHIND = "index_behind"
    # The embedder did not answer: words alone decided.
    EMBEDDER_UNAVAILABLE = "embedder_unavailable"
    # The last hits were left out to keep the answer small.
    RESPONSE_SIZE = "response_size"


class MessageRole(enum.StrEnum):
    """Who a message is from, in the words of chat models."""

    UNKNOWN = "unknown"
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class AttributeOperator(enum.StrEnum):
    """How an attribute is compared."""

    EQUAL = "equal"
    NOT_EQUAL = "not_equal"
    LESS = "less"
    LESS_OR_EQUAL = "less_or_equal"
    GREATER = "greater"
    GREATER_OR_EQUAL = "greater_or_equal"
    IN = "in"
    EXISTS = "exists"
    MISSING = "missing"


# ---- writing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDecision:
    """A decision to be recorded with a new episode."""

    text: str
    # Derived from the episode's id and the index if not given.
    decision_id: str | None = None
    # Ids of earlier decisions that this one replaces; they no longer stand.
    supersedes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewThread:
    """Unfinished business to be opened by a new episode."""

    text: str
    # Derived from the episode's id and the index if not given.
    thread_id: str | None = None
    # Higher is more urgent; -1,000 to 1,000.
    priority: int = 0
    tags: Sequence[str] = ()
    # The ordered plan that it is a step of, and its place in it, from 1.
    plan_id: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadReference:
    """Names a thread that an episode ends, with the fence of the writer's claim on it if it holds one."""

    thread_id: str
    fence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpisode:
    """An episode to be appended. Appending the same value twice is harmless: it carries its id."""

    summary: str
    episode_id: str = field(default_factory=new_episode_id)
    # The agent's own turn number; order does not come from it.
    turn: int | None = None
    # What sort of episode this is: `finding`, `handoff`… The server takes `note` if not given.
    kind: str | None = None
    tags: Sequence[str] = ()
    attributes: Attributes = field(default_factory=dict)
    # When it happened, by the agent's account; order does not come from it.
    event_time: datetime | None = None
    decisions: Sequence[str | NewDecision] = ()
    open_threads: Sequence[str | NewThread] = ()
    # Threads that this episode ends: as resolved, as given up, as replaced by what it opens.
    resolves: Sequence[str | ThreadReference] = ()
    drops: Sequence[str | ThreadReference] = ()
    supersedes_threads: Sequence[str | ThreadReference] = ()
    # Agents that this is addressed to. Everybody may still read it.
    to_agents: Sequence[str] = ()


class EpisodeFields(TypedDict, total=False):
    """The fields of NewEpisode as choices of a call. None is the same as not given."""

    summary: Required[str]
    decisions: Sequence[str | NewDecision]
    open_threads: Sequence[str | NewThread]
    resolves: Sequence[str | ThreadReference]
    drops: Sequence[str | ThreadReference]
    supersedes_threads: Sequence[str | ThreadReference]
    tags: Sequence[str]
    kind: str | None
    attributes: Attributes | None
    turn: int | None
    event_time: datetime | None
    to_agents: Sequence[str]
    episode_id: str | None


@dataclass(frozen=True, slots=True)
class NoStream:
    """Expects that the agent has written nothing to the session yet."""


@dataclass(frozen=True, slots=True)
class StreamExists:
    """Expects that the agent has written to the session before."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Expects that the newest episode of the stream has exactly this revision."""

    revision: int


Expectation: TypeAlias = NoStream | StreamExists | Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where one episode was stored. It is durable."""

    episode_id: str
    position: int
    revision: int
    commit_time: datetime
    # Ids of its decisions and open threads, given or derived, in order.
    decision_ids: tuple[str, ...]
    thread_ids: tuple[str, ...]
    # True if an earlier call stored it; nothing was written now.
    deduplicated: bool


# ---- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision as it was recorded."""

    decision_id: str
    text: str
    supersedes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenThread:
    """Unfinished business as an episode opened it. Its state of today is in `Thread`."""

    thread_id: str
    text: str
    priority: int = 0
    tags: tuple[str, ...] = ()
    plan_id: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One immutable record of what an agent did, as it is stored."""

    episode_id: str
    # Place in the log of the namespace.
    position: int
    session_id: str
    agent_id: str
    # Place in the stream of this agent in this session, from 1 without gaps.
    revision: int
    turn: int | None
    summary: str
    kind: str
    tags: tuple[str, ...]
    attributes: dict[str, AttributeValue]
    # When it happened, by the agent's account.
    event_time: datetime | None
    # When it was stored, by the clock of the database.
    commit_time: datetime
    decisions: tuple[Decision, ...]
    open_threads: tuple[OpenThread, ...]
    resolves: tuple[ThreadReference, ...]
    drops: tuple[ThreadReference, ...]
    supersedes_threads: tuple[ThreadReference, ...]
    to_agents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeWithNeighbours:
    """One episode with those right before and after it, all oldest first."""

    before: tuple[Episode, ...]
    episode: Episode
    after: tuple[Episode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadEvent:
    """Log record: something happened to a thread. (Opening one is the episode itself.)"""

    thread_id: str
    type: ThreadEventType
    session_id: str
    # The agent that did it, or whose claim ran out.
    agent_id: str
    episode_id: str | None
    fence: int | None
    # When the claim ends unless it is renewed.
    expire_time: datetime | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """Log record: a fact was put or deleted. The value is in the knowledge base."""

    key: str
    user_id: str | None
    version: int
    deleted: bool
    agent_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Log record: content was removed. Forget what you keep of it."""

    removed_position: int
    # None: it was not an episode.
    episode_id: str | None
    reason: RemovalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """What the log holds at one position."""

    position: int
    time: datetime
    # Relevance to the standing query of the subscription, if it has one.
    score: float | None
    kind: RecordKind
    record: Episode | ThreadEvent | FactChange | Removal


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Sequence[Episode]):
    """What came of a wait. It is itself the sequence of its episodes; empty: nothing matched in time."""

    # Log records of all the kinds that were asked for, by growing position.
    records: tuple[LogRecord, ...]
    # For the next wait. It moves even if nothing matched.
    cursor: bytes
    # Everything that matches up to here was returned.
    position: int
    # Head of the log.
    head_position: int

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """The episodes among the records."""
        return tuple(record.record for record in self.records if isinstance(record.record, Episode))

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Episode, ...]: ...
    def __getitem__(self, index: int | slice) -> Episode | tuple[Episode, ...]:
        return self.episodes[index]

    def __len__(self) -> int:
        return len(self.episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCursor:
    """The cursor that is stored under a name."""

    name: str
    cursor: bytes
    position: int
    # When it was stored, by the clock of the database.
    commit_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A lease on a thread."""

    agent_id: str
    # Grows with every claim of the thread. Carry it in calls that end the thread.
    fence: int
    lease_duration: timedelta
    claim_time: datetime
    expire_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """Unfinished business, in its state of now."""

    thread_id: str
    text: str
    state: ThreadState
    priority: int
    tags: tuple[str, ...]
    plan_id: str | None
    step: int | None
    # Where, by whom and when it was opened.
    session_id: str
    user_id: str | None
    agent_id: str
    episode_id: str
    position: int
    open_time: datetime
    # None: nobody holds one.
    claim: Claim | None
    # By whom and when it was ended. None: it has not ended, or no episode ended it.
    ended_by_agent_id: str | None
    ended_by_episode_id: str | None
    end_time: datetime | None
    # True if other threads took its place.
    superseded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """What is known of a session."""

    namespace: str
    session_id: str
    user_id: str | None
    goal: str
    labels: dict[str, str]
    state: SessionState
    continues_session_id: str | None
    create_time: datetime
    update_time: datetime
    # None: it is open.
    close_time: datetime | None
    # Position of its newest episode, and when it was stored. 0 and None: it has none.
    last_position: int
    last_episode_time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """What is known of an agent."""

    agent_id: str
    role: str
    capabilities: tuple[str, ...]
    metadata: dict[str, AttributeValue]
    presence: Presence
    create_time: datetime | None
    last_seen_time: datetime | None
    # Position of its newest episode. 0: none.
    last_position: int


# ---- choosing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributePredicate:
    """A condition on one attribute: one value, several with IN, none with EXISTS and MISSING."""

    key: str
    operator: AttributeOperator
    values: Sequence[AttributeValue] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A span of time: the first instant inside, the first one outside."""

    start_time: datetime | None = None
    end_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRange:
    """A span of the log: positions above `after`, up to and including `through`."""

    after: int = 0
    through: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which log records are meant. What is not set restricts nothing; what is set all has to match.

    A list matches if any of its values does, except for `all_tags` and `attributes`.
    """

    session_ids: Sequence[str] = ()
    agent_ids: Sequence[str] = ()
    exclude_agent_ids: Sequence[str] = ()
    # Of sessions of these users.
    user_ids: Sequence[str] = ()
    kinds: Sequence[str] = ()
    any_tags: Sequence[str] = ()
    all_tags: Sequence[str] = ()
    # Addressed to one of these agents.
    to_agents: Sequence[str] = ()
    attributes: Sequence[AttributePredicate] = ()
    # Stored in this span, by the clock of the database.
    commit_time: TimeRange | None = None
    # Happened in this span, by the agents' account.
    event_time: TimeRange | None = None
    positions: PositionRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCondition:
    """Fails an append if records that match came after a position: news that the writer has not seen."""

    filter: Filter
    after_position: int = 0


# ---- search ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How parts of the score weigh, 0 to 10. None takes the server's default; 0 switches a part off."""

    lexical_weight: float | None = None
    vector_weight: float | None = None
    neighbour_weight: float | None = None
    session_weight: float | None = None
    agent_weight: float | None = None
    recency_weight: float | None = None
    recency_half_life: timedelta | None = None
    demote_superseded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreExplanation:
    """The parts of a score. They add up to it."""

    lexical: float
    vector: float
    neighbours: float
    session: float
    agent: float
    recency: float
    superseded: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """One episode that fits."""

    episode: Episode
    # 0 to 1; comparable within one result.
    score: float
    # The part of its text that fits best; words of the query between « and ».
    snippet: str
    # None: not asked for.
    explanation: ScoreExplanation | None
    # True if a decision in it was superseded by a later one.
    superseded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult(Sequence[SearchHit]):
    """Hits, best first. It is itself the sequence of its hits."""

    hits: tuple[SearchHit, ...]
    # Every episode up to here was searched by meaning.
    indexed_position: int
    # Head of the log.
    head_position: int
    # Embedding model used. None: none was.
    model: str | None
    # Empty: there are as many hits as asked for, from a full search.
    shortfalls: tuple[Shortfall, ...]

    @overload
    def __getitem__(self, index: int) -> SearchHit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SearchHit, ...]: ...
    def __getitem__(self, index: int | slice) -> SearchHit | tuple[SearchHit, ...]:
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)


# ---- resume ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingDecision:
    """A decision that no later one has superseded, and where it was recorded."""

    decision: Decision
    agent_id: str
    session_id: str
    position: int
    episode_id: str
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """The last word of another session of the same user."""

    session_id: str
    goal: str
    summary: str
    position: int
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """How far an ordered plan has come."""

    plan_id: str
    # Step to be done next. None: none is left.
    current_step: int | None
    total_steps: int
    resolved_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayReport:
    """What happened since the caller last read."""

    since_position: int
    episode_count: int
    episode_counts: dict[str, int]
    opened_thread_count: int
    ended_thread_count: int
    # The episodes that matter most to the goal and the open threads of the session.
    highlights: tuple[Episode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message ready for a model."""

    role: MessageRole
    content: str

    def as_dict(self) -> dict[str, str]:
        """The message in the form that chat models take: `{"role": …, "content": …}`."""
        return {"role": str(self.role), "content": self.content}


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """What did not fit into the messages (`episodes`, `decisions`, `open_threads`, `plans`, `summaries`), or is missing
    from a list at its limit (`listed_` and the list's name)."""

    what: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What an agent needs to go on where a session stopped, all of one snapshot."""

    # None: the user has no session; everything else is empty then.
    session: SessionInfo | None
    # The sessions that it goes on from, nearest first.
    continued_sessions: tuple[SessionInfo, ...]
    # Its last episodes and those of the sessions it continues, oldest first.
    episodes: tuple[Episode, ...]
    decisions: tuple[StandingDecision, ...]
    # Every thread that is open or claimed: plans by step, then by priority, then oldest first.
    open_threads: tuple[Thread, ...]
    plans: tuple[PlanProgress, ...]
    agents: tuple[AgentInfo, ...]
    # Last words of the user's other sessions, newest first.
    summaries: tuple[SessionSummary, ...]
    # None: no cursor was given.
    away: AwayReport | None
    # What to put before a model, and its estimated size.
    messages: tuple[Message, ...]
    token_count: int
    omitted: tuple[Omission, ...]
    # Head of the log, and its cursor: a subscription after it misses nothing and repeats nothing.
    position: int
    cursor: bytes


# ---- namespaces and numbers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactionSettings:
    """Rules for text that must not be stored."""

    # Whether secrets are replaced before anything is stored. None: as the server is set.
    enabled: bool | None = None
    # Further kinds to replace: `email`, `phone`, `card`.
    kinds: Sequence[str] = ()
    # Further regular expressions (RE2 syntax) to replace.
    patterns: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long content is kept. None keeps for ever."""

    max_age: timedelta | None = None
    max_episodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """Bounds on what a namespace may hold. None: no bound."""

    max_episodes: int | None = None
    max_sessions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSettings:
    """What the owner of a namespace decides."""

    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    # Text search configuration of PostgreSQL. The server takes `english` if not given.
    text_language: str | None = None
    redaction: RedactionSettings = field(default_factory=RedactionSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    quota: QuotaSettings = field(default_factory=QuotaSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceInfo:
    """One isolation boundary with its log."""

    name: str
    settings: NamespaceSettings
    # First position that can be read. One above the head while the log is empty.
    first_position: int
    # Position of the newest log record. 0: none yet.
    head_position: int
    # Changes when the history of the log does (a restored database).
    log_epoch: str
    create_time: datetime
    update_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """How far the index of a model has come."""

    model: str
    dimension: int
    indexed_position: int
    vector_count: int
    set_aside_count: int
    # True for the model that searches use.
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats:
    """Numbers about the server that answered."""

    version: str
    replica_id: str
    start_time: datetime | None
    database_version: str
    embedded_database: bool
    database_bytes: int
    subscription_count: int
    pending_append_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Numbers about a namespace and the server."""

    namespace: NamespaceInfo
    session_count: int
    open_session_count: int
    agent_count: int
    episode_count: int
    open_thread_count: int
    fact_count: int
    indexes: tuple[IndexStats, ...]
    server: ServerStats
