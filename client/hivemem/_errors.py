"""What can go wrong, as exceptions.

    HivememError
    ├── InvalidArgument
    │   ├── InvalidField ············ `violations` lists every one
    │   ├── CursorMalformed
    │   ├── CursorForeign
    │   ├── PageTokenMalformed
    │   └── VectorInvalid
    ├── NotFound
    │   ├── NamespaceNotFound
    │   ├── SessionNotFound
    │   ├── EpisodeNotFound
    │   ├── ThreadNotFound
    │   ├── FactNotFound
    │   ├── CursorNotFound
    │   ├── OperationNotFound
    │   ├── ModelUnknown
    │   └── EpisodeErased
    ├── AlreadyExists
    │   ├── EpisodeIdReused
    │   ├── SessionExists
    │   └── NamespaceExists
    ├── Conflict ···················· read again, decide again
    │   ├── RevisionConflict ········ `expected`, `actual`
    │   ├── VersionConflict ········· `expected`, `actual`
    │   ├── ConditionFailed
    │   ├── CursorConflict ·········· `position`, `expected`, `actual`
    │   └── FenceStale ·············· `fence`, `current_fence`
    ├── FailedPrecondition
    │   ├── SessionClosed
    │   ├── PartialDuplicate
    │   ├── ClaimHeld ··············· `agent_id`
    │   ├── WrongThreadState ········ `thread_id`, `state`
    │   └── NamespaceDamaged
    ├── OutOfRange
    │   └── CursorExpired ··········· `first_position`
    ├── DataLoss
    │   └── CursorDiverged
    ├── ResourceExhausted
    │   ├── SlowConsumer
    │   ├── QuotaExceeded
    │   ├── TooLarge
    │   └── StorageFull
    ├── Unavailable ················· the client has tried again until its timeout
    │   ├── Overloaded
    │   ├── Draining
    │   ├── DatabaseUnavailable
    │   ├── EmbedderUnavailable
    │   └── ConnectionFailed ········ the server cannot be reached
    ├── DeadlineExceeded
    │   └── IndexBehind
    ├── Unimplemented
    ├── Unauthenticated
    ├── PermissionDenied
    ├── InternalError ··············· `error_id`
    └── Closed ······················ this client, subscription or writer was closed here

Every exception is made from the machine-readable reason that the server sent, never from the text of a
message. A reason that this client does not know becomes the family of its status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """One violated rule of one field."""

    # Path of the field from the request: `episodes[3].summary`.
    field: str
    # What is wrong and what would be right.
    description: str


class HivememError(Exception):
    """Root of all errors of this library.

    `reason` is the name of an ErrorReason of the contract (`SESSION_NOT_FOUND`), or of the bare gRPC status
    if the server sent no reason. `metadata` holds the numbers and ids of the message. `retry_delay` is in
    seconds; None says that trying again does not help, or that nobody knows when it would.
    """

    by_reason: ClassVar[dict[str, type[HivememError]]] = {}
    by_status: ClassVar[dict[str, type[HivememError]]] = {}
    default_reason: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_delay: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_delay = retry_delay

    def __init_subclass__(cls, *, status: str | None = None, reason: str | None = None) -> None:
        """Enters the class in the tables: a family by its gRPC status, the others by their reason."""
        super().__init_subclass__()
        if status is not None:
            cls.by_status[status] = cls
        if reason is not None:
            cls.by_reason[reason] = cls
        cls.default_reason = reason or status or cls.default_reason

    @classmethod
    def class_for(cls, reason: str | None, status: str) -> type[HivememError]:
        """The most telling class for a reason and a status, of which either may be unknown."""
        return cls.by_reason.get(reason or "") or cls.by_status.get(status, HivememError)

    def _number(self, key: str) -> int | None:
        value = self.metadata.get(key, "")
        return int(value) if value.lstrip("-").isdecimal() else None


class InvalidArgument(HivememError, status="INVALID_ARGUMENT"):
    """Something in the call is not acceptable. Fix it and send it again."""


class InvalidField(InvalidArgument, reason="INVALID_FIELD"):
    """One or more fields are not acceptable; `violations` lists every one. Nothing was written."""


class CursorMalformed(InvalidArgument, reason="CURSOR_MALFORMED"):
    """The cursor was altered or cut. Use the bytes exactly as they were received."""


class CursorForeign(InvalidArgument, reason="CURSOR_FOREIGN"):
    """The cursor belongs to another namespace."""


class PageTokenMalformed(InvalidArgument, reason="PAGE_TOKEN_MALFORMED"):
    """The page token was altered, or belongs to a request with other fields."""


class VectorInvalid(InvalidArgument, reason="VECTOR_INVALID"):
    """The vector does not fit its model, or holds NaN, infinity or only zeros."""


class NotFound(HivememError, status="NOT_FOUND"):
    """What was asked for is not there."""


class NamespaceNotFound(NotFound, reason="NAMESPACE_NOT_FOUND"):
    """No such namespace. Make it first with `Client.create_namespace`; `default` always exists."""


class SessionNotFound(NotFound, reason="SESSION_NOT_FOUND"):
    """No such session in the namespace. Make it first with `Client.session`."""


class EpisodeNotFound(NotFound, reason="EPISODE_NOT_FOUND"):
    """No such episode in the namespace."""


class ThreadNotFound(NotFound, reason="THREAD_NOT_FOUND"):
    """No such thread in the namespace."""


class FactNotFound(NotFound, reason="FACT_NOT_FOUND"):
    """No such fact, or not in that version."""


class CursorNotFound(NotFound, reason="CURSOR_NOT_FOUND"):
    """No cursor was committed under that name."""


class OperationNotFound(NotFound, reason="OPERATION_NOT_FOUND"):
    """No such operation, or it ended too long ago."""


class ModelUnknown(NotFound, reason="MODEL_UNKNOWN"):
    """The server knows no embedding model of that name."""


class EpisodeErased(NotFound, reason="EPISODE_ERASED"):
    """The episode was erased. Sending it again stores nothing."""


class AlreadyExists(HivememError, status="ALREADY_EXISTS"):
    """The id is taken."""


class EpisodeIdReused(AlreadyExists, reason="EPISODE_ID_REUSED"):
    """The episode id is known with other content. Make a new id for new content."""


class SessionExists(AlreadyExists, reason="SESSION_EXISTS"):
    """The session id is taken by another user."""


class NamespaceExists(AlreadyExists, reason="NAMESPACE_EXISTS"):
    """The namespace exists with other settings."""


class Conflict(HivememError, status="ABORTED"):
    """Somebody else was faster. Read again, decide again."""


class RevisionConflict(Conflict, reason="REVISION_CONFLICT"):
    """The stream is not in the state that the append expected."""

    @property
    def expected(self) -> str:
        """What the append expected: a revision, or the name of a state."""
        return self.metadata.get("expected", "")

    @property
    def actual(self) -> int | None:
        """Revision of the newest episode. 0: the stream has none."""
        return self._number("actual")


class VersionConflict(Conflict, reason="VERSION_CONFLICT"):
    """The fact is not at the expected version."""

    @property
    def expected(self) -> str:
        """What the call expected: a version, or the name of a state."""
        return self.metadata.get("expected", "")

    @property
    def actual(self) -> int | None:
        """Version of the fact. 0: it is not there."""
        return self._number("actual")


class ConditionFailed(Conflict, reason="CONDITION_FAILED"):
    """Something that matches a condition of the append was appended after its position."""


class CursorConflict(Conflict, reason="CURSOR_CONFLICT"):
    """The named cursor moved in the meantime, or would move backwards."""

    @property
    def position(self) -> int | None:
        """Position of the cursor that was to be stored."""
        return self._number("position")

    @property
    def expected(self) -> int | None:
        """Position of the cursor that the call expected. None: it expected nothing."""
        return self._number("expected")

    @property
    def actual(self) -> int | None:
        """Position of the cursor that is stored. None: none is."""
        return self._number("actual")


class FenceStale(Conflict, reason="FENCE_STALE"):
    """A newer claim or writer has taken over. Stop that work."""

    @property
    def fence(self) -> int | None:
        """The fence that the call carried."""
        return self._number("fence")

    @property
    def current_fence(self) -> int | None:
        """The fence that is valid now."""
        return self._number("current_fence")


class FailedPrecondition(HivememError, status="FAILED_PRECONDITION"):
    """The state of things does not allow the call."""


class SessionClosed(FailedPrecondition, reason="SESSION_CLOSED"):
    """The session is closed and takes no more episodes."""


class PartialDuplicate(FailedPrecondition, reason="PARTIAL_DUPLICATE"):
    """Some episodes of the call are known and some are not. Send the new ones in a call of their own."""


class ClaimHeld(FailedPrecondition, reason="CLAIM_HELD"):
    """Another agent holds a claim on the thread."""

    @property
    def agent_id(self) -> str:
        """The agent that holds it."""
        return self.metadata.get("agent_id", "")


class WrongThreadState(FailedPrecondition, reason="THREAD_STATE"):
    """The thread is not in a state that allows this."""

    @property
    def thread_id(self) -> str:
        """The thread."""
        return self.metadata.get("thread_id", "")

    @property
    def state(self) -> str:
        """The state that it is in."""
        return self.metadata.get("state", "")


class NamespaceDamaged(FailedPrecondition, reason="NAMESPACE_DAMAGED"):
    """The log of the namespace failed its verification; an operator has to look at it."""


class OutOfRange(HivememError, status="OUT_OF_RANGE"):
    """What was asked for lies outside of what is kept."""


class CursorExpired(OutOfRange, reason="CURSOR_EXPIRED"):
    """The beginning of the log was cut past the cursor. Start again at `first_position`."""

    @property
    def first_position(self) -> int | None:
        """First position that can be read."""
        return self._number("first_position")


class DataLoss(HivememError, status="DATA_LOSS"):
    """What was there before is not there now."""


class CursorDiverged(DataLoss, reason="CURSOR_DIVERGED"):
    """The cursor comes from another history (a restored database). Rebuild the view from the beginning."""


class ResourceExhausted(HivememError, status="RESOURCE_EXHAUSTED"):
    """A bound was reached."""


class SlowConsumer(ResourceExhausted, reason="SLOW_CONSUMER"):
    """The subscriber did not read for long. (A subscription of this library goes on by itself.)"""


class QuotaExceeded(ResourceExhausted, reason="QUOTA_EXCEEDED"):
    """A quota is used up. Try again later."""


class TooLarge(ResourceExhausted, reason="TOO_LARGE"):
    """The call is too large and will never pass. Send less in one call."""


class StorageFull(ResourceExhausted, reason="STORAGE_FULL"):
    """The database has no room left. An operator has to make some."""


class Unavailable(HivememError, status="UNAVAILABLE"):
    """The server cannot do it now. The client tried again until the timeout of the call was over."""


class Overloaded(Unavailable, reason="OVERLOADED"):
    """The queue of the server is full."""


class Draining(Unavailable, reason="DRAINING"):
    """The server is stopping."""


class DatabaseUnavailable(Unavailable, reason="DATABASE_UNAVAILABLE"):
    """The database does not answer, or a commit's outcome is unknown. Sending the same call again is safe."""


