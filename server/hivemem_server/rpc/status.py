"""Errors as statuses: the one table from reasons to codes, and the details that go with them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from hivemem.redaction import Redactor
from hivemem.v1.error_reason_pb2 import ErrorReason

from hivemem_server.domain.errors import HivememError, InvalidField, Unavailable

_log = structlog.get_logger()
_redactor = Redactor()

DOMAIN = "hivemem.dev"
DETAILS_KEY = "grpc-status-details-bin"

# Together at most 4 KiB: larger trailers would take the place of the error itself.
MESSAGE_BYTES = 512
METADATA_BYTES = 768
VIOLATIONS_BYTES = 1_900

CODES: Mapping[str, grpc.StatusCode] = {
    "INVALID_FIELD": grpc.StatusCode.INVALID_ARGUMENT,
    "CURSOR_MALFORMED": grpc.StatusCode.INVALID_ARGUMENT,
    "CURSOR_FOREIGN": grpc.StatusCode.INVALID_ARGUMENT,
    "PAGE_TOKEN_MALFORMED": grpc.StatusCode.INVALID_ARGUMENT,
    "VECTOR_INVALID": grpc.StatusCode.INVALID_ARGUMENT,
    "NAMESPACE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "SESSION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "EPISODE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "THREAD_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "FACT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CURSOR_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "OPERATION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "MODEL_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "EPISODE_ERASED": grpc.StatusCode.NOT_FOUND,
    "EPISODE_ID_REUSED": grpc.StatusCode.ALREADY_EXISTS,
    "SESSION_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "NAMESPACE_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "REVISION_CONFLICT": grpc.StatusCode.ABORTED,
    "VERSION_CONFLICT": grpc.StatusCode.ABORTED,
    "CONDITION_FAILED": grpc.StatusCode.ABORTED,
    "CURSOR_CONFLICT": grpc.StatusCode.ABORTED,
    "FENCE_STALE": grpc.StatusCode.ABORTED,
    "SESSION_CLOSED": grpc.StatusCode.FAILED_PRECONDITION,
    "PARTIAL_DUPLICATE": grpc.StatusCode.FAILED_PRECONDITION,
    "CLAIM_HELD": grpc.StatusCode.FAILED_PRECONDITION,
    "THREAD_STATE": grpc.StatusCode.FAILED_PRECONDITION,
    "NAMESPACE_DAMAGED": grpc.StatusCode.FAILED_PRECONDITION,
    "CURSOR_EXPIRED": grpc.StatusCode.OUT_OF_RANGE,
    "CURSOR_DIVERGED": grpc.StatusCode.DATA_LOSS,
    "SLOW_CONSUMER": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "QUOTA_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_LARGE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "STORAGE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "OVERLOADED": grpc.StatusCode.UNAVAILABLE,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "DATABASE_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "EMBEDDER_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "INDEX_BEHIND": grpc.StatusCode.DEADLINE_EXCEEDED,
    "NOT_IMPLEMENTED": grpc.StatusCode.UNIMPLEMENTED,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}


class Bug(HivememError):
    """A fault of ours; nothing of the inside leaks, the log has it under the id."""


def known(error: Exception, method: str) -> HivememError:
    """The error as a caller may see it; one that is none of the domain's is logged and named by an id."""
    if isinstance(error, HivememError):
        return error
    error_id = uuid.uuid4().hex
    _log.error("a bug", method=method, error_id=error_id, exc_info=error)
    return Bug(f"a fault of the server, logged under {error_id}", error_id=error_id)


def code(error: HivememError) -> grpc.StatusCode:
    """The status code of an error."""
    return CODES[error.reason]


def reason_number(error: HivememError) -> ErrorReason.ValueType:
    """The reason as the contract's enum has it."""
    return ErrorReason.Value(f"ERROR_REASON_{error.reason}")


def trailers(error: HivememError) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata with the error's details, at most 4 KiB."""
    details = [_error_info(error), *_bad_request(error), *_retry_info(error)]
    status = status_pb2.Status(code=code(error).value[0], message=message(error))
    status.details.extend(_packed(detail) for detail in details)
    return ((DETAILS_KEY, status.SerializeToString()),)


def message(error: HivememError) -> str:
    """The sentence for people, without secrets that the caller sent, within bounds."""
    return _cut(_redactor.redact(error.message[:MESSAGE_BYTES]), MESSAGE_BYTES)


def _error_info(error: HivememError) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    room = METADATA_BYTES
    for key, value in error.metadata.items():
        shown = _cut(_redactor.redact(value[:200]), 200)
        room -= len(key) + len(shown.encode()) + 8
        if room < 0:
            break
        info.metadata[key] = shown
    return info


def _bad_request(error: HivememError) -> list[error_details_pb2.BadRequest]:
    if not isinstance(error, InvalidField):
        return []
    bad = error_details_pb2.BadRequest()
    for index, violation in enumerate(error.violations):
        if bad.ByteSize() > VIOLATIONS_BYTES - 300:
            bad.field_violations.add(field="*", description=f"and {len(error.violations) - index} more violations")
            break
        field, description = _redactor.redact(violation.field[:100]), _redactor.redact(violation.description[:180])
        bad.field_violations.add(field=_cut(field, 100), description=_cut(description, 180))
    return [bad]


def _cut(text: str, most: int) -> str:
    """The text within `most` bytes, fit to be sent."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _retry_info(error: HivememError) -> list[error_details_pb2.RetryInfo]:
    if not isinstance(error, Unavailable):
        return []
    delay = Duration()
    delay.FromMilliseconds(int(error.retry_seconds * 1_000))
    return [error_details_pb2.RetryInfo(retry_delay=delay)]


def _packed(detail: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed
