"""The newest records of each log that is followed here, read and encoded once for all who follow it.

A log has one reader, a task that lives as long as somebody follows. What it reads lies in memory until newer records
push it out; a follower that is further behind reads the database until it has caught up. Followers own nothing here but
the future by which they wait: one that is slow costs nobody anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import structlog

from hivemem_server.domain.errors import CursorDiverged, CursorExpired, HivememError, NamespaceNotFound
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogStore, Window
from hivemem_server.domain.predicates import matcher
from hivemem_server.domain.values import LogRecord, Namespace, Point, RecordKind
from hivemem_server.log.cursors import check_history
from hivemem_server.log.events import Batch
from hivemem_server.log.heads import Heads
from hivemem_server.log.records import Asked, Encoded

_log = structlog.get_logger()

Encode = Callable[[LogRecord], bytes]

EVERYTHING = Filter(record_kinds=(RecordKind.EPISODE, RecordKind.THREAD_EVENT))
TAIL_BYTES = 16 * 1024 * 1024  # encoded, of all logs together; in memory records take some four times as much
TAIL_RECORDS = 4_096  # of one log
READ_SPAN, READ_RECORDS = 10_000, 500
# However many follow, appends find a connection.
READS_AT_ONCE, FAR_READS_AT_ONCE = 2, 4
CHECK_SECONDS = 60.0  # a log without news is read again, to see that its history is still the same
RETRY_SECONDS = 0.5
LINGER_SECONDS = 10.0  # a tail outlives its last follower, who may only be reconnecting, or polls


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some records in order, and how far they reach: nothing between them and up to `end` was left out."""

    records: Sequence[Encoded]
    end: Point


class Tail:
    """The end of one log in memory: all records after `begin` up to `end`. Without an end it has not been read yet."""

    def __init__(self) -> None:
        self.begin: Point | None = None
        self.end: Point | None = None
        self.followers = 0
        self.bytes = 0
        # Batches that a follower is being sent, for others who ask the same; nobody's when all have them.
        self.shared: WeakValueDictionary[tuple[int, Asked], Batch] = WeakValueDictionary()
        self._records: list[Encoded] = []
        self._positions: list[int] = []
        self._waiting: set[asyncio.Future[None]] = set()

    def has(self, point: Point) -> bool:
        """Whether what follows the point lies here, in the history that the point is of."""
        if point is self.end or point in (self.begin, self.end):
            return True
        index = bisect_left(self._positions, point.position)
        if index == len(self._positions) or self._positions[index] != point.position:
            return False
        return self._records[index].record.record_id == point.record_id

    @property
    def count(self) -> int:
        """How many records are here."""
        return len(self._records)

    def after(self, point: Point, most: int, most_bytes: int) -> Stretch:
        """The next records after a point that is here, at most so many, but at least one."""
        first = last = bisect_right(self._positions, point.position)
        size = 0
        while last < len(self._records) and last - first < most:
            size += len(self._records[last].data)
            if size > most_bytes and last > first:
                break
            last += 1
        at_end = last == len(self._records) and self.end
        end = at_end or _point(self._records[last - 1].record)
        return Stretch(records=self._records[first:last], end=end)

    def extend(self, records: Sequence[Encoded], end: Point) -> None:
        """Takes in what was read after `end`, and wakes who waits for it."""
        self._records += records
        self._positions += [encoded.record.position for encoded in records]
        self.bytes += sum(len(encoded.data) for encoded in records)
        self.end = end
        self.shared.clear()
        self.wake()

    def shorten(self, most: int) -> None:
        """Drops the oldest records until at most so many are left."""
        dropped = len(self._records) - most
        if dropped > 0:
            self.begin = _point(self._records[dropped - 1].record)
            self.bytes -= sum(len(encoded.data) for encoded in self._records[:dropped])
            del self._records[:dropped], self._positions[:dropped]

    def restart(self, at: Point | None) -> None:
        """Forgets everything and goes on from another place, or from none. Who waits looks for itself."""
        self._records, self._positions, self.bytes = [], [], 0
        self.shared.clear()
        self.begin = self.end = at
        self.wake()

    def wake(self) -> None:
        """Wakes all who wait."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def news(self, seconds: float) -> None:
        """Waits until something happens here, at most so long."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _end_wait, future)
        self._waiting.add(future)
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.discard(future)