class EmbedderUnavailable(Unavailable, reason="EMBEDDER_UNAVAILABLE"):
    """The embedding model does not answer."""


class ConnectionFailed(Unavailable):
    """The server cannot be reached, or the connection to it was lost."""

    default_reason = "CONNECTION_FAILED"


class DeadlineExceeded(HivememError, status="DEADLINE_EXCEEDED"):
    """No answer came within the timeout of the call. Whether it was carried out is not known."""


class IndexBehind(DeadlineExceeded, reason="INDEX_BEHIND"):
    """The wait for indexing ran out. Search anyway: text is searchable at once."""


class Unimplemented(HivememError, status="UNIMPLEMENTED", reason="NOT_IMPLEMENTED"):
    """This server does not have the method, or the option that was asked for."""


class Unauthenticated(HivememError, status="UNAUTHENTICATED", reason="UNAUTHENTICATED"):
    """No credentials, or not valid ones."""


class PermissionDenied(HivememError, status="PERMISSION_DENIED", reason="PERMISSION_DENIED"):
    """The credentials do not allow this."""


class InternalError(HivememError, status="INTERNAL", reason="INTERNAL"):
    """A bug. The log of the server has the details under `error_id`."""

    @property
    def error_id(self) -> str:
        """Under which the log of the server has the details."""
        return self.metadata.get("error_id", "")


class Closed(HivememError):
    """This client, subscription or writer was closed here."""

    default_reason = "CLOSED"
