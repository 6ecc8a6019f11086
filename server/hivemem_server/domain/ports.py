"""What the domain needs from storage, as contracts. Adapters are in `hivemem_server.postgres`.

Common to all: a method is one snapshot of the database; it raises DatabaseUnavailable when the database does not answer
within its deadline, StorageFull when it has no room, and nothing of a write remains after an error, except that the
outcome of a write which ends in DatabaseUnavailable is unknown.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from hivemem_server.domain.appends import Append
from hivemem_server.domain.embedder import EmbeddingModel
from hivemem_server.domain.errors import HivememError
from hivemem_server.domain.filters import Filter, SessionFilter, ThreadFilter
from hivemem_server.domain.ranking import Candidate
from hivemem_server.domain.resume import ResumeMaterial, ResumeTarget
from hivemem_server.domain.values import (
    AppendOutcome,
    Episode,
    LogRecord,
    NamedCursor,
    Namespace,
    NamespaceSettings,
    Point,
    Session,
    Thread,
    ThreadOrder,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One stretch of the log, read in one snapshot. Everything that matches up to `end` is in `records`.

    `begin` is the point that it begins after, as the log has it now; its id is nil if no record is there.
    """

    begin: Point
    records: Sequence[LogRecord]
    end: Point
    head: int
    floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """The log's ends in one snapshot; the readable positions are `floor < position <= head.position`."""

    head: Point
    floor: int


class NamespaceStore(Protocol):
    """Namespaces."""

    async def create(self, name: str, settings: NamespaceSettings) -> tuple[Namespace, bool]:
        """Makes it, or returns the one there and False; atomic."""
        ...

    async def get(self, name: str) -> Namespace:
        """The namespace as it is now. Raises NamespaceNotFound."""
        ...

    async def resolve(self, name: str) -> Namespace:
        """As `get`, but what it returns may be some seconds old; head and floor are not to be used."""
        ...

    async def page(self, after: str, limit: int) -> list[Namespace]:
        """Namespaces by name, after one."""
        ...

    async def update(self, name: str, changes: Mapping[str, object]) -> Namespace:
        """Changes those fields of NamespaceSettings. Raises NamespaceNotFound."""
        ...

    async def delete(self, name: str) -> int:
        """Removes it with all that it holds; returns the number of log records. Raises NamespaceNotFound."""
        ...


class SessionStore(Protocol):
    """Sessions of a namespace."""

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
        """Makes it, or returns the one there and False; atomic. Raises SessionExists, SessionNotFound."""
        ...

    async def get(self, namespace: Namespace, session_id: str) -> Session:
        """One session. Raises SessionNotFound."""
        ...

    async def page(
        self, namespace: Namespace, wanted: SessionFilter, before: int, limit: int
    ) -> list[tuple[int, Session]]:
        """Sessions, newest first, each with the internal key to give as `before` for those after it; 0 begins."""
        ...

    async def update(
        self, namespace: Namespace, session_id: str, *, goal: str | None, labels: Mapping[str, str] | None
    ) -> Session:
        """Changes what is not None. Raises SessionNotFound."""
        ...

    async def close(self, namespace: Namespace, session_id: str) -> Session:
        """Closes it. No append that is ordered after it succeeds. Raises SessionNotFound."""
        ...


class LogStore(Protocol):
    """The log of a namespace: one order, no gaps, append only."""

    async def append(self, namespace: Namespace, appends: Sequence[Append]) -> list[AppendOutcome | HivememError]:
        """Stores each append or refuses it, in one durable transaction; an outcome or an error for each, in order.

        Whoever reads positions in order can never miss one: they become visible in their order. An append that is known
        returns what was stored the first time, whatever it expects.
        """
        ...

    async def bounds(self, namespace: Namespace) -> LogBounds:
        """The log's ends."""
        ...

    async def heads(self, namespace_keys: Sequence[int]) -> dict[int, int]:
        """Head positions of several logs, in one query. Logs that are gone are left out."""
        ...

    async def point(self, namespace: Namespace, position: int) -> Point | None:
        """The point of a position that is held; None if there is no record."""
        ...

    async def history(self, namespace: Namespace, position: int) -> tuple[Point, int]:
        """What the log has at a position, its id nil if there is no record, and the floor, in one snapshot."""
        ...

    async def position_at(self, namespace: Namespace, time: dt.datetime) -> int:
        """The last position that was committed at or before the time; the floor if none was."""
        ...

    async def window(self, namespace: Namespace, wanted: Filter, after: int, span: int, limit: int) -> Window:
        """Up to `limit` matching records of the next `span` positions, with the log's ends, in one snapshot."""
        ...

    async def page(
        self, namespace: Namespace, wanted: Filter, limit: int, *, newest_first: bool = False
    ) -> list[Episode]:
        """Up to `limit` matching episodes by position."""
        ...

    async def get(self, namespace: Namespace, *, episode_id: UUID | None = None, position: int = 0) -> Episode:
        """One episode by either key. Raises EpisodeNotFound, EpisodeErased."""
        ...

    async def neighbours(
        self, namespace: Namespace, episode: Episode, before: int, after: int, *, same_agent: bool
    ) -> tuple[list[Episode], list[Episode]]:
        """Episodes right before and right after in its session, oldest first."""
        ...


