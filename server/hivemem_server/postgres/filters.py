"""Filters as SQL. The one place that says what a filter means to the database.

A statement depends on a filter's shape only: which fields are set, whether one session or agent is meant or many, and
of what types attribute values are. The values are parameters, one array for each list. So statements are built and
compiled once for each shape; `shape(filter)` is the key to keep them by.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, TypeAlias

from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    Double,
    Integer,
    Interval,
    Numeric,
    Select,
    SmallInteger,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    collate,
    false,
    func,
    literal_column,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql import ColumnElement

from hivemem_server.domain.filters import AttributePredicate, Filter, Operator, SessionFilter, ThreadFilter, TimeRange
from hivemem_server.domain.values import AttributeValue, RecordKind, ThreadState
from hivemem_server.postgres.database import Query
from hivemem_server.postgres.tables import agents, log, sessions, threads

Condition: TypeAlias = ColumnElement[bool]
Params: TypeAlias = dict[str, Any]

NAMESPACE = bindparam("namespace", type_=Integer)

_PARAMETER = re.compile(r"%\((?P<name>\w+)\)s::(?P<type>[A-Z ]+(\[\])?)")

_SET = ("",)  # stands in a shape for whatever a list holds
_ONE_OR_MANY = ("session_ids", "agent_ids")  # a shape tells one value from many: one is compared by =
_SOME_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LISTS = (
    "session_ids", "agent_ids", "exclude_agent_ids", "user_ids", "kinds", "any_tags", "all_tags", "to_agents",
)  # fmt: skip
_THREAD_LISTS = ("session_ids", "user_ids", "agent_ids", "claimed_by_agent_ids", "any_tags", "plan_ids")
_WHOLE, _BEYOND_BIGINT = 2**53, 10**19  # doubles between them are whole, even, and may be near whole numbers

# What stands in a shape for values of each type.
_ANY_VALUE: dict[str, AttributeValue] = {"b": True, "n": 0, "s": ""}

# Literals, not parameters: only then does the planner use the index of unfinished threads.
UNFINISHED: Condition = threads.c.state.in_([literal_column("1"), literal_column("2")])


def shape(wanted: Filter) -> Filter:
    """The filter with its values blanked."""
    lists: dict[str, Any] = {name: _SET if getattr(wanted, name) else () for name in _LISTS}
    lists |= {name: _SET * min(len(getattr(wanted, name)), 2) for name in _ONE_OR_MANY}
    return replace(
        wanted,
        **lists,
        attributes=tuple(_predicate_shape(predicate) for predicate in wanted.attributes),
        commit_time=_range_shape(wanted.commit_time),
        event_time=_range_shape(wanted.event_time),
        after=int(wanted.after > 0),
        through=int(wanted.through > 0),
        record_kinds=(),
    )


def _predicate_shape(predicate: AttributePredicate) -> AttributePredicate:
    letters = {_letter(value) for value in predicate.values}
    return replace(predicate, key="", values=tuple(_ANY_VALUE[letter] for letter in sorted(letters)))


def _letter(value: AttributeValue) -> str:
    """The type that a value is compared as: truth value, number or text."""
    match value:
        case bool():
            return "b"
        case str():
            return "s"
    return "n"


def _range_shape(span: TimeRange) -> TimeRange:
    return TimeRange(start=span.start and _SOME_TIME, end=span.end and _SOME_TIME)


def record_params(namespace: int, wanted: Filter) -> Params:
    """The values of a filter, under the names that `record_conditions` uses."""
    params: Params = {name: list(getattr(wanted, name)) for name in _LISTS}
    params |= {
        "namespace": namespace,
        "record_kinds": [int(kind) for kind in wanted.record_kinds],
        "commit_start": wanted.commit_time.start,
        "commit_end": wanted.commit_time.end,
        "event_start": wanted.event_time.start,
        "event_end": wanted.event_time.end,
        "filter_after": wanted.after,
        "filter_through": wanted.through,
    }
    for index, predicate in enumerate(wanted.attributes):
        params[f"key_{index}"] = predicate.key
        for letter in _ANY_VALUE:
            params[f"values_{index}_{letter}"] = [_text(v) for v in predicate.values if _letter(v) == letter]
    return params


def _text(value: AttributeValue) -> str:
    if isinstance(value, float) and _WHOLE <= abs(value) <= _BEYOND_BIGINT:
        return str(int(value))  # as `_number` has it
    return value if isinstance(value, str) else repr(value).lower()


def reading_json(query: Query) -> str:
    """The query's text with each of its parameters read from a JSON document, $1."""
    return _PARAMETER.sub(_from_json, query.text)


