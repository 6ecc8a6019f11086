"""One tree of errors, one table to statuses, and details that fit into trailers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.rpc import error_details_pb2, status_pb2
from hivemem.v1.error_reason_pb2 import ErrorReason
from hivemem_server.domain import errors
from hivemem_server.domain.errors import HivememError, InvalidField, Violation
from hivemem_server.rpc import status

REASONS = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()} - {"UNSPECIFIED"}  # noqa: SIM118


def tree(root: type[HivememError]) -> Iterator[type[HivememError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_the_table_has_a_status_for_every_reason_of_the_contract() -> None:
    assert set(status.CODES) == REASONS


def test_every_error_of_the_domain_has_a_reason_of_the_contract() -> None:
    assert {error.reason for error in tree(HivememError)} <= REASONS


def test_every_error_of_the_domain_is_drawn_in_its_tree() -> None:
    drawn = (errors.__doc__ or "").replace("-, ", "NotFound ")
    for error in tree(HivememError):
        if error.__module__ == errors.__name__:
            assert error.__name__ in drawn, error


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_the_details_of_an_error_are_at_most_four_kib(size: int) -> None:
    violations = [Violation(f"episodes[{number}].summary" + "é" * 500, "x" * 500) for number in range(size)]
    error = InvalidField(violations)
    error.metadata.update({f"key{number}": "ü" * 1_000 for number in range(20)})
    ((_, details),) = status.trailers(error)
    assert len(details) + len(status.message(error).encode()) <= 4 * 1024
    parsed = status_pb2.Status.FromString(details)
    info = error_details_pb2.ErrorInfo()
    assert parsed.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("INVALID_FIELD", "hivemem.dev")


def test_a_bug_says_nothing_of_the_inside() -> None:
    seen = status.known(ZeroDivisionError("secret of the inside"), "/hivemem.v1.X/Y")
    assert seen.reason == "INTERNAL"
    assert "secret" not in seen.message
    assert seen.metadata["error_id"] in seen.message
