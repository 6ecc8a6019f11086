"""Filters as SQL. The one place that says what a filter means to the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    Numeric,
    Select,
    SmallInteger,
    Text,
    and_,
    any_,
    cast,
    collate,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.sql import ColumnElement

from hivemem_server.domain.filters import AttributePredicate, Filter, Operator, SessionFilter, ThreadFilter
from hivemem_server.domain.values import AttributeValue, RecordKind, ThreadState
from hivemem_server.postgres.tables import agents, log, sessions, threads

Condition = ColumnElement[bool]


def texts(values: Sequence[str]) -> ColumnElement[Sequence[str]]:
    """The values as one array parameter, so that a statement's text does not depend on how many there are."""
    return literal(list(values), ARRAY(Text))


def _numbers(values: Sequence[int]) -> ColumnElement[Sequence[int]]:
    return literal([int(value) for value in values], ARRAY(SmallInteger))


def session_keys(namespace: int, session_ids: Sequence[str]) -> Select[tuple[int]]:
    """Keys of sessions by their ids."""
    return select(sessions.c.session_key).where(
        sessions.c.namespace_id == namespace, sessions.c.session_id == any_(texts(session_ids))
    )


def user_session_keys(namespace: int, user_ids: Sequence[str]) -> Select[tuple[int]]:
    """Keys of the sessions of users."""
    return select(sessions.c.session_key).where(
        sessions.c.namespace_id == namespace, sessions.c.user_id == any_(texts(user_ids))
    )


def agent_keys(namespace: int, agent_ids: Sequence[str]) -> Select[tuple[int]]:
    """Keys of agents by their ids."""
    return select(agents.c.agent_key).where(
        agents.c.namespace_id == namespace, agents.c.agent_id == any_(texts(agent_ids))
    )


def record_conditions(namespace: int, wanted: Filter) -> list[Condition]:
    """What a log record has to fulfil."""
    found = [log.c.namespace_id == namespace, *_scope(namespace, wanted), *_span(wanted)]
    found.append(log.c.record_kind == any_(_numbers(wanted.record_kinds)))
    found += _labels(wanted)
    found += [_predicate(predicate) for predicate in wanted.attributes]
    return found


def _scope(namespace: int, wanted: Filter) -> list[Condition]:
    found: list[Condition] = []
    if wanted.session_ids:
        found.append(log.c.session_key == any_(_keys(session_keys(namespace, wanted.session_ids))))
    if wanted.user_ids:
        found.append(log.c.session_key == any_(_keys(user_session_keys(namespace, wanted.user_ids))))
    if wanted.agent_ids:
        found.append(log.c.agent_key == any_(_keys(agent_keys(namespace, wanted.agent_ids))))
    if wanted.exclude_agent_ids:
        excluded = _keys(agent_keys(namespace, wanted.exclude_agent_ids))
        found.append(not_(log.c.agent_key == any_(excluded)))
    return found


def _keys(keys: Select[tuple[int]]) -> ColumnElement[Sequence[int]]:
    # As an array made once, not as a join: the planner then walks the index of the scope in log order.
    return func.array(keys.scalar_subquery(), type_=ARRAY(log.c.session_key.type))


def _span(wanted: Filter) -> list[Condition]:
    found: list[Condition] = []
    if wanted.after:
        found.append(log.c.position > wanted.after)
    if wanted.through:
        found.append(log.c.position <= wanted.through)
    for column, span in ((log.c.time, wanted.commit_time), (log.c.event_time, wanted.event_time)):
        if span.start is not None:
            found.append(column >= span.start)
        if span.end is not None:
            found.append(column < span.end)
    return found


def _labels(wanted: Filter) -> list[Condition]:
    found: list[Condition] = []
    if wanted.kinds:
        found.append(log.c.kind == any_(texts(wanted.kinds)))
    if wanted.any_tags:
        found.append(log.c.tags.overlap(texts(wanted.any_tags)))
    if wanted.all_tags:
        found.append(log.c.tags.contains(texts(wanted.all_tags)))
    if wanted.to_agents:
        found.append(log.c.to_agents.overlap(texts(wanted.to_agents)))
    return found


