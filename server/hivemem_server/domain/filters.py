"""Which log records, episodes or threads are meant. One definition, compiled by each adapter for its own use."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass

from hivemem_server.domain.values import AttributeValue, RecordKind, SessionState, ThreadState


class Operator(enum.IntEnum):
    """How an attribute is compared; the numbers are those of the contract."""

    EQUAL = 1
    NOT_EQUAL = 2
    LESS = 3
    LESS_OR_EQUAL = 4
    GREATER = 5
    GREATER_OR_EQUAL = 6
    IN = 7
    EXISTS = 8
    MISSING = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributePredicate:
    """A condition on one attribute. Numbers compare with numbers whatever their type, text with text."""

    key: str
    operator: Operator
    values: tuple[AttributeValue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A half-open span of time; None is unbounded."""

    start: dt.datetime | None = None
    end: dt.datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Unset fields restrict nothing; set ones all have to match; a list matches if any of its values does.

    Records other than episodes match by session, agent, user, commit time and position only: a filter that asks for
    anything else matches no such record. Positions are `after < position <= through`, 0 being unset.
    """

    session_ids: tuple[str, ...] = ()
    agent_ids: tuple[str, ...] = ()
    exclude_agent_ids: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    any_tags: tuple[str, ...] = ()
    all_tags: tuple[str, ...] = ()
    to_agents: tuple[str, ...] = ()
    attributes: tuple[AttributePredicate, ...] = ()
    commit_time: TimeRange = TimeRange()
    event_time: TimeRange = TimeRange()
    after: int = 0
    through: int = 0
    record_kinds: tuple[RecordKind, ...] = (RecordKind.EPISODE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadFilter:
    """Which threads are meant, by the same rules."""

    states: tuple[ThreadState, ...] = ()
    session_ids: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    agent_ids: tuple[str, ...] = ()
    claimed_by_agent_ids: tuple[str, ...] = ()
    any_tags: tuple[str, ...] = ()
    plan_ids: tuple[str, ...] = ()
    min_age: dt.timedelta | None = None
    max_age: dt.timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Which sessions are meant, by the same rules; all labels have to be there."""

    user_ids: tuple[str, ...] = ()
    state: SessionState | None = None
    labels: tuple[tuple[str, str], ...] = ()
