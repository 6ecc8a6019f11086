"""Followers of a log that was restored or cut: told so, or given all that they have a right to, wherever they are."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
import pytest_asyncio
from fix_log import WAIT, DirectLog, new, written
from hivemem_server.domain.errors import CursorDiverged, CursorExpired
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.values import Point
from hivemem_server.log import readers, tail
from hivemem_server.log.cursors import verified
from hivemem_server.log.events import Batch, CaughtUp, Event
from hivemem_server.log.heads import Heads
from hivemem_server.log.subscription import follow
from hivemem_server.log.tail import Tails

NEVER = 3_600.0
START = Point(position=0)


class Stage:
    """A log with ten episodes, whose last three are in memory, and followers that read when the test says."""

    def __init__(self, direct: DirectLog) -> None:
        self.direct = direct
        self.heads = Heads(direct.log, 0.01)
        self.tails = Tails(direct.log, self.heads, lambda record: b"x")
        self._streams = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Stage]:
        polling = asyncio.create_task(self.heads.run())
        with self.tails.following(self.direct.namespace) as self.tail:
            try:
                await self.read_to(0)
                await self.append(10)
                await self.read_to(10)
                yield self
            finally:
                await self._streams.aclose()
                await self.tails.close()
                polling.cancel()
                await asyncio.gather(polling, return_exceptions=True)

    async def append(self, count: int) -> int:
        """Appends so many, as another replica does; returns the head."""
        outcome = written(await self.direct.append(self.direct.ready(*(new() for _ in range(count)))))
        return outcome.stored[-1].position

    async def read_to(self, position: int) -> None:
        """Waits until the log is in memory up to a position."""
        async with asyncio.timeout(WAIT):
            while self.tail.end is None or self.tail.end.position != position:
                await self.tail.news(NEVER)

    async def forgotten(self) -> None:
        """Waits until it was noticed that what was cut is not in the log any more."""
        async with asyncio.timeout(WAIT):
            while self.tail.has(self._cut):
                await self.tail.news(NEVER)

    async def cut_after(self, position: int) -> None:
        """As a restored database: what is after the position was never written."""
        assert self.tail.end is not None
        self._cut = self.tail.end
        await self.direct.database.fetch(
            "DELETE FROM log WHERE namespace_id = %s AND position > %s", [self.direct.namespace.key, position]
        )

    async def cut_through(self, position: int) -> None:
        """Cuts the log's beginning."""
        async with self.direct.database.transaction() as connection:
            key = self.direct.namespace.key
            await connection.execute("UPDATE namespaces SET floor = %s WHERE namespace_id = %s", [position, key])
            await connection.execute("DELETE FROM log WHERE namespace_id = %s AND position <= %s", [key, position])

    async def point(self, position: int) -> Point:
        return await self.direct.log.point(self.direct.namespace, position) or START

    async def follower(self, position: int, *, batch_size: int = 1, live: bool = False) -> Follower:
        """One that comes from a position; live: it has read all that there was after it."""
        bounds = await self.direct.log.bounds(self.direct.namespace)
        events = follow(
            self.direct.log, self.tails, self.direct.namespace, Filter(), await self.point(position),
            batch_size=batch_size, heartbeat=NEVER, head=bounds.head.position,
        )  # fmt: skip
        made = Follower(events)
        self._streams.push_async_callback(events.aclose)
        if live:
            await made.caught_up()
        return made


class Follower:
    def __init__(self, events: AsyncGenerator[Event]) -> None:
        self._events = events

    async def next(self) -> list[int]:
        """Positions of the next batch."""
        async with asyncio.timeout(WAIT):
            while not isinstance(event := await anext(self._events), Batch):
                pass
        return [each.record.position for each in event.records]

    async def caught_up(self) -> list[int]:
        """What comes until it is."""
        came: list[int] = []
        async with asyncio.timeout(WAIT):
            while not isinstance(event := await anext(self._events), CaughtUp):
                came += [each.record.position for each in event.records] if isinstance(event, Batch) else []
        return came