class HintedHeads(Protocol):
    """Takes what other replicas tell of their commits. A hint may be lost, come twice, or late: it can only help."""

    def hint(self, namespace_key: int, epoch: UUID, position: int) -> None:
        """The log has come to `position` at least. Ignored unless somebody follows that log, in that epoch."""
        ...

    def rely_on_hints(self, reliable: bool) -> None:
        """Whether hints come. When this changes, what they did not tell is looked for at once."""
        ...


class CursorStore(Protocol):
    """The places that readers left under names. Each write is one statement: safe from several replicas at once."""

    async def get(self, namespace: Namespace, name: str) -> NamedCursor | None:
        """What is stored under the name."""
        ...

    async def advance(self, namespace: Namespace, name: str, point: Point) -> bool:
        """Stores it unless something at a higher position is stored; False if so, or if the namespace is gone."""
        ...

    async def begin(self, namespace: Namespace, name: str, point: Point) -> bool:
        """Stores it unless anything is stored; False if so, or if the namespace is gone."""
        ...

    async def exchange(self, namespace: Namespace, name: str, epoch: UUID, there: Point, point: Point) -> bool:
        """Stores it, wherever it is, if exactly `there` of the epoch is stored; False if not."""
        ...


class ThreadStore(Protocol):
    """Threads of a namespace."""

    async def page(
        self, namespace: Namespace, wanted: ThreadFilter, order: ThreadOrder, after: Sequence[int], limit: int
    ) -> list[tuple[Sequence[int], Thread]]:
        """Threads in order, each with the key to give as `after` for those after it; empty begins."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What a search found, in one snapshot. `full_lexical` is what a text made of the query's words would get."""

    candidates: Sequence[Candidate]
    full_lexical: float
    indexed_position: int
    head: int


class SearchStore(Protocol):
    """Finds candidates for ranking, and keeps vectors. Vectors are of unit length."""

    async def candidates(
        self,
        namespace: Namespace,
        wanted: Filter,
        *,
        text: str,
        vector: Sequence[float] | None,
        model: EmbeddingModel | None,
        limit: int,
    ) -> Candidates:
        """The best `limit` by words united with the best `limit` by meaning, the filter applied inside both."""
        ...

    async def indexed_position(self, namespace: Namespace, model: EmbeddingModel) -> int:
        """Everything up to here is indexed with the model, or set aside."""
        ...

    async def scores(
        self, namespace: Namespace, model: EmbeddingModel, vector: Sequence[float], positions: Sequence[int]
    ) -> dict[int, float]:
        """How close the vectors of these episodes are, 0 to 1, by position; what has no vector is left out."""
        ...

    async def register_model(self, model: EmbeddingModel) -> None:
        """Makes room for the model's vectors. Raises ModelMismatch if it is known with another dimension."""
        ...


class ResumeStore(Protocol):
    """What resuming needs."""

    async def material(self, namespace: Namespace, target: ResumeTarget) -> ResumeMaterial:
        """Everything about one session, in one snapshot; without a session if the user has none.

        Raises SessionNotFound for an unknown session id.
        """
        ...


class IndexStore(Protocol):
    """The indexer's side of the log: what is to be embedded, and where the vectors go."""

    async def take(self, model: EmbeddingModel, holder: UUID, lease: dt.timedelta, limit: int) -> IndexWork | None:
        """The next episodes of one namespace that has any to index, under a lease, so that one replica does them."""
        ...

    async def release(self, holder: UUID) -> None:
        """Gives back the leases of a replica that stops, so that others need not wait for their end."""
        ...

    async def put(
        self, work: IndexWork, model: EmbeddingModel, vectors: Sequence[Sequence[float] | None], refusal: str
    ) -> None:
        """Stores the vectors, sets those without one aside for the reason, and moves the position; all or nothing.

        Gives the lease back when the index has caught up. Stores nothing if another replica has taken over meanwhile.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWork:
    """Episodes of one namespace to embed. Everything up to `through` is done with them; `more` may lie behind it."""

    namespace_key: int
    holder: UUID
    positions: Sequence[int]
    passages: Sequence[str]
    through: int
    more: bool


class IndexWatch(Protocol):
    """Tells how far the index has come, for those that wait for it."""

    async def reaches(self, namespace: Namespace, model: EmbeddingModel, position: int, seconds: float) -> bool:
        """Waits until everything up to `position` is indexed or set aside: True then, False when the time is over."""
        ...

    async def news(self, namespace: Namespace, seconds: float) -> None:
        """Waits until this replica has indexed something of the namespace, at most so long."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """How far a model's index of a namespace has come."""

    model: str
    dimension: int
    position: int
    vectors: int
    set_aside: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceStats:
    """Numbers about a namespace."""

    sessions: int
    open_sessions: int
    agents: int
    episodes: int
    open_threads: int
    indexes: Sequence[IndexStats]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseStats:
    """Numbers about the database; `size` is in bytes."""

    version: str
    size: int


class StatsStore(Protocol):
    """Numbers for those who run the server."""

    async def namespace(self, namespace: Namespace) -> NamespaceStats:
        """Counts of what the namespace holds."""
        ...

    async def database(self) -> DatabaseStats:
        """Version and size."""
        ...
