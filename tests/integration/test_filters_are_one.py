"""A filter means the same to the database, to the predicate of live subscribers and to the conditions of appends."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import pytest_asyncio
from fix_log import DirectLog, new, open_session
from fix_log import written as stored
from hivemem_server.domain.appends import Append, Condition
from hivemem_server.domain.errors import RevisionConflict
from hivemem_server.domain.filters import AttributePredicate, Filter, Operator, TimeRange
from hivemem_server.domain.predicates import matcher
from hivemem_server.domain.values import (
    AttributeValue,
    Expectation,
    LogRecord,
    NewEpisode,
    OpenThread,
    RecordKind,
    StreamState,
    ThreadReference,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CALLS, APPENDS, EPISODES = 10, 4, 10
BOTH_KINDS = (RecordKind.EPISODE, RecordKind.THREAD_EVENT)
EVERYTHING = Filter(record_kinds=BOTH_KINDS)
MICROSECOND = timedelta(microseconds=1)

USERS = {"s": "", "S": "ann", "ann/1": "ann", "ben/1": "ben", "unused": "ben"}
SESSIONS = [*USERS, "unknown"]
AGENTS = ["a", "A", "a.b", "b", "unknown"]
KINDS = ["note", "Note", "finding", "unknown"]
TAGS = ["red", "Red", "é", "e\u0301", 'it\'s "quoted" \\ {,}', "NULL", " ", "%s", "\U0001f41d", "unknown"]
KEYS = ["k", "s", "odd \"key\" \\ {,} '$1'", "unknown"]
TEXTS = ["", " ", "a", "A", "ab", "b", "Z", "z", "ä", "é", "e\u0301", "\uffff", "\U00010000", "1", "10", "9", "true"]
WHOLE = [0, 1, -1, 9, 10, 2**53 - 1, 2**53, 2**53 + 1, 2**62 + 1, 2**63 - 1024, 2**63 - 1, -(2**63), -(2**63) + 1]
REAL = [
    0.0, -0.0, 1.0, 0.1, 0.30000000000000004, 0.3, 9.5, 1e-7, 5e-324, 2.0**53, 2.0**53 + 2, 2.0**62, 2.0**63 - 1024,
    2.0**63, -(2.0**63), -(2.0**63) - 2048, 1e19, 1e19 - 2048, 1e19 + 2048, 1e22, 1.7976931348623157e308,
]  # fmt: skip
VALUES: list[AttributeValue] = [*TEXTS, *WHOLE, *REAL, True, False]
EVENT_TIMES = [
    datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 0, 0, 1, UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
]  # fmt: skip

# As records of other kinds will be: without a session, an agent, or both.
NAMELESS: LiteralString = """
INSERT INTO log (namespace_id, position, record_kind, record_id, time, session_key, agent_key, thread_event)
SELECT l.namespace_id, l.position + n, 2, gen_random_uuid(), l.time, CASE n WHEN 2 THEN l.session_key END,
       CASE n WHEN 3 THEN l.agent_key END, '{"thread_id": "t", "type": 3}'
FROM (SELECT * FROM log WHERE namespace_id = %s ORDER BY position DESC LIMIT 1) l, generate_series(1, 3) n
"""


# The records


@dataclass(slots=True)
class _Writer:
    """Makes appends that use every value."""

    direct: DirectLog
    unfinished: list[str]

    def append(self) -> Append:
        episodes = [self.episode() for _ in range(EPISODES)]
        append = self.direct.ready(
            *episodes, session_id=random.choice(SESSIONS[:4]), agent_id=random.choice(AGENTS[:4])
        )
        self.unfinished += [thread.thread_id for episode in episodes for thread in episode.open_threads]
        return append

    def episode(self) -> NewEpisode:
        """An episode that may open a thread, or end one that an earlier append has opened."""
        opened = OpenThread(thread_id=str(uuid.uuid4()), text="left")
        episode = new(
            kind=random.choice(KINDS[:3]), tags=_some(TAGS[:-1]), to_agents=_some(AGENTS[:-1]),
            attributes={key: random.choice(VALUES) for key in KEYS[:3] if random.random() < 0.7},
            event_time=random.choice([None, _near(random.choice(EVENT_TIMES), random.randint(-1, 1))]),
            open_threads=(opened,) if random.random() < 0.2 else (),
            resolves=(ThreadReference(thread_id=self.unfinished.pop()),) if self.unfinished else (),
        )  # fmt: skip
        assert isinstance(episode, NewEpisode)
        return episode


def _some(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(random.sample(values, random.choice([0, 1, 2, 3])))


def _near(time: datetime, steps: int) -> datetime:
    try:
        return time + steps * MICROSECOND
    except OverflowError:
        return time


@dataclass(frozen=True, slots=True)
class Written:
    """A log, and all that it holds."""

    direct: DirectLog
    records: Sequence[LogRecord] = field(repr=False)
    filters: st.SearchStrategy[Filter] = field(repr=False)

    async def positions(self, wanted: Filter) -> list[int]:
        """What the database finds."""
        window = await self.direct.log.window(self.direct.namespace, wanted, 0, 1_000_000, 10_000)
        return [record.position for record in window.records]

    def expected(self, wanted: Filter) -> list[int]:
        """What the predicate finds."""
        matches = matcher(wanted)
        return [record.position for record in self.records if matches(record)]

    async def breaks(self, wanted: Filter, after: int) -> str | None:
        """The position that an append's condition names. The append is refused whether it holds or not."""
        expectation = Expectation(state=StreamState.REVISION, revision=1_000_000)
        condition = Condition(wanted=wanted, after=after)
        outcome = await self.direct.append(self.direct.ready(new(), expectation=expectation, conditions=(condition,)))
        assert isinstance(outcome, RevisionConflict), outcome
        return outcome.metadata.get("conditions[0]")


