"""Followers against a plain list: whatever is appended, read, broken off and resumed, each is given its part of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest
from fix_log import CONNECTIONS, WAIT, open_session, written
from hivemem_server.domain.appends import Append, prepared
from hivemem_server.domain.errors import DatabaseUnavailable
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogStore, Window
from hivemem_server.domain.redactors import redactor_of
from hivemem_server.domain.values import (
    Namespace,
    NamespaceSettings,
    NewEpisode,
    OpenThread,
    Point,
    RecordKind,
    ThreadReference,
)
from hivemem_server.log import readers, tail
from hivemem_server.log.events import Batch, CaughtUp, Event, FellBehind, GoingAway, Progress
from hivemem_server.log.heads import Heads
from hivemem_server.log.subscription import follow
from hivemem_server.log.tail import Tails
from hivemem_server.postgres.database import Database
from hivemem_server.postgres.log import PostgresLog
from hivemem_server.postgres.namespaces import PostgresNamespaces
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

Result = TypeVar("Result")

SESSIONS = {"one": "ann", "two": "ben"}
REPLICAS = 2
POLL, HEARTBEAT = 0.01, 0.01
BOTH = (RecordKind.EPISODE, RecordKind.THREAD_EVENT)


# The list


@dataclass(frozen=True, slots=True)
class Kept:
    """A record of the list; only episodes have tags, and only they have an id that is known beforehand."""

    session_id: str
    agent_id: str
    episode_id: uuid.UUID | None = None
    tags: tuple[str, ...] = ()


# Filters, and what they mean, said once more.
FILTERS: dict[str, tuple[Filter, Callable[[Kept], bool]]] = {
    "everything": (tail.EVERYTHING, lambda _: True),
    "episodes": (Filter(), lambda kept: kept.episode_id is not None),
    "thread events": (Filter(record_kinds=(RecordKind.THREAD_EVENT,)), lambda kept: kept.episode_id is None),
    "of a": (Filter(agent_ids=("a",), record_kinds=BOTH), lambda kept: kept.agent_id == "a"),
    "not of a": (Filter(exclude_agent_ids=("a",)), lambda kept: kept.agent_id != "a" and kept.episode_id is not None),
    "in one": (Filter(session_ids=("one",), record_kinds=BOTH), lambda kept: kept.session_id == "one"),
    "of ben": (Filter(user_ids=("ben",)), lambda kept: kept.session_id == "two" and kept.episode_id is not None),
    "tagged": (Filter(any_tags=("x",)), lambda kept: "x" in kept.tags),
    "nothing": (Filter(kinds=("none",)), lambda _: False),
}


# What happens


@dataclass(frozen=True, slots=True)
class Wish:
    """An append as it is planned."""

    session_id: str
    agent_id: str
    tags: list[tuple[str, ...]]
    opens: bool
    ends: bool
    told: int  # the replica that commits it; the others find it by their polls


@dataclass(frozen=True, slots=True)
class Start:
    """Where a follower begins, as a part of the log, or ahead of it."""

    sixths: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is kept and read at once."""

    tail: int
    read: int
    span: int
    first: int
    linger: float
    most_bytes: int


WISHES = st.builds(
    Wish,
    session_id=st.sampled_from(list(SESSIONS)),
    agent_id=st.sampled_from(["a", "b", "c"]),
    tags=st.lists(st.sampled_from([(), ("x",), ("x", "y")]), min_size=1, max_size=3),
    opens=st.booleans(),
    ends=st.booleans(),
    told=st.integers(0, REPLICAS - 1),
)
STARTS = st.builds(Start, sixths=st.integers(0, 6), ahead=st.sampled_from([0, 0, 0, 0, 2]))
SIZES = st.builds(
    Sizes,
    tail=st.integers(1, 4),
    read=st.integers(1, 4),
    span=st.integers(1, 6),
    first=st.integers(1, 3),
    linger=st.sampled_from([0.0, 0.02, 5.0]),
    most_bytes=st.sampled_from([3, 30, 30_000]),
)
READS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5)), max_size=4)
FAILURES = st.lists(st.sampled_from([None, DatabaseUnavailable("away"), RuntimeError("a bug")]), max_size=4)