def as_json(query: Query, params: Params) -> str:
    """All parameters of the query as that document."""
    return json.dumps({**query.constants, **params}, ensure_ascii=False, default=dt.datetime.isoformat)


def _from_json(parameter: re.Match[str]) -> str:
    name, type_name = parameter["name"], parameter["type"]
    if type_name.endswith("[]"):
        return f"ARRAY(SELECT jsonb_array_elements_text($1->'{name}'))::{type_name}"
    return f"($1->>'{name}')::{type_name}"


def record_conditions(shaped: Filter) -> list[Condition]:
    """What a log record has to fulfil."""
    kinds = bindparam("record_kinds", type_=ARRAY(SmallInteger))
    found = [log.c.namespace_id == NAMESPACE, log.c.record_kind == any_(kinds)]
    found += _scope(shaped)
    found += _span(shaped)
    found += _labels(shaped)
    found += [_predicate(index, predicate) for index, predicate in enumerate(shaped.attributes)]
    return found


def _scope(shaped: Filter) -> list[Condition]:
    found: list[Condition] = []
    if shaped.session_ids:
        keys = _session_keys(sessions.c.session_id, "session_ids")
        found.append(_among(log.c.session_key, keys, one=len(shaped.session_ids) == 1))
    if shaped.user_ids:
        found.append(_among(log.c.session_key, _session_keys(sessions.c.user_id, "user_ids")))
    if shaped.agent_ids:
        found.append(_among(log.c.agent_key, _agent_keys("agent_ids"), one=len(shaped.agent_ids) == 1))
    if shaped.exclude_agent_ids:
        excluded = _among(log.c.agent_key, _agent_keys("exclude_agent_ids"))
        found.append(not_(func.coalesce(excluded, false())))  # what no agent wrote is not written by these
    return found


def _texts(name: str) -> ColumnElement[Sequence[str]]:
    return bindparam(name, type_=ARRAY(Text))


def _session_keys(column: ColumnElement[str], name: str) -> Select[tuple[int]]:
    return select(sessions.c.session_key).where(sessions.c.namespace_id == NAMESPACE, column == any_(_texts(name)))


def _agent_keys(name: str) -> Select[tuple[int]]:
    return select(agents.c.agent_key).where(agents.c.namespace_id == NAMESPACE, agents.c.agent_id == any_(_texts(name)))


def _among(column: ColumnElement[int], keys: Select[tuple[int]], *, one: bool = False) -> Condition:
    # Found once, not as a join: the planner then walks the index of the scope. One key is compared by =, because only
    # then does it know that the walk is in log order.
    if one:
        return column == keys.scalar_subquery()
    return column == any_(func.array(keys.scalar_subquery(), type_=ARRAY(Integer)))


def _span(shaped: Filter) -> list[Condition]:
    found: list[Condition] = []
    if shaped.after:
        found.append(log.c.position > bindparam("filter_after", type_=BigInteger))
    if shaped.through:
        found.append(log.c.position <= bindparam("filter_through", type_=BigInteger))
    for name, column, span in (
        ("commit", log.c.time, shaped.commit_time),
        ("event", log.c.event_time, shaped.event_time),
    ):
        if span.start:
            found.append(column >= bindparam(f"{name}_start", type_=DateTime(timezone=True)))
        if span.end:
            found.append(column < bindparam(f"{name}_end", type_=DateTime(timezone=True)))
    return found


def _labels(shaped: Filter) -> list[Condition]:
    found: list[Condition] = []
    if shaped.kinds:
        found.append(log.c.kind == any_(_texts("kinds")))
    if shaped.any_tags:
        found.append(log.c.tags.overlap(_texts("any_tags")))
    if shaped.all_tags:
        found.append(log.c.tags.contains(_texts("all_tags")))
    if shaped.to_agents:
        found.append(log.c.to_agents.overlap(_texts("to_agents")))
    return found


def _predicate(index: int, predicate: AttributePredicate) -> Condition:
    key = bindparam(f"key_{index}", type_=Text)
    present: Condition = log.c.attributes.has_key(key)
    compared = [
        _compared(key, predicate.operator, value, _texts(f"values_{index}_{_letter(value)}"))
        for value in predicate.values
    ]
    match predicate.operator:
        case Operator.EXISTS:
            return present
        case Operator.MISSING:
            absent: Condition = func.coalesce(not_(present), true())
            return and_(log.c.record_kind == int(RecordKind.EPISODE), absent)
        case Operator.NOT_EQUAL:
            return and_(present, not_(func.coalesce(compared[0], false())))
    return or_(*compared)


