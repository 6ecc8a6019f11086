"""What a filter means, by the words of the contract. That the database means the same is another test's part."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hivemem_server.domain.filters import AttributePredicate, Filter, Operator, TimeRange
from hivemem_server.domain.predicates import matcher
from hivemem_server.domain.values import AttributeValue, Episode, LogRecord, RecordKind, ThreadEvent, ThreadEventType

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOTH_KINDS = (RecordKind.EPISODE, RecordKind.THREAD_EVENT)
EVENT = ThreadEvent(thread_id="t", type=ThreadEventType.RESOLVED, session_id="s", agent_id="a")


def holds(wanted: Filter, content: ThreadEvent | None = None, **fields: Any) -> bool:
    """Whether the record at position 7 matches: an episode of session `s`, user `u`, agent `a`, unless it is given."""
    episode_id = uuid.uuid4()
    episode = Episode(
        episode_id=episode_id, summary="x", position=7, session_id="s", agent_id="a", revision=1, commit_time=NOW,
        **fields,
    )  # fmt: skip
    record = LogRecord(position=7, record_id=episode_id, time=NOW, content=content or episode, user_id="u")
    return matcher(wanted)(record)


def compares(stored: AttributeValue, operator: Operator, *values: AttributeValue) -> bool:
    predicate = AttributePredicate(key="k", operator=operator, values=values)
    return holds(Filter(attributes=(predicate,)), attributes={"k": stored})


@pytest.mark.parametrize(
    ("wanted", "fields"),
    [
        (Filter(), {}),
        (Filter(session_ids=("x", "s"), agent_ids=("a",), user_ids=("u",), exclude_agent_ids=("b",)), {}),
        (Filter(kinds=("note", "finding")), {"kind": "finding"}),
        (Filter(any_tags=("red", "blue")), {"tags": ("green", "blue")}),
        (Filter(all_tags=("red", "blue")), {"tags": ("blue", "green", "red")}),
        (Filter(to_agents=("a", "b")), {"to_agents": ("b",)}),
        (Filter(after=6, through=7), {}),
        (Filter(commit_time=TimeRange(start=NOW, end=NOW + timedelta(microseconds=1))), {}),
        (Filter(event_time=TimeRange(start=NOW)), {"event_time": NOW}),
    ],
    ids=str,
)
def test_a_record_matches_if_all_that_is_set_does(wanted: Filter, fields: dict[str, Any]) -> None:
    assert holds(wanted, **fields)


@pytest.mark.parametrize(
    ("wanted", "fields"),
    [
        (Filter(record_kinds=(RecordKind.THREAD_EVENT,)), {}),
        (Filter(session_ids=("s",), agent_ids=("b",)), {}),
        (Filter(exclude_agent_ids=("a",)), {}),
        (Filter(user_ids=("v",)), {}),
        (Filter(any_tags=("red",)), {"tags": ("Red",)}),
        (Filter(all_tags=("red", "blue")), {"tags": ("red",)}),
        (Filter(after=7), {}),
        (Filter(through=6), {}),
        (Filter(commit_time=TimeRange(end=NOW)), {}),
        (Filter(event_time=TimeRange(start=NOW - timedelta(days=1))), {}),
    ],
    ids=str,
)
def test_a_record_does_not_match_if_anything_set_does_not(wanted: Filter, fields: dict[str, Any]) -> None:
    assert not holds(wanted, **fields)


def test_other_records_match_by_what_they_have_only() -> None:
    assert holds(Filter(record_kinds=BOTH_KINDS, session_ids=("s",), agent_ids=("a",), user_ids=("u",)), EVENT)
    missing = AttributePredicate(key="k", operator=Operator.MISSING)
    for asked in ({"kinds": ("note",)}, {"event_time": TimeRange(end=NOW)}, {"attributes": (missing,)}):
        assert not holds(Filter(record_kinds=BOTH_KINDS, **asked), EVENT)


def test_numbers_compare_exactly_whatever_their_type() -> None:
    assert compares(1, Operator.EQUAL, 1.0)
    assert compares(2**53 + 1, Operator.GREATER, 2.0**53)
    assert compares(-(2**63), Operator.EQUAL, -(2.0**63))
    assert compares(2**63 - 1, Operator.LESS, 2.0**63)
    assert compares(0.1, Operator.IN, "0.1", 2, 0.1)


def test_text_compares_in_the_order_of_its_bytes() -> None:
    assert compares("Z", Operator.LESS, "a")
    assert compares("\U00010000", Operator.GREATER, "\uffff")
    assert compares("10", Operator.LESS_OR_EQUAL, "9")


@pytest.mark.parametrize("operator", list(Operator)[:7])
def test_values_of_other_types_are_only_ever_not_equal(operator: Operator) -> None:
    for stored, value in ((True, 1), (1, True), ("1", 1), (1, "1"), ("true", True), (True, "true")):
        assert compares(stored, operator, value) is (operator is Operator.NOT_EQUAL)


def test_truth_values_have_no_order() -> None:
    assert compares(True, Operator.EQUAL, True)
    assert not compares(True, Operator.GREATER_OR_EQUAL, True)


def test_what_is_missing_is_not_compared() -> None:
    for operator in set(Operator) - {Operator.EXISTS, Operator.MISSING}:
        predicate = AttributePredicate(key="other", operator=operator, values=(1,))
        assert not holds(Filter(attributes=(predicate,)), attributes={"k": 1})