@dataclass(slots=True, eq=False)
class Follower:
    """One that follows, and all that it was given since its first start."""

    wanted: str
    batch_size: int
    start: Point
    got: list[int] = field(default_factory=list)
    marks: list[tuple[Point, int]] = field(default_factory=list)  # each point, and how many records had come by then
    events: AsyncGenerator[Event] | None = None
    replica: Replica | None = None
    live: bool = False
    caught_up_by: int = 0  # no CaughtUp may come before this position
    ended: bool = False

    @property
    def point(self) -> Point:
        return self.marks[-1][0] if self.marks else self.start

    def take(self, event: Event) -> None:
        """Notes an event, and checks that it may come now."""
        assert event.point.position >= self.point.position, "points never decrease"
        match event:
            case Batch(records=records):
                positions = [encoded.record.position for encoded in records]
                assert 0 < len(positions) <= self.batch_size
                assert [encoded.data for encoded in records] == [b"%d" % position for position in positions]
                assert positions[-1] <= event.point.position
                self.got += positions
            case CaughtUp():
                assert not self.live, "it was caught up"
                assert event.point.position >= self.caught_up_by, "all that was there came before"
                self.live = True
            case FellBehind(head=head):
                assert self.live, "only who was caught up falls behind"
                assert head > event.point.position
                self.live, self.caught_up_by = False, head
            case Progress():
                assert self.live or event.point.position > self.point.position, "who is not live gets on"
            case GoingAway():
                self.ended = True
        self.marks.append((event.point, len(self.got)))

    def rewind(self, back: int) -> None:
        """Forgets the last messages: it goes on from the cursor of an earlier one."""
        del self.marks[max(0, len(self.marks) - back) :]
        del self.got[self.marks[-1][1] if self.marks else 0 :]

    async def close(self) -> None:
        """Breaks off."""
        if self.events is not None:
            await self.events.aclose()
        self.events, self.replica, self.live, self.ended = None, None, False, False


