"""Tails: what the one reader of a log keeps in memory, for whom it reads, and how it goes on after errors."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest
from hivemem_server.domain.errors import CursorDiverged, DatabaseUnavailable, HivememError, NamespaceNotFound
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogBounds, LogStore, Window
from hivemem_server.domain.values import NO_RECORD, Episode, LogRecord, Namespace, NamespaceSettings, Point
from hivemem_server.log import tail as module
from hivemem_server.log.events import Batch, CaughtUp, Event, GoingAway
from hivemem_server.log.heads import Heads
from hivemem_server.log.readers import Place, Reader
from hivemem_server.log.records import Asked, Encoded
from hivemem_server.log.subscription import follow
from hivemem_server.log.tail import Tail, Tails

WAIT = 10.0
NEVER = 3_600.0
NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
START = Point(position=0)
ASKED = Asked(Filter(), lambda _: True, 100)


def namespace(key: int = 1) -> Namespace:
    return Namespace(
        key=key, name=f"n{key}", epoch=uuid.uuid4(), digest_key=b"", settings=NamespaceSettings(), floor=0, head=0,
        create_time=NOW, update_time=NOW,
    )  # fmt: skip


def record(position: int, history: int = 1) -> LogRecord:
    """A record whose id tells the history that it is of."""
    episode_id = uuid.UUID(int=history * 1_000_000 + position)
    episode = Episode(
        episode_id=episode_id, summary="s", position=position, session_id="s", agent_id="a", revision=position,
        commit_time=NOW,
    )  # fmt: skip
    return LogRecord(position=position, record_id=episode_id, time=NOW, content=episode)


def point(position: int, history: int = 1) -> Point:
    return Point(position=position, record_id=record(position, history).record_id) if position else START


def encoded(positions: Sequence[int], size: int = 10) -> list[Encoded]:
    return [Encoded(record(position), b"x" * size) for position in positions]


def filled(first: int, last: int) -> Tail:
    """A tail with the records from `first` to `last`."""
    tail = Tail()
    tail.restart(point(first - 1))
    tail.extend(encoded(range(first, last + 1)), point(last))
    return tail


def after(tail: Tail, position: int, most: int = 100, most_bytes: int = 1_000) -> tuple[list[int], int]:
    """Positions of what comes after one that is there, and how far they reach."""
    stretch = tail.after(point(position), most, most_bytes)
    return [each.record.position for each in stretch.records], stretch.end.position


# A tail


def test_a_tail_that_was_not_read_yet_has_nothing() -> None:
    assert not Tail().has(START)
    assert not Tail().has(point(1))


def test_a_tail_has_the_places_between_its_begin_and_its_end_and_no_others() -> None:
    tail = filled(4, 7)
    assert [position for position in range(12) if tail.has(point(position))] == [3, 4, 5, 6, 7]


def test_a_tail_has_no_place_of_another_history_nor_one_without_a_record() -> None:
    tail = filled(4, 7)
    for position in range(12):
        assert not tail.has(point(position, history=2)) or not position
        assert not tail.has(Point(position=position))


def test_the_end_of_what_was_read_is_there_though_no_record_is() -> None:
    tail = filled(4, 7)
    tail.extend([], point(9))
    assert tail.has(point(9))
    assert not tail.has(point(8))
    assert after(tail, 5) == ([6, 7], 9)
    assert after(tail, 7) == ([], 9)


def test_what_comes_next_is_bounded_in_number_and_bytes_but_at_least_one() -> None:
    tail = filled(4, 9)
    assert after(tail, 3) == ([4, 5, 6, 7, 8, 9], 9)
    assert after(tail, 5, most=2) == ([6, 7], 7)
    assert after(tail, 3, most_bytes=30) == ([4, 5, 6], 6)
    assert after(tail, 3, most_bytes=1) == ([4], 4)
    assert after(tail, 9) == ([], 9)


def test_a_tail_that_is_shortened_begins_after_the_last_that_it_dropped() -> None:
    tail = filled(4, 9)
    tail.shorten(6)
    assert (tail.begin, tail.count, tail.bytes) == (point(3), 6, 60)
    tail.shorten(2)
    assert (tail.begin, tail.end, tail.count, tail.bytes) == (point(7), point(9), 2, 20)
    assert [position for position in range(12) if tail.has(point(position))] == [7, 8, 9]
    assert after(tail, 7) == ([8, 9], 9)


def test_a_tail_that_restarts_has_its_new_place_only() -> None:
    tail, batch = filled(4, 9), Batch(records=[], point=point(9))
    tail.shared[9, ASKED] = batch
    tail.restart(point(20))
    assert (tail.count, tail.bytes, len(tail.shared)) == (0, 0, 0)
    assert [position for position in range(30) if tail.has(point(position))] == [20]
    tail.restart(None)
    assert not tail.has(point(20))


def test_a_batch_is_shared_as_long_as_somebody_has_it_and_there_are_no_newer_records() -> None:
    tail, batch = filled(4, 9), Batch(records=[], point=point(9))
    tail.shared[9, ASKED] = batch
    assert tail.shared[9, ASKED] is batch
    tail.extend(encoded([10]), point(10))
    assert not tail.shared
    tail.shared[10, ASKED] = batch
    del batch
    gc.collect()
    assert not tail.shared


@pytest.mark.parametrize(
    "happens",
    [lambda tail: tail.extend([], point(9)), lambda tail: tail.restart(None), Tail.wake],
    ids=["new records", "a restart", "a call"],
)
async def test_all_who_wait_are_woken_by(happens: Callable[[Tail], None]) -> None:
    tail = filled(4, 9)
    waiting = [asyncio.create_task(tail.news(NEVER)) for _ in range(3)]
    await asyncio.sleep(0)
    happens(tail)
    async with asyncio.timeout(WAIT):
        await asyncio.gather(*waiting)
    assert not tail._waiting


async def test_a_wait_ends_with_its_time_and_one_that_is_cancelled_leaves_nothing() -> None:
    tail = filled(4, 9)
    async with asyncio.timeout(WAIT):
        await tail.news(0.0)
    waiting = asyncio.create_task(tail.news(NEVER))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not tail._waiting


# The reader of a log


class ScriptedLog:
    """Logs in memory, by the keys of their namespaces; reads fail, or wait, as the test says."""

    def __init__(self) -> None:
        self.records: dict[int, list[LogRecord]] = {}
        self.floor = 0
        self.failures: list[Exception] = []
        self.reads = 0
        self.open = asyncio.Event()
        self.open.set()
        self._changed = asyncio.Condition()

    def write(self, first: int, last: int, key: int = 1, history: int = 1) -> None:
        """Records from `first` to `last`, instead of all that were there from `first` on."""
        kept = [each for each in self.records.get(key, []) if each.position < first]
        self.records[key] = kept + [record(position, history) for position in range(first, last + 1)]

    async def bounds(self, namespace: Namespace) -> LogBounds:
        await self._read()
        found = self.records.get(namespace.key, [])
        head = found[-1] if found else None
        return LogBounds(
            head=Point(position=head.position if head else self.floor, record_id=head.record_id if head else NO_RECORD),
            floor=self.floor,
        )

    async def window(self, namespace: Namespace, wanted: Filter, after: int, span: int, limit: int) -> Window:
        await self._read()
        found = self.records.get(namespace.key, [])
        ids = {each.position: each.record_id for each in found}
        head = found[-1].position if found else self.floor
        records = [each for each in found if after < each.position <= after + span][:limit]
        end = records[-1].position if len(records) == limit else max(min(head, after + span), after)
        return Window(
            begin=Point(position=after, record_id=ids.get(after, NO_RECORD)), records=records,
            end=Point(position=end, record_id=ids.get(end, NO_RECORD)), head=head, floor=self.floor,
        )  # fmt: skip

    async def _read(self) -> None:
        async with self._changed:
            self.reads += 1
            self._changed.notify_all()
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)

    async def read(self, more: int) -> None:
        """Waits for so many more reads to begin."""
        wanted = self.reads + more
        async with asyncio.timeout(WAIT), self._changed:
            await self._changed.wait_for(lambda: self.reads >= wanted)


class Stage:
    """Tails of scripted logs."""

    def __init__(self) -> None:
        self.log = ScriptedLog()
        self.encoded = 0
        self._followings: list[Following] = []
        self.heads = Heads(cast(LogStore, self.log), NEVER)
        self.tails = Tails(cast(LogStore, self.log), self.heads, self._encode)

    def _encode(self, record: LogRecord) -> bytes:
        self.encoded += 1
        return b"x" * 10

    def follow(self, of: Namespace, start: Point = START, **fields: object) -> Following:
        chosen: dict[str, Any] = {"batch_size": 100, "heartbeat": NEVER} | fields
        following = Following(follow(cast(LogStore, self.log), self.tails, of, Filter(), start, **chosen))
        self._followings.append(following)
        return following

    async def close(self) -> None:
        """Ends all who follow."""
        for following in self._followings:
            await following.close()
        await self.tails.close()

    def committed(self, of: Namespace, first: int, last: int, history: int = 1) -> None:
        """Writes records, and tells of them."""
        self.log.write(first, last, of.key, history)
        self.heads.advance(of, last)


class Following:
    """Reads events."""

    def __init__(self, events: AsyncGenerator[Event]) -> None:
        self._events = events

    async def next(self) -> Event:
        async with asyncio.timeout(WAIT):
            return await anext(self._events)

    async def caught_up(self) -> list[int]:
        """Reads until it is; returns the positions that came."""
        came: list[int] = []
        while not isinstance(event := await self.next(), CaughtUp):
            came += positions(event)
        return came

    async def batch(self) -> list[int]:
        """Reads until a batch comes."""
        while not isinstance(event := await self.next(), Batch):
            pass
        return positions(event)

    async def close(self) -> None:
        """Goes away."""
        await self._events.aclose()


def positions(event: Event) -> list[int]:
    return [each.record.position for each in event.records] if isinstance(event, Batch) else []


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    made = Stage()
    yield made
    await made.close()


@contextlib.asynccontextmanager
async def read_to(stage: Stage, of: Namespace, position: int) -> AsyncIterator[Tail]:
    """A tail that is followed, when it has been read so far."""
    with stage.tails.following(of) as tail:
        await until(tail, position)
        yield tail


async def until(tail: Tail, position: int) -> None:
    async with asyncio.timeout(WAIT):
        while tail.end is None or tail.end.position < position:
            await tail.news(NEVER)


async def test_a_log_is_read_once_for_all_who_follow_and_encoded_once(stage: Stage) -> None:
    one = namespace()
    stage.log.write(1, 3)
    async with read_to(stage, one, 3):
        followers = [stage.follow(one, point(3)) for _ in range(20)]
        for follower in followers:
            assert await follower.caught_up() == []
        assert stage.tails.follower_count == 21
        reads = stage.log.reads
        waiting = [asyncio.create_task(follower.batch()) for follower in followers]
        stage.committed(one, 4, 6)
        assert await asyncio.gather(*waiting) == [[4, 5, 6]] * 20
        assert stage.encoded == 3
        assert stage.log.reads == reads + 1


async def test_those_who_ask_the_same_share_a_batch_and_others_do_not(stage: Stage) -> None:
    one = namespace()
    async with read_to(stage, one, 0):
        followers = [stage.follow(one, batch_size=size) for size in (100, 100, 2)]
        for follower in followers:
            await follower.caught_up()
        stage.committed(one, 1, 3)
        first, second, third = [await follower.next() for follower in followers]
        assert first is second
        assert (positions(first), positions(third)) == ([1, 2, 3], [1, 2])


async def test_who_is_further_behind_reads_the_database_until_what_comes_is_in_memory(stage: Stage) -> None:
    one = namespace()
    stage.log.write(1, 5)
    async with read_to(stage, one, 5) as tail:
        stage.committed(one, 6, 8)
        await until(tail, 8)
        reads = stage.log.reads
        assert await stage.follow(one, point(2), batch_size=3).caught_up() == [3, 4, 5, 6, 7, 8]
        assert stage.log.reads == reads + 1


async def test_who_knows_of_more_than_is_in_memory_reads_the_database_and_holds_nobody_up(stage: Stage) -> None:
    one = namespace()
    stage.log.write(1, 3)
    async with read_to(stage, one, 3):
        stage.log.write(4, 6)  # by another replica: nobody has told of it here
        follower = stage.follow(one, point(3), head=6)
        assert await follower.caught_up() == [4, 5, 6]


async def test_who_comes_upon_the_end_of_memory_and_knows_of_more_goes_on_in_the_database(stage: Stage) -> None:
    stage.log.write(1, 8)
    tail = filled(4, 5)
    place = Place(cast(LogStore, stage.log), stage.tails, tail, namespace(), point(1), 0)
    reader = Reader(place, Filter(), 2)
    assert positions(await reader.read()) == [2, 3]
    assert positions(await reader.read()) == [4, 5]
    assert place.point == tail.end
    assert reader.falls_behind()
    assert positions(await reader.read()) == [6, 7]


@pytest.mark.parametrize("away", [1, 3])
async def test_a_reader_goes_on_where_it_was_when_the_database_returns(stage: Stage, away: int) -> None:
    one = namespace()
    stage.log.write(1, 3)
    async with read_to(stage, one, 3) as tail:
        stage.log.failures = [DatabaseUnavailable("away")] * away
        stage.committed(one, 4, 5)
        await until(tail, 5)
        assert (tail.begin, tail.count) == (point(3), 2)


async def test_a_reader_that_fails_by_a_bug_begins_again_and_its_followers_miss_nothing(stage: Stage) -> None:
    one = namespace()
    follower = stage.follow(one)
    await follower.caught_up()
    stage.log.failures = [RuntimeError("a bug")]
    stage.committed(one, 1, 3)
    assert await follower.batch() == [1, 2, 3]
    stage.committed(one, 4, 5)
    assert await follower.batch() == [4, 5]


async def test_a_reader_whose_log_goes_on_from_another_history_begins_again_and_its_followers_are_told(
    stage: Stage,
) -> None:
    one = namespace()
    stage.log.write(1, 5)
    at_the_end, before_the_cut, other = [stage.follow(one, point(position)) for position in (5, 2, 5)]
    for follower in (at_the_end, before_the_cut, other):
        await follower.caught_up()
    stage.log.write(4, 6, history=2)
    stage.heads.advance(one, 6)
    for follower in (at_the_end, before_the_cut, other):
        with pytest.raises(CursorDiverged):
            await follower.next()
    newcomer = stage.follow(one, point(3))
    assert await newcomer.caught_up() == [4, 5, 6]
    stage.committed(one, 7, 7, history=2)
    assert await newcomer.batch() == [7]


async def test_a_log_without_news_is_looked_at_now_and_then(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)
    one = namespace()
    stage.log.write(1, 5)
    follower = stage.follow(one, point(5))
    await follower.caught_up()
    stage.log.write(3, 5, history=2)  # as many as before: no head tells it
    with pytest.raises(CursorDiverged):
        await follower.next()


async def test_a_log_whose_beginning_was_cut_past_its_reader_is_read_from_its_head(stage: Stage) -> None:
    one = namespace()
    stage.log.write(1, 5)
    async with read_to(stage, one, 5) as tail:
        stage.log.records[1], stage.log.floor = [record(21)], 20
        stage.heads.advance(one, 21)
        await until(tail, 21)
        assert (tail.begin, tail.count) == (point(21), 0)


async def test_the_reader_of_a_log_that_is_gone_ends_and_a_newcomer_gets_another(stage: Stage) -> None:
    one = namespace()
    follower = stage.follow(one)
    await follower.caught_up()
    gone: HivememError = NamespaceNotFound("gone")
    stage.log.failures = [gone] * 2  # to the reader, and to the follower that it wakes
    stage.committed(one, 1, 1)
    with pytest.raises(NamespaceNotFound):
        await follower.next()
    assert stage.heads.follower_count == 0
    async with read_to(stage, one, 1):
        assert stage.heads.follower_count == 1
        assert await stage.follow(one).caught_up() == [1]


async def test_all_tails_share_a_budget_of_bytes_and_the_largest_gives_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAIL_BYTES", 200)
    large, small = namespace(1), namespace(2)
    async with read_to(stage, large, 0) as one, read_to(stage, small, 0) as two:
        stage.committed(large, 1, 16)
        await until(one, 16)
        stage.committed(small, 1, 3)
        await until(two, 3)
        assert (one.count, two.count) == (16, 3)
        stage.committed(small, 4, 6)
        await until(two, 6)
        assert (one.count, two.count) == (8, 6)
        assert stage.tails._bytes == one.bytes + two.bytes == 140
        assert one.begin == point(8)
        stage.committed(large, 17, 40)
        await until(one, 40)
        assert stage.tails._bytes == one.bytes + two.bytes <= 200


async def test_a_record_larger_than_the_budget_is_kept_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAIL_BYTES", 5)
    one = namespace()
    async with read_to(stage, one, 0) as tail:
        stage.committed(one, 1, 4)
        await until(tail, 4)
        assert (tail.count, tail.begin) == (1, point(3))


async def test_a_tail_keeps_so_many_records(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAIL_RECORDS", 3)
    one = namespace()
    async with read_to(stage, one, 0) as tail:
        stage.committed(one, 1, 8)
        await until(tail, 8)
        assert (tail.count, tail.begin, stage.tails._bytes) == (3, point(5), 30)


async def test_a_tail_outlives_its_last_follower_for_a_while_and_is_found_again(stage: Stage) -> None:
    one = namespace()
    async with read_to(stage, one, 0) as tail:
        pass
    assert stage.tails.follower_count == 0
    stage.committed(one, 1, 2)
    with stage.tails.following(one) as again:
        assert again is tail
        await until(again, 2)


async def test_the_while_begins_when_the_last_follower_leaves_and_not_an_earlier_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, told = namespace(), asyncio.Event()
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.0)
    with stage.tails.following(one) as tail:
        pass
    monkeypatch.setattr(module, "LINGER_SECONDS", NEVER)
    with stage.tails.following(one):
        pass
    asyncio.get_running_loop().call_later(0.0, told.set)  # after what the first leave has set off
    async with asyncio.timeout(WAIT):
        await told.wait()
    with stage.tails.following(one) as again:
        assert again is tail


async def test_a_tail_that_nobody_needs_any_more_is_given_up_with_its_bytes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.0)
    one = namespace()
    async with read_to(stage, one, 0) as tail, asyncio.timeout(WAIT):
        stage.committed(one, 1, 2)
        await until(tail, 2)
        assert stage.tails._bytes == 20
    async with asyncio.timeout(WAIT):
        await tail.news(NEVER)  # it is restarted, without a place
        assert tail.end is None
        while stage.heads.follower_count:  # noqa: ASYNC110 - its reader is just ending
            await asyncio.sleep(0)
    assert (stage.tails._bytes, stage.tails._followed) == (0, {})
    async with read_to(stage, one, 2) as another:
        assert another is not tail


async def test_a_reader_is_ended_once_however_many_have_left(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.0)
    one = namespace()
    cancels = 0

    class Reads(ScriptedLog):
        async def window(self, *_: object) -> Window:
            nonlocal cancels
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels += 1
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)  # giving up a query takes the database a while
                    cancels -= 1
                cancels += 1
                raise
            raise AssertionError

    stage.tails._store = cast(LogStore, Reads())
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.02)  # which are over while the reader is ending
    async with read_to(stage, one, 0):
        pass
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.0)
    with stage.tails.following(one):
        reader = stage.tails._followed[one.key].reader
    async with asyncio.timeout(WAIT):
        await asyncio.gather(reader, return_exceptions=True)
    assert cancels == 1


async def test_draining_sends_everybody_away_from_where_they_are(stage: Stage) -> None:
    one = namespace()
    stage.log.write(1, 3)
    followers = [stage.follow(one, point(position)) for position in (0, 2, 3)]
    for follower in followers:
        await follower.caught_up()
    waiting = [asyncio.create_task(follower.next()) for follower in followers]
    await asyncio.sleep(0)
    stage.tails.drain()
    for event in [await each for each in waiting]:
        assert isinstance(event, GoingAway)
        assert event.point == point(3)
    late = await stage.follow(one, point(2)).next()
    assert isinstance(late, GoingAway)
    assert late.point == point(2)
    await stage.close()
    assert stage.tails.follower_count == 0


async def test_a_follower_that_is_cut_off_while_it_waits_leaves_nothing_behind(stage: Stage) -> None:
    one = namespace()
    followers = [stage.follow(one) for _ in range(4)]
    for follower in followers:
        await follower.caught_up()
    tail = stage.tails._followed[one.key].tail
    waiting = [asyncio.create_task(follower.next()) for follower in followers[:2]]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await followers[2].close()
    assert stage.tails.follower_count == 1
    assert not tail._waiting


async def test_an_idle_log_gives_heartbeats_and_a_lonely_record_one_batch(stage: Stage) -> None:
    one = namespace()
    follower = stage.follow(one, heartbeat=0.0)
    await follower.caught_up()
    seen = [await follower.next() for _ in range(3)]
    assert {type(event).__name__ for event in seen} == {"Progress"}
    assert {event.point for event in seen} == {START}
    await follower.close()