def _end_wait(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _point(record: LogRecord) -> Point:
    return Point(position=record.position, record_id=record.record_id)


@dataclass(slots=True, eq=False)
class _Followed:
    tail: Tail
    reader: asyncio.Task[None]
    retiring: asyncio.TimerHandle | None = None


class Tails:
    """The tails of all logs that are followed here."""

    def __init__(self, store: LogStore, heads: Heads, encode: Encode) -> None:
        self._store = store
        self._heads = heads
        self._encode = encode
        self._followed: dict[int, _Followed] = {}
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._bytes = 0
        self._asked: WeakValueDictionary[tuple[Filter, int], Asked] = WeakValueDictionary()
        self.far_reads = asyncio.Semaphore(FAR_READS_AT_ONCE)
        self.draining = False

    @property
    def follower_count(self) -> int:
        """How many follow a log here."""
        return sum(followed.tail.followers for followed in self._followed.values())

    @contextlib.contextmanager
    def following(self, namespace: Namespace) -> Iterator[Tail]:
        """The tail of a log, which is read on while the context is open."""
        followed = self._followed.get(namespace.key)
        if followed is None or followed.reader.done():
            tail = Tail()
            reader = asyncio.create_task(self._read(namespace, tail), name=f"tail {namespace.name}")
            followed = self._followed[namespace.key] = _Followed(tail, reader)
        if followed.retiring is not None:
            followed.retiring.cancel()
        followed.tail.followers += 1
        try:
            yield followed.tail
        finally:
            followed.tail.followers -= 1
            if not followed.tail.followers:
                later = asyncio.get_running_loop().call_later
                followed.retiring = later(LINGER_SECONDS, self._retire, namespace.key, followed)

    def asked(self, wanted: Filter, most: int) -> Asked:
        """The question; the same object for all who ask the same."""
        asked = self._asked.get((wanted, most))
        if asked is None:
            asked = self._asked[wanted, most] = Asked(wanted, matcher(wanted), most)
        return asked

    def encoded(self, record: LogRecord) -> Encoded:
        """The record with its bytes."""
        return Encoded(record, self._encode(record))

    def drain(self) -> None:
        """Wakes everybody for good."""
        self.draining = True
        for followed in self._followed.values():
            followed.tail.wake()

    async def close(self) -> None:
        """Ends all readers."""
        readers = [followed.reader for followed in self._followed.values()]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    def _retire(self, key: int, followed: _Followed) -> None:
        if not followed.tail.followers and self._followed.get(key) is followed:
            del self._followed[key]
            followed.reader.cancel()  # once: what it asked the database is given up in good order
            self._restart(followed.tail, None)

    async def _read(self, namespace: Namespace, tail: Tail) -> None:
        """Reads a log on, until it does not exist any more."""
        with self._heads.following(namespace):
            while True:
                try:
                    await self._read_on(namespace, tail)
                except NamespaceNotFound:
                    return self._restart(tail, None)
                except (CursorExpired, CursorDiverged):  # each follower finds out what it means for its own place
                    self._restart(tail, None)
                except HivememError:  # the database is away, which the pool has logged
                    await asyncio.sleep(RETRY_SECONDS)
                except Exception:
                    _log.exception("the reader of a log failed; it begins again", namespace=namespace.name)
                    self._restart(tail, None)
                    await asyncio.sleep(RETRY_SECONDS)

    async def _read_on(self, namespace: Namespace, tail: Tail) -> None:
        """Reads once, and waits until there is more."""
        if tail.end is None:
            async with self._reads:
                self._restart(tail, (await self._store.bounds(namespace)).head)
        begin = tail.end
        assert begin is not None
        known = self._heads.position(namespace)
        async with self._reads:
            window = await self._store.window(namespace, EVERYTHING, begin.position, READ_SPAN, READ_RECORDS)
        check_history(begin, window.begin, window.floor)
        self._extend(tail, window)
        self._heads.correct(namespace, known, window.head)
        if window.end.position >= window.head:
            await self._heads.beyond(namespace, window.end.position, CHECK_SECONDS)

    def _extend(self, tail: Tail, window: Window) -> None:
        before = tail.bytes
        tail.extend([self.encoded(record) for record in window.records], window.end)
        tail.shorten(TAIL_RECORDS)
        self._bytes += tail.bytes - before
        while self._bytes > TAIL_BYTES and (largest := self._largest()):
            before = largest.bytes
            largest.shorten(largest.count // 2)
            self._bytes += largest.bytes - before

    def _largest(self) -> Tail | None:
        """The tail that has most to give; each keeps its newest record."""
        tails = (followed.tail for followed in self._followed.values() if followed.tail.count > 1)
        return max(tails, key=lambda tail: tail.bytes, default=None)

    def _restart(self, tail: Tail, at: Point | None) -> None:
        self._bytes -= tail.bytes
        tail.restart(at)