class FailingLog:
    """The log, which fails to be read when it is told to."""

    def __init__(self, log: PostgresLog) -> None:
        self._log = log
        self.failures: list[Exception | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def window(self, namespace: Namespace, wanted: Filter, after: int, span: int, limit: int) -> Window:
        if self.failures and (failure := self.failures.pop()):
            raise failure
        return await self._log.window(namespace, wanted, after, span, limit)


@dataclass(slots=True, eq=False)
class Replica:
    """What a server has of a log."""

    store: FailingLog
    heads: Heads
    tails: Tails
    polling: asyncio.Task[None]


class World:
    """A log, its list, and followers at several replicas, to be used from the thread that Hypothesis runs in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, database: Database) -> None:
        self._loop = loop
        self._database = database

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * WAIT)

    async def begin(self) -> None:
        self.namespace, _ = await PostgresNamespaces(self._database).create(f"n-{uuid.uuid4()}", NamespaceSettings())
        for session_id, user_id in SESSIONS.items():
            await open_session(self._database, self.namespace, session_id, user_id=user_id)
        self.list: list[Kept] = []
        self.committed = 0
        self.open_threads: list[tuple[str, str]] = []  # and the sessions that they are of
        self.followers: list[Follower] = []
        self.replicas = [self._replica() for _ in range(REPLICAS)]

    def _replica(self) -> Replica:
        store = FailingLog(PostgresLog(self._database))
        heads = Heads(cast(LogStore, store), POLL)
        tails = Tails(cast(LogStore, store), heads, lambda record: b"%d" % record.position)
        return Replica(store, heads, tails, asyncio.create_task(heads.run()))

    # Appends

    async def append(self, wishes: Sequence[Wish]) -> None:
        """One after the other, so that the list is known."""
        for wish in wishes:
            append = self._append(wish)
            outcome = written(await self._store(append))
            self.committed = len(self.list)
            self.replicas[wish.told].heads.advance(self.namespace, outcome.stored[-1].position)

    def _append(self, wish: Wish) -> Append:
        opened = (OpenThread(thread_id=str(uuid.uuid4()), text="to do"),) if wish.opens else ()
        ended = self.open_threads[:1] if wish.ends else []
        del self.open_threads[: len(ended)]
        episodes = [NewEpisode(episode_id=uuid.uuid4(), summary="something happened", tags=tags) for tags in wish.tags]
        first = NewEpisode(
            episode_id=uuid.uuid4(), summary="something began", open_threads=opened, tags=wish.tags[0],
            resolves=tuple(ThreadReference(thread_id=thread_id) for thread_id, _ in ended),
        )  # fmt: skip
        self.open_threads += [(thread.thread_id, wish.session_id) for thread in opened]
        self.list.append(Kept(wish.session_id, wish.agent_id, first.episode_id, first.tags))
        self.list += [Kept(session_id, wish.agent_id) for _, session_id in ended]
        self.list += [Kept(wish.session_id, wish.agent_id, each.episode_id, each.tags) for each in episodes]
        append = Append(session_id=wish.session_id, agent_id=wish.agent_id, episodes=(first, *episodes))
        return prepared(append, self.namespace, redactor_of(self.namespace))

    async def _store(self, append: Append) -> object:
        (outcome,) = await PostgresLog(self._database).append(self.namespace, [append])
        return outcome

    # Followers

    async def join(self, wanted: str, batch_size: int, start: Start) -> None:
        """One more follower."""
        position = len(self.list) * start.sixths // 6
        point = await self.replicas[0].store.point(self.namespace, position)
        if start.ahead:
            point = Point(position=len(self.list) + start.ahead)
        self.followers.append(Follower(wanted, batch_size, point or Point(position=0)))

    def connect(self, follower: Follower, replica: Replica) -> AsyncGenerator[Event]:
        """Begins to follow, or goes on, as a call does that has looked where the log ends."""
        follower.caught_up_by, follower.replica = self.committed, replica
        follower.events = follow(
            cast(LogStore, replica.store), replica.tails, self.namespace, FILTERS[follower.wanted][0], follower.point,
            batch_size=follower.batch_size, heartbeat=HEARTBEAT, head=self.committed,
        )  # fmt: skip
        return follower.events

    async def read(self, number: int, count: int) -> None:
        """A follower takes so many events; an error breaks it off."""
        follower = self.followers[number % len(self.followers)]
        if follower.events is None:
            self.connect(follower, self.replicas[(number + count) % REPLICAS])
        assert follower.events is not None
        for _ in range(count):
            try:
                async with asyncio.timeout(WAIT):
                    event = await anext(follower.events)
            except (DatabaseUnavailable, RuntimeError):
                await follower.close()
                return
            follower.take(event)
            if follower.ended:
                await follower.close()
                return

    async def at_once(self, wishes: Sequence[Wish], reads: Sequence[tuple[int, int]]) -> None:
        """Appends, and reads of different followers, at the same time."""
        by_follower = {number % len(self.followers): count for number, count in reads} if self.followers else {}
        works = [self.read(number, count) for number, count in by_follower.items()]
        await asyncio.gather(self.append(wishes), *works)
        self.check()

    async def break_off(self, number: int, back: int, waiting: bool) -> None:
        """A follower goes away, between two events or while it waits; it will go on after any message."""
        follower = self.followers[number % len(self.followers)]
        if waiting and follower.events is not None:
            reading = asyncio.ensure_future(anext(follower.events))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await follower.close()
        follower.rewind(back)

    async def drain(self, number: int) -> None:
        """A server leaves and another takes its place: its followers are sent away when they read on."""
        old = self.replicas[number]
        old.tails.drain()
        for follower in self.followers:
            if follower.replica is old:
                await self._sent_away(follower)
        self.replicas[number] = self._replica()
        await self._end(old)
        self.check()

    async def _sent_away(self, follower: Follower) -> None:
        assert follower.events is not None
        async with asyncio.timeout(WAIT):
            async for event in follower.events:
                follower.take(event)
        assert follower.ended
        await follower.close()

    # What must be true

    def matching(self, follower: Follower, through: int) -> list[int]:
        """Positions of what a follower is to be given up to a position."""
        matches = FILTERS[follower.wanted][1]
        begin = follower.start.position
        return [at for at, kept in enumerate(self.list, 1) if begin < at <= through and matches(kept)]

    def check(self) -> None:
        """Everything that matches up to a point was given before it, in order, once; and nothing else."""
        for follower in self.followers:
            for point, count in follower.marks:
                assert follower.got[:count] == self.matching(follower, point.position), (follower.wanted, point)
                if point != follower.start and point.position <= len(self.list):
                    known = self.list[point.position - 1].episode_id
                    assert known is None or point.record_id == known, "a point names its record"

    async def to_the_end(self) -> None:
        """Every follower, however far behind, gets all that there is and is told that it has it."""
        for replica in self.replicas:
            replica.store.failures.clear()
        async with asyncio.timeout(WAIT):
            for number, follower in enumerate(self.followers):
                while not (follower.live and follower.point.position >= len(self.list)):
                    await self.read(number, 1)
                assert follower.got == self.matching(follower, len(self.list))
        self.check()

    async def end(self) -> None:
        """Nothing is left behind."""
        for follower in self.followers:
            await follower.close()
        for replica in self.replicas:
            await self._end(replica)

    async def _end(self, replica: Replica) -> None:
        assert replica.tails.follower_count == sum(follower.replica is replica for follower in self.followers) == 0
        await replica.tails.close()
        async with asyncio.timeout(WAIT):
            while replica.heads.follower_count:  # noqa: ASYNC110 - a reader that nobody needed any more is just ending
                await asyncio.sleep(0)
        replica.polling.cancel()
        await asyncio.gather(replica.polling, return_exceptions=True)


class FollowMachine(RuleBasedStateMachine):
    """Appends and follows."""

    world: World
    resize: Callable[[Sizes], None]

    @initialize(sizes=SIZES, wishes=st.lists(WISHES, max_size=6))
    def begin(self, sizes: Sizes, wishes: list[Wish]) -> None:
        self.resize(sizes)
        self.world.run(self.world.begin())
        self.world.run(self.world.append(wishes))

    @rule(wanted=st.sampled_from(list(FILTERS)), batch_size=st.integers(1, 4), start=STARTS)
    def join(self, wanted: str, batch_size: int, start: Start) -> None:
        if len(self.world.followers) < 6:
            self.world.run(self.world.join(wanted, batch_size, start))

    @rule(wishes=st.lists(WISHES, max_size=4), reads=READS)
    def append_and_read(self, wishes: list[Wish], reads: list[tuple[int, int]]) -> None:
        self.world.run(self.world.at_once(wishes, reads))

    @rule(reads=READS)
    def read(self, reads: list[tuple[int, int]]) -> None:
        self.world.run(self.world.at_once([], reads))

    @rule(number=st.integers(0, 7), back=st.integers(0, 3), waiting=st.booleans())
    def break_off(self, number: int, back: int, waiting: bool) -> None:
        if self.world.followers:
            self.world.run(self.world.break_off(number, back, waiting))

    @rule(replica=st.integers(0, REPLICAS - 1), failures=FAILURES)
    def fail(self, replica: int, failures: list[Exception | None]) -> None:
        self.world.replicas[replica].store.failures = list(failures)

    @rule(replica=st.integers(0, REPLICAS - 1))
    def drain(self, replica: int) -> None:
        self.world.run(self.world.drain(replica))

    def teardown(self) -> None:
        if hasattr(self.world, "replicas"):
            try:
                self.world.run(self.world.to_the_end())
            finally:
                self.world.run(self.world.end())


def _resizing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sizes], None]:
    def resize(sizes: Sizes) -> None:
        monkeypatch.setattr(tail, "TAIL_RECORDS", sizes.tail)
        monkeypatch.setattr(tail, "TAIL_BYTES", sizes.most_bytes)
        monkeypatch.setattr(tail, "READ_RECORDS", sizes.read)
        monkeypatch.setattr(tail, "READ_SPAN", sizes.span)
        monkeypatch.setattr(tail, "LINGER_SECONDS", sizes.linger)
        monkeypatch.setattr(tail, "RETRY_SECONDS", 0.005)
        monkeypatch.setattr(tail, "CHECK_SECONDS", 0.05)
        monkeypatch.setattr(readers, "SPAN", sizes.span)
        monkeypatch.setattr(readers, "FIRST_BATCH", sizes.first)

    return resize


async def _try(database_url: str, monkeypatch: pytest.MonkeyPatch, examples: int, steps: int) -> None:
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None, print_blob=True,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],  # to make a failure small takes too long
    )  # fmt: skip
    async with Database(database_url, size=CONNECTIONS) as database:
        world = World(asyncio.get_running_loop(), database)
        parts = {"world": world, "resize": staticmethod(_resizing(monkeypatch))}
        await asyncio.to_thread(run_state_machine_as_test, type("Machine", (FollowMachine,), parts), settings=chosen)


async def test_what_followers_are_given_is_what_the_list_has_for_them(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _try(database_url, monkeypatch, 50, 15)


@pytest.mark.soak
@pytest.mark.timeout(3_000)
async def test_what_followers_are_given_is_what_the_list_has_for_them_in_very_many_histories(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _try(database_url, monkeypatch, 3_000, 30)
