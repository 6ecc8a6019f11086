from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import hivemem
import pytest
from fix_scripted import packed
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from hivemem import _convert
from hivemem._errors import HivememError
from hivemem.v1.error_reason_pb2 import ErrorReason

if TYPE_CHECKING:
    from google.protobuf.message import Message

REASONS = [name.removeprefix("ERROR_REASON_") for name, number in ErrorReason.items() if number]


def details(*parts: Message) -> bytes:
    serialized: bytes = status_pb2.Status(details=[packed(part) for part in parts]).SerializeToString()
    return serialized


def info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain="hivemem.dev", metadata=metadata)


def test_every_reason_of_the_contract_has_a_class() -> None:
    assert set(HivememError.by_reason) == set(REASONS)


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_decides_whatever_the_status_is(reason: str) -> None:
    error = _convert.status_error("UNKNOWN", "a sentence", details(info(reason)))
    assert type(error) is HivememError.by_reason[reason]
    assert (error.reason, str(error)) == (reason, "a sentence")


def test_every_class_can_be_had_from_the_package() -> None:
    for known in (*HivememError.by_reason.values(), *HivememError.by_status.values()):
        assert getattr(hivemem, known.__name__) is known


def test_an_unknown_reason_falls_back_on_the_family_of_its_status() -> None:
    error = _convert.status_error("ABORTED", "new", details(info("FROM_THE_FUTURE", answer="42")))
    assert type(error) is hivemem.Conflict
    assert (error.reason, error.metadata) == ("FROM_THE_FUTURE", {"answer": "42"})


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("RESOURCE_EXHAUSTED", hivemem.ResourceExhausted),
        ("UNIMPLEMENTED", hivemem.Unimplemented),
        ("UNKNOWN", hivemem.HivememError),
    ],
)
def test_a_bare_status_is_mapped_by_its_code(status: str, expected: type[HivememError]) -> None:
    error = _convert.status_error(status, "", None)
    assert type(error) is expected
    assert (error.reason, str(error)) == (status, status)


def test_details_that_cannot_be_read_are_as_good_as_none() -> None:
    assert type(_convert.status_error("NOT_FOUND", "?", b"\xff\xff")) is hivemem.NotFound


def test_violations_and_the_delay_come_along() -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="episodes[0].summary", description="is empty")
    error = _convert.status_error(
        "INVALID_ARGUMENT",
        "refused",
        details(
            info("INVALID_FIELD"),
            error_details_pb2.BadRequest(field_violations=[violation]),
            error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000)),
        ),
    )
    assert error.violations == (hivemem.FieldViolation(field="episodes[0].summary", description="is empty"),)
    assert error.retry_delay == 1.5


def test_numbers_of_the_metadata_are_attributes() -> None:
    error = _convert.status_error("ABORTED", "", details(info("REVISION_CONFLICT", expected="3", actual="5")))
    assert isinstance(error, hivemem.RevisionConflict)
    assert (error.expected, error.actual) == ("3", 5)


def test_an_error_survives_pickling() -> None:
    error = _convert.status_error("NOT_FOUND", "gone", details(info("SESSION_NOT_FOUND", session_id="s")))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.metadata) == (hivemem.SessionNotFound, "gone", {"session_id": "s"})


def test_names_in_tracebacks_are_those_of_the_package() -> None:
    assert hivemem.SessionNotFound.__module__ == "hivemem"