def _compared(
    key: ColumnElement[str], operator: Operator, value: AttributeValue, values: ColumnElement[Sequence[str]]
) -> Condition:
    """Compares with any of the values of one type, an array; an attribute of another type gives NULL: no match."""
    stored = log.c.attributes[key]
    if isinstance(value, bool):
        is_order = operator not in (Operator.EQUAL, Operator.NOT_EQUAL, Operator.IN)
        return false() if is_order else stored["b"].astext == any_(values)
    if isinstance(value, str):
        return _ordered(collate(stored["s"].astext, "C"), operator, any_(values))
    return _ordered(_number(stored), operator, any_(cast(values, ARRAY(Numeric))))


def _number(stored: ColumnElement[Any]) -> ColumnElement[Decimal]:
    """The number that an attribute holds, to the last digit.

    A double is kept by the shortest digits that tell it from the next one: 2^63 as 9223372036854776000. That is in
    order among doubles, but not among whole numbers of that size. Doubles of that size are even numbers, so that their
    halves fit into a bigint.
    """
    shortest = cast(stored["d"].astext, Numeric)
    half = cast(cast(shortest, Double) * literal_column("0.5"), BigInteger)
    is_whole = func.abs(shortest).between(literal_column(str(_WHOLE)), literal_column(str(_BEYOND_BIGINT)))
    return func.coalesce(cast(stored["i"].astext, Numeric), case((is_whole, cast(half, Numeric) * 2), else_=shortest))


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
    return left == right


def thread_shape(wanted: ThreadFilter) -> ThreadFilter:
    """The filter with its values blanked; states stay, because they decide on the index."""
    lists: dict[str, Any] = {name: _SET if getattr(wanted, name) else () for name in _THREAD_LISTS}
    some = dt.timedelta(1)
    min_age = None if wanted.min_age is None else some
    max_age = None if wanted.max_age is None else some
    return replace(wanted, **lists, min_age=min_age, max_age=max_age)


def thread_params(namespace: int, wanted: ThreadFilter) -> Params:
    """The values of a filter, under the names that `thread_conditions` uses."""
    params: Params = {name: list(getattr(wanted, name)) for name in _THREAD_LISTS}
    states = [int(state) for state in wanted.states]
    return params | {
        "namespace": namespace, "states": states, "min_age": wanted.min_age, "max_age": wanted.max_age,
    }  # fmt: skip


def thread_conditions(shaped: ThreadFilter) -> list[Condition]:
    """What a thread has to fulfil; `log` has to be joined as the episode that opened it."""
    found: list[Condition] = [threads.c.namespace_id == NAMESPACE]
    if shaped.states:
        found.append(threads.c.state == any_(bindparam("states", type_=ARRAY(SmallInteger))))
        if set(shaped.states) <= {ThreadState.OPEN, ThreadState.CLAIMED}:
            found.append(UNFINISHED)
    if shaped.session_ids:
        found.append(_among(threads.c.session_key, _session_keys(sessions.c.session_id, "session_ids")))
    if shaped.user_ids:
        found.append(_among(threads.c.session_key, _session_keys(sessions.c.user_id, "user_ids")))
    if shaped.agent_ids:
        found.append(_among(threads.c.agent_key, _agent_keys("agent_ids")))
    if shaped.claimed_by_agent_ids:
        held = _among(threads.c.claimed_by, _agent_keys("claimed_by_agent_ids"))
        found.append(and_(threads.c.state == int(ThreadState.CLAIMED), held))
    return found + _thread_labels(shaped)


def _thread_labels(shaped: ThreadFilter) -> list[Condition]:
    found: list[Condition] = []
    if shaped.any_tags:
        found.append(threads.c.tags.overlap(_texts("any_tags")))
    if shaped.plan_ids:
        found.append(threads.c.plan_id == any_(_texts("plan_ids")))
    if shaped.min_age is not None:
        found.append(log.c.time <= func.clock_timestamp() - bindparam("min_age", type_=Interval))
    if shaped.max_age is not None:
        found.append(log.c.time >= func.clock_timestamp() - bindparam("max_age", type_=Interval))
    return found


def session_params(namespace: int, wanted: SessionFilter) -> Params:
    """The values of a filter, under the names that `session_conditions` uses."""
    return {
        "namespace": namespace, "user_ids": list(wanted.user_ids), "state": wanted.state and int(wanted.state),
        "labels": dict(wanted.labels),
    }  # fmt: skip


def session_conditions(*, users: bool, state: bool, labels: bool) -> list[Condition]:
    """What a session has to fulfil, by what of a filter is set."""
    found: list[Condition] = [sessions.c.namespace_id == NAMESPACE]
    if users:
        found.append(sessions.c.user_id == any_(_texts("user_ids")))
    if state:
        found.append(sessions.c.state == bindparam("state", type_=SmallInteger))
    if labels:
        found.append(sessions.c.labels.contains(bindparam("labels", type_=JSONB)))
    return found
