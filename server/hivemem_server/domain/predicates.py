"""Filters as predicates: the twin of what the database is asked, for records that are in memory already."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

from hivemem_server.domain.filters import AttributePredicate, Filter, Operator, TimeRange
from hivemem_server.domain.values import AttributeValue, Episode, LogRecord, RecordKind, ThreadEvent

Matcher: TypeAlias = Callable[[LogRecord], bool]
_EpisodeTest: TypeAlias = Callable[[Episode], bool]

_CONTENTS = {RecordKind.EPISODE: Episode, RecordKind.THREAD_EVENT: ThreadEvent}
_ORDERS: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}


def matcher(wanted: Filter) -> Matcher:
    """Tells whether a record is meant by the filter, exactly as the database does.

    Made once for a filter and called for every record: one call of a function for each field that is set, until one
    does not match. The fields that most filters are told apart by come first.
    """
    found = _content(wanted)  # built from the last test to the first, each of which asks the one built before it
    if wanted.commit_time != TimeRange():
        found = _committed(wanted.commit_time, found)
    if wanted.after > 0 or wanted.through > 0:
        found = _placed(wanted.after, wanted.through, found)
    if wanted.user_ids:
        found = _of_users(frozenset(wanted.user_ids), found)
    if wanted.exclude_agent_ids:
        found = _not_by(frozenset(wanted.exclude_agent_ids), found)
    if wanted.agent_ids:
        found = _by(frozenset(wanted.agent_ids), found)
    if wanted.session_ids:
        found = _in_sessions(frozenset(wanted.session_ids), found)
    return found


def _in_sessions(ids: frozenset[str], then: Matcher) -> Matcher:
    return lambda record: record.content.session_id in ids and then(record)


def _by(ids: frozenset[str], then: Matcher) -> Matcher:
    return lambda record: record.content.agent_id in ids and then(record)


def _not_by(ids: frozenset[str], then: Matcher) -> Matcher:
    return lambda record: record.content.agent_id not in ids and then(record)


def _of_users(ids: frozenset[str], then: Matcher) -> Matcher:
    return lambda record: record.user_id in ids and then(record)


def _placed(after: int, through: int, then: Matcher) -> Matcher:
    if through > 0:
        return lambda record: after < record.position <= through and then(record)
    return lambda record: after < record.position and then(record)


def _committed(span: TimeRange, then: Matcher) -> Matcher:
    inside = _inside(span)
    return lambda record: inside(record.time) and then(record)


def _inside(span: TimeRange) -> Callable[[dt.datetime], bool]:
    start, end = span.start, span.end
    return lambda time: (start is None or start <= time) and (end is None or time < end)


def _content(wanted: Filter) -> Matcher:
    """Of one of the kinds of records; and only episodes have what the other fields ask for."""
    tests = [*_labels(wanted), *map(_attribute, wanted.attributes)]
    if not tests:
        contents = frozenset(_CONTENTS[kind] for kind in wanted.record_kinds if kind in _CONTENTS)
        return lambda record: type(record.content) in contents
    if RecordKind.EPISODE not in wanted.record_kinds:
        return lambda _: False
    holds = reduce(_both, tests)
    return lambda record: isinstance(record.content, Episode) and holds(record.content)


def _both(first: _EpisodeTest, second: _EpisodeTest) -> _EpisodeTest:
    return lambda episode: first(episode) and second(episode)


def _labels(wanted: Filter) -> list[_EpisodeTest]:
    kinds, any_tags, all_tags = frozenset(wanted.kinds), frozenset(wanted.any_tags), frozenset(wanted.all_tags)
    to_agents, inside = frozenset(wanted.to_agents), _inside(wanted.event_time)
    found: list[_EpisodeTest] = []
    if kinds:
        found.append(lambda episode: episode.kind in kinds)
    if any_tags:
        found.append(lambda episode: not any_tags.isdisjoint(episode.tags))
    if all_tags:
        found.append(lambda episode: all_tags.issubset(episode.tags))
    if to_agents:
        found.append(lambda episode: not to_agents.isdisjoint(episode.to_agents))
    if wanted.event_time != TimeRange():
        found.append(lambda episode: episode.event_time is not None and inside(episode.event_time))
    return found


def _attribute(predicate: AttributePredicate) -> _EpisodeTest:
    key = predicate.key
    match predicate.operator:
        case Operator.EXISTS:
            return lambda episode: key in episode.attributes
        case Operator.MISSING:
            return lambda episode: key not in episode.attributes
        case Operator.EQUAL | Operator.IN:
            equal = _equal_to_any(predicate.values)
            return lambda episode: key in episode.attributes and equal(episode.attributes[key])
        case Operator.NOT_EQUAL:
            equal = _equal_to_any(predicate.values)
            return lambda episode: key in episode.attributes and not equal(episode.attributes[key])
    (value,) = predicate.values
    ordered = _ordered(_ORDERS[predicate.operator], value)
    return lambda episode: key in episode.attributes and ordered(episode.attributes[key])


def _equal_to_any(values: Sequence[AttributeValue]) -> Callable[[AttributeValue], bool]:
    # Whole numbers and doubles are equal, and hash alike, exactly if they are the same number. To Python, True is 1.
    wanted = frozenset((isinstance(value, bool), value) for value in values)
    return lambda given: (isinstance(given, bool), given) in wanted


def _ordered(compare: Callable[[Any, Any], bool], value: AttributeValue) -> Callable[[AttributeValue], bool]:
    """Numbers with numbers, exactly, and text with text, whose order by code points is that of its bytes in UTF-8."""
    match value:
        case bool():
            return lambda _: False
        case str():
            return lambda given: isinstance(given, str) and compare(given, value)
    return lambda given: type(given) in (int, float) and compare(given, value)