@pytest_asyncio.fixture(loop_scope="session")
async def written(direct: DirectLog) -> Written:
    for session_id, user_id in USERS.items():
        await open_session(direct.database, direct.namespace, session_id, user_id=user_id)
    writer = _Writer(direct, [])
    for _ in range(CALLS):
        for outcome in await direct.log.append(direct.namespace, [writer.append() for _ in range(APPENDS)]):
            stored(outcome)
    await direct.database.fetch(NAMELESS, [direct.namespace.key])
    window = await direct.log.window(direct.namespace, EVERYTHING, 0, 1_000_000, 10_000)
    assert [record.position for record in window.records] == list(range(1, window.head + 1))
    assert len(window.records) > CALLS * APPENDS * EPISODES + 20
    return Written(direct, window.records, _filters(window.records))


# The filters


def _lists(values: Sequence[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True).map(tuple)


def _spans(times: Sequence[datetime]) -> st.SearchStrategy[TimeRange]:
    some = st.builds(_near, st.sampled_from(times), st.integers(-1, 1))
    bounded = st.lists(some, min_size=2, max_size=2, unique=True).map(sorted)
    return (
        st.builds(TimeRange, start=some)
        | st.builds(TimeRange, end=some)
        | st.builds(lambda both: TimeRange(start=both[0], end=both[1]), bounded)
    )


def _predicates() -> st.SearchStrategy[AttributePredicate]:
    value = (
        st.sampled_from(VALUES) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    )
    lists: dict[Operator, st.SearchStrategy[tuple[AttributeValue, ...]]] = {
        Operator.EXISTS: st.just(()),
        Operator.MISSING: st.just(()),
        Operator.IN: st.lists(value, min_size=1, max_size=4).map(tuple),
    }
    key = st.sampled_from(KEYS)
    each = [
        st.builds(AttributePredicate, key=key, operator=st.just(operator), values=lists.get(operator, st.tuples(value)))
        for operator in Operator
    ]
    return st.sampled_from(each).flatmap(lambda chosen: chosen)


def _fields(records: Sequence[LogRecord]) -> dict[str, st.SearchStrategy[Any]]:
    """Values for each field of a filter, near those of the records."""
    position = st.integers(0, len(records) + 1)
    return {
        "session_ids": _lists(SESSIONS),
        "agent_ids": _lists(AGENTS),
        "exclude_agent_ids": _lists(AGENTS),
        "user_ids": _lists(["ann", "ben", "unknown"]),
        "kinds": _lists(KINDS),
        "any_tags": _lists(TAGS),
        "all_tags": _lists(TAGS),
        "to_agents": _lists(AGENTS),
        "attributes": st.lists(_predicates(), min_size=1, max_size=2).map(tuple),
        "commit_time": _spans([record.time for record in records]),
        "event_time": _spans(EVENT_TIMES),
        "after": position,
        "through": position,
    }


def _filters(records: Sequence[LogRecord]) -> st.SearchStrategy[Filter]:
    """Filters that set a few fields each, attributes more often than others."""
    fields = _fields(records)
    names = st.lists(st.sampled_from([*fields, "attributes", "attributes"]), max_size=3, unique=True)
    kinds = st.sampled_from([(RecordKind.EPISODE,), (RecordKind.THREAD_EVENT,), BOTH_KINDS])

    @st.composite
    def filters(draw: st.DrawFn) -> Filter:
        return Filter(record_kinds=draw(kinds), **{name: draw(fields[name]) for name in draw(names)})

    return filters()


def _examples(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, database=None, print_blob=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )  # fmt: skip


@given(data=st.data())
@_examples(300)
async def test_the_database_and_the_predicate_find_the_same_records(written: Written, data: st.DataObject) -> None:
    wanted = data.draw(written.filters)
    assert await written.positions(wanted) == written.expected(wanted)


async def test_the_database_and_the_predicate_compare_every_two_values_alike(written: Written) -> None:
    for operator, value in itertools.product(list(Operator)[:7], VALUES):
        predicate = AttributePredicate(key=KEYS[0], operator=operator, values=(value,))
        wanted = Filter(attributes=(predicate,))
        assert await written.positions(wanted) == written.expected(wanted), predicate


@given(data=st.data())
@_examples(100)
async def test_a_condition_names_the_first_record_that_the_predicate_finds(
    written: Written, data: st.DataObject
) -> None:
    wanted = data.draw(written.filters)
    after = data.draw(st.integers(0, len(written.records)))
    first = next((str(position) for position in written.expected(wanted) if position > after), None)
    assert await written.breaks(wanted, after) == first