def _predicate(predicate: AttributePredicate) -> Condition:
    present: Condition = log.c.attributes.has_key(predicate.key)
    match predicate.operator:
        case Operator.EXISTS:
            return present
        case Operator.MISSING:
            absent: Condition = func.coalesce(not_(present), true())
            return and_(log.c.record_kind == int(RecordKind.EPISODE), absent)
        case Operator.EQUAL | Operator.IN:
            return or_(*(_compared(predicate.key, Operator.EQUAL, value) for value in predicate.values))
        case Operator.NOT_EQUAL:
            equal = _compared(predicate.key, Operator.EQUAL, predicate.values[0])
            return and_(present, not_(func.coalesce(equal, false())))
        case ordering:
            return _compared(predicate.key, ordering, predicate.values[0])


def _compared(key: str, operator: Operator, value: AttributeValue) -> Condition:
    """Compares values of one type; an attribute of another type gives NULL, which matches nothing."""
    if isinstance(value, bool):
        if operator is not Operator.EQUAL:
            return false()
        return _stored(key, "b") == literal("true" if value else "false", Text)
    if isinstance(value, str):
        return _ordered(collate(_stored(key, "s"), "C"), operator, literal(value, Text))
    number = cast(func.coalesce(_stored(key, "i"), _stored(key, "d")), Numeric)
    return _ordered(number, operator, cast(literal(repr(value), Text), Numeric))


def _stored(key: str, type_letter: str) -> ColumnElement[Any]:
    stored: ColumnElement[Any] = log.c.attributes[key][type_letter].astext
    return stored


def _ordered(left: ColumnElement[Any], operator: Operator, right: ColumnElement[Any]) -> Condition:
    match operator:
        case Operator.LESS:
            return left < right
        case Operator.LESS_OR_EQUAL:
            return left <= right
        case Operator.GREATER:
            return left > right
        case Operator.GREATER_OR_EQUAL:
            return left >= right
        case _:
            return left == right


def thread_conditions(namespace: int, wanted: ThreadFilter) -> list[Condition]:
    """What a thread has to fulfil; `log` has to be joined as the episode that opened it."""
    found: list[Condition] = [threads.c.namespace_id == namespace]
    if wanted.states:
        found.append(threads.c.state == any_(_numbers(wanted.states)))
        if ThreadState.RESOLVED not in wanted.states and ThreadState.DROPPED not in wanted.states:
            found.append(threads.c.state.in_([1, 2]))
    if wanted.session_ids:
        found.append(threads.c.session_key == any_(_keys(session_keys(namespace, wanted.session_ids))))
    if wanted.user_ids:
        found.append(threads.c.session_key == any_(_keys(user_session_keys(namespace, wanted.user_ids))))
    if wanted.agent_ids:
        found.append(threads.c.agent_key == any_(_keys(agent_keys(namespace, wanted.agent_ids))))
    if wanted.claimed_by_agent_ids:
        holders = _keys(agent_keys(namespace, wanted.claimed_by_agent_ids))
        found.append(and_(threads.c.state == int(ThreadState.CLAIMED), threads.c.claimed_by == any_(holders)))
    if wanted.any_tags:
        found.append(threads.c.tags.overlap(texts(wanted.any_tags)))
    if wanted.plan_ids:
        found.append(threads.c.plan_id == any_(texts(wanted.plan_ids)))
    if wanted.min_age is not None:
        found.append(log.c.time <= func.clock_timestamp() - literal(wanted.min_age))
    if wanted.max_age is not None:
        found.append(log.c.time >= func.clock_timestamp() - literal(wanted.max_age))
    return found


def session_conditions(namespace: int, wanted: SessionFilter) -> list[Condition]:
    """What a session has to fulfil."""
    found: list[Condition] = [sessions.c.namespace_id == namespace]
    if wanted.user_ids:
        found.append(sessions.c.user_id == any_(texts(wanted.user_ids)))
    if wanted.state is not None:
        found.append(sessions.c.state == int(wanted.state))
    if wanted.labels:
        found.append(sessions.c.labels.contains(dict(wanted.labels)))
    return found
