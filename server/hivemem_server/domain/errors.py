"""Everything that can go wrong, as one tree. Each error has the machine-readable reason of the contract.

HivememError
├── InvalidField            PageTokenMalformed  CursorMalformed  CursorForeign  VectorInvalid
├── NotFound                Namespace-, Session-, Episode-, Thread-, CursorNotFound, ModelUnknown, EpisodeErased
├── AlreadyExists           EpisodeIdReused  SessionExists  NamespaceExists
├── Conflict                RevisionConflict  ConditionFailed  CursorConflict  FenceStale
├── PreconditionFailed      SessionClosed  PartialDuplicate  ClaimHeld  ThreadStateConflict
├── CursorExpired, CursorDiverged
├── Exhausted               TooLarge  SlowConsumer  StorageFull
├── Unavailable             Overloaded  Draining  DatabaseUnavailable  EmbedderUnavailable
├── IndexBehind
└── NotImplementedYet
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Violation:
    """One violated rule of one field; `field` is its path from the request."""

    field: str
    description: str


class HivememError(Exception):
    """An error that a caller may see. `metadata` holds every number and id of the message."""

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidField(HivememError):
    """Fields are not acceptable; all violations are listed."""

    reason = "INVALID_FIELD"

    def __init__(self, violations: Sequence[Violation]) -> None:
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        super().__init__(f"{first.field}: {first.description}{more}", violation_count=len(violations))
        self.violations = tuple(violations)

    @classmethod
    def at(cls, field: str, description: str) -> InvalidField:
        """The error of one violation."""
        return cls([Violation(field, description)])


class CursorMalformed(HivememError):
    """The cursor was altered or cut."""

    reason = "CURSOR_MALFORMED"


class CursorForeign(HivememError):
    """The cursor belongs to another namespace."""

    reason = "CURSOR_FOREIGN"


class PageTokenMalformed(HivememError):
    """The page token was altered, or belongs to another request."""

    reason = "PAGE_TOKEN_MALFORMED"


class VectorInvalid(HivememError):
    """The vector does not fit its model."""

    reason = "VECTOR_INVALID"


class NotFound(HivememError):
    """Something that was named is not there."""


class NamespaceNotFound(NotFound):
    """No such namespace."""

    reason = "NAMESPACE_NOT_FOUND"


class SessionNotFound(NotFound):
    """No such session."""

    reason = "SESSION_NOT_FOUND"


class EpisodeNotFound(NotFound):
    """No such episode."""

    reason = "EPISODE_NOT_FOUND"


class EpisodeErased(NotFound):
    """The episode was erased."""

    reason = "EPISODE_ERASED"


class ThreadNotFound(NotFound):
    """No such thread."""

    reason = "THREAD_NOT_FOUND"


class CursorNotFound(NotFound):
    """No cursor was committed under that name."""

    reason = "CURSOR_NOT_FOUND"


class ModelUnknown(NotFound):
    """No such embedding model."""

    reason = "MODEL_UNKNOWN"


class AlreadyExists(HivememError):
    """Something of that name is there, and is not the same."""


class EpisodeIdReused(AlreadyExists):
    """The episode id is known with other content."""

    reason = "EPISODE_ID_REUSED"


class SessionExists(AlreadyExists):
    """The session id is taken by another user."""

    reason = "SESSION_EXISTS"


class NamespaceExists(AlreadyExists):
    """The namespace exists with other settings."""

    reason = "NAMESPACE_EXISTS"


class Conflict(HivememError):
    """Somebody else was faster."""


class RevisionConflict(Conflict):
    """The stream is not at the expected revision."""

    reason = "REVISION_CONFLICT"


class ConditionFailed(Conflict):
    """Something that matches an append condition was appended after its position."""

    reason = "CONDITION_FAILED"


class CursorConflict(Conflict):
    """The named cursor is another than was expected, or would move backwards."""

    reason = "CURSOR_CONFLICT"


class FenceStale(Conflict):
    """A newer claim or writer has taken over."""

    reason = "FENCE_STALE"


class PreconditionFailed(HivememError):
    """The state does not allow this."""


class SessionClosed(PreconditionFailed):
    """The session takes no more episodes."""

    reason = "SESSION_CLOSED"


class PartialDuplicate(PreconditionFailed):
    """Some episodes of the call are known and some are not."""

    reason = "PARTIAL_DUPLICATE"


class ClaimHeld(PreconditionFailed):
    """Another agent holds the claim."""

    reason = "CLAIM_HELD"


class ThreadStateConflict(PreconditionFailed):
    """The thread is not in a state that allows this."""

    reason = "THREAD_STATE"


class CursorExpired(HivememError):
    """The log's beginning was cut past the cursor."""

    reason = "CURSOR_EXPIRED"


class CursorDiverged(HivememError):
    """The cursor comes from another history of the log."""

    reason = "CURSOR_DIVERGED"


class Exhausted(HivememError):
    """A bound is reached."""


class TooLarge(Exhausted):
    """The call is too large and will never pass."""

    reason = "TOO_LARGE"


class SlowConsumer(Exhausted):
    """The subscriber did not read for longer than its stall timeout."""

    reason = "SLOW_CONSUMER"


class StorageFull(Exhausted):
    """The database has no room left."""

    reason = "STORAGE_FULL"


class Unavailable(HivememError):
    """Not now; `retry_seconds` says when to try again."""

    retry_seconds: ClassVar[float] = 0.5


class Overloaded(Unavailable):
    """The server's queue is full."""

    reason = "OVERLOADED"


class Draining(Unavailable):
    """The server is stopping."""

    reason = "DRAINING"


class DatabaseUnavailable(Unavailable):
    """The database does not answer, or a commit's outcome is unknown."""

    reason = "DATABASE_UNAVAILABLE"
    retry_seconds = 1.0


class EmbedderUnavailable(Unavailable):
    """The embedding model does not answer. `retry_after`, where known, is what it asked for, in seconds."""

    reason = "EMBEDDER_UNAVAILABLE"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class IndexBehind(HivememError):
    """The wait for indexing ran out."""

    reason = "INDEX_BEHIND"


class NotImplementedYet(HivememError):
    """This server does not have the method or the option."""

    reason = "NOT_IMPLEMENTED"