@pytest_asyncio.fixture(loop_scope="session")
async def stage(direct: DirectLog, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(tail, "TAIL_RECORDS", 3)
    monkeypatch.setattr(tail, "CHECK_SECONDS", 0.05)
    async with Stage(direct).open() as made:
        yield made


# A restored database


@pytest.mark.parametrize("written_since", [1, 3, 9])
@pytest.mark.parametrize("position", [10, 9, 8])
async def test_whoever_was_given_what_is_not_in_the_log_any_more_is_told(
    stage: Stage, position: int, written_since: int
) -> None:
    live = await stage.follower(position, live=True)
    in_memory, in_catch_up = await stage.follower(position - 1), await stage.follower(5)
    assert await in_memory.next() == [position]
    for expected in range(6, position + 1):
        assert await in_catch_up.next() == [expected]
    cursor = await stage.point(position)
    await stage.cut_after(7)
    await stage.append(written_since)
    await stage.forgotten()
    for follower in (live, in_memory, in_catch_up):
        with pytest.raises(CursorDiverged):
            await follower.next()
    with pytest.raises(CursorDiverged):
        await verified(stage.direct.log, stage.direct.namespace, cursor)


async def test_who_was_not_given_what_the_restored_log_has_not_goes_on_in_its_history(stage: Stage) -> None:
    in_memory, in_catch_up = await stage.follower(6), await stage.follower(2)
    assert await in_memory.next() == [7]
    assert await in_catch_up.next() == [3]
    await stage.cut_after(7)
    assert await stage.append(5) == 12
    await stage.forgotten()
    assert await in_memory.caught_up() == [8, 9, 10, 11, 12]
    assert await in_catch_up.caught_up() == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    cursor = await stage.point(7)
    assert await verified(stage.direct.log, stage.direct.namespace, cursor) == cursor


async def test_the_memory_of_another_history_is_not_given_to_those_that_come_after(stage: Stage) -> None:
    await stage.cut_after(8)
    assert await stage.append(4) == 12
    await stage.forgotten()
    newcomer = await stage.follower(8, batch_size=10)
    assert await newcomer.caught_up() == [9, 10, 11, 12]
    assert await stage.append(1) == 13
    assert await newcomer.next() == [13]


async def test_a_live_follower_of_a_log_that_has_as_many_records_again_is_told_when_it_goes_on(stage: Stage) -> None:
    live = await stage.follower(10, live=True)
    await stage.cut_after(7)
    await stage.append(3)  # the head is what it was: no poll finds anything
    await stage.append(1)
    with pytest.raises(CursorDiverged):
        await live.next()


# A log whose beginning is cut


async def test_a_follower_in_the_middle_whose_place_is_cut_off_is_told_the_first_position(stage: Stage) -> None:
    in_catch_up = await stage.follower(2)
    assert await in_catch_up.next() == [3]
    await stage.cut_through(8)
    with pytest.raises(CursorExpired) as expired:
        await in_catch_up.next()
    assert expired.value.metadata == {"position": "3", "first_position": "9"}


async def test_a_follower_in_memory_is_given_what_lies_there_though_it_was_cut_off_meanwhile(stage: Stage) -> None:
    in_memory = await stage.follower(7)
    await stage.cut_through(9)
    assert await in_memory.caught_up() == [8, 9, 10]
    assert await stage.append(1) == 11
    assert await in_memory.next() == [11]


async def test_a_follower_that_falls_out_of_memory_below_the_first_position_is_told_it(stage: Stage) -> None:
    in_memory = await stage.follower(7)
    assert await in_memory.next() == [8]
    await stage.append(4)
    await stage.read_to(14)
    await stage.cut_through(11)
    with pytest.raises(CursorExpired) as expired:
        await in_memory.next()
    assert expired.value.metadata == {"position": "8", "first_position": "12"}


async def test_a_follower_at_the_first_position_goes_on(stage: Stage) -> None:
    in_catch_up = await stage.follower(2)
    assert await in_catch_up.next() == [3]
    await stage.cut_through(3)
    assert await in_catch_up.caught_up() == [4, 5, 6, 7, 8, 9, 10]


async def test_a_log_that_was_cut_to_nothing_goes_on_for_those_at_its_end_only(stage: Stage) -> None:
    live, in_catch_up = await stage.follower(10, live=True), await stage.follower(2)
    await stage.cut_through(10)
    assert await stage.append(2) == 12
    assert await live.next() == [11]
    assert await live.next() == [12]
    with pytest.raises(CursorExpired):
        await in_catch_up.next()


async def test_cuts_while_followers_read_never_skip_a_record_in_silence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "FIRST_BATCH", 2)
    chance, ended = random.Random(4), asyncio.Event()
    told = 0

    async def cut() -> None:
        floor = 0
        for _ in range(60):
            head = await stage.append(3)
            floor = chance.randint(floor, head)
            await stage.cut_through(floor)
        await stage.append(1)
        ended.set()

    async def read(batch_size: int, pauses: int) -> None:
        """Follows from the beginning; whenever it is told that its place was cut off, from the first position."""
        nonlocal told
        at, follower = 0, await stage.follower(0, batch_size=batch_size)
        while not ended.is_set() or at < 191:
            try:
                for position in await follower.next():
                    assert position == at + 1
                    at = position
            except CursorExpired as expired:
                position, first = (int(expired.metadata[name]) for name in ("position", "first_position"))
                told += position == at < first - 1
                at = first - 1
                follower = await _from(stage, at, batch_size)
            for _ in range(pauses):
                await asyncio.sleep(0)

    await asyncio.gather(cut(), *(read(size, pauses) for size in (1, 2, 5) for pauses in (0, 20, 200)))
    assert told


async def _from(stage: Stage, position: int, batch_size: int) -> Follower:
    events = follow(
        stage.direct.log, stage.tails, stage.direct.namespace, Filter(), Point(position=position),
        batch_size=batch_size, heartbeat=NEVER,
    )  # fmt: skip
    stage._streams.push_async_callback(events.aclose)
    return Follower(events)
