"""Following a log: what is there after a point, then what comes, in one order, without gap or repeat."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.predicates import matcher
from hivemem_server.domain.values import Episode, LogRecord, Namespace, Point
from hivemem_server.log.cursors import check_history
from hivemem_server.log.tail import Encoded, Tail, Tails

FIRST_BATCH = 64
BATCH_CHARACTERS = 1_000_000  # of summaries in one read, more or less; a reader that stalls holds no more
NEAR_BYTES = 1_000_000  # of records taken from memory at once
SPAN = 10_000  # positions scanned in one read; what does not match costs no more than that


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Records, in order; everything that matches up to `point` has been delivered with them.

    Followers that ask the same share it. `messages` is room for what carries it, made by the first who sends it.
    """

    records: Sequence[Encoded]
    point: Point
    messages: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Everything that was there has been delivered; what follows is live."""

    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBehind:
    """More is written than the reader takes; delivery goes on in order."""

    point: Point
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Nothing that matches up to `point` was missed."""

    point: Point
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingAway:
    """The server ends the stream in good order."""

    point: Point


Event: TypeAlias = Batch | CaughtUp | FellBehind | Progress | GoingAway


async def follow(
    store: LogStore,
    tails: Tails,
    namespace: Namespace,
    wanted: Filter,
    start: Point,
    *,
    batch_size: int,
    heartbeat: float,
    age: float = math.inf,
) -> AsyncGenerator[Event]:
    """Events after `start`; the last one is GoingAway, when the server drains or after `age` seconds.

    A heartbeat is at most `heartbeat` seconds off. Nothing is held for the reader between two events but its point.
    Raises CursorExpired if the log's beginning is cut past it, CursorDiverged if the log goes on from another history
    than what was delivered.
    """
    now = asyncio.get_running_loop().time
    ends, spoke, live = now() + age, now(), False
    with tails.following(namespace) as tail:
        reader = _Reader(store, tails, tail, namespace, wanted, start, batch_size)
        while not tails.draining and now() < ends:
            near = tail.has(reader.point)
            events: list[Event] = []
            if live and reader.more and not near:
                live = False
                events.append(FellBehind(point=reader.point, head=reader.head))
            batch = reader.read_near() if near else await reader.read_far()
            if batch.records:
                events.append(batch)
            if not (live or reader.more):
                live = True
                events.append(CaughtUp(point=reader.point))
            if not events and (not live or now() - spoke >= heartbeat):
                events.append(Progress(point=reader.point, head=reader.head))
            for event in events:
                yield event
                spoke = now()
            if not reader.more:
                await tail.news(max(0.0, min(spoke + heartbeat, ends) - now()))
        yield GoingAway(point=reader.point)


class _Reader:
    """Reads on from a point: from memory where it is near the log's end, from the database where it is far."""

    def __init__(
        self, store: LogStore, tails: Tails, tail: Tail, namespace: Namespace, wanted: Filter, start: Point, most: int
    ) -> None:
        self._store = store
        self._tails = tails
        self._tail = tail
        self._namespace = namespace
        self._wanted = wanted
        self._matches = matcher(wanted)
        self._most = most
        self._size = _BatchSize(most)
        self._seen = 0
        self.point = start

    @property
    def head(self) -> int:
        """How far the log is known to reach."""
        end = self._tail.end
        return max(self._seen, end.position if end else 0)

    @property
    def more(self) -> bool:
        """Whether the log is known to go on."""
        return self.point.position < self.head

    def read_near(self) -> Batch:
        """What comes next in memory; one batch for all who ask the same at the same point."""
        asked = (self.point, self._wanted, self._most)
        batch = self._tail.shared.get(asked)
        if batch is None:
            stretch = self._tail.after(self.point, self._most, NEAR_BYTES)
            records = [encoded for encoded in stretch.records if self._matches(encoded.record)]
            batch = Batch(records=records, point=stretch.end)
            self._tail.share(asked, batch)
        self.point = batch.point
        return batch

    async def read_far(self) -> Batch:
        """What comes next in the database."""
        async with self._tails.far_reads:
            window = await self._store.window(self._namespace, self._wanted, self.point.position, SPAN, self._size.next)
        check_history(self.point, window.begin, window.floor)
        self.point, self._seen = window.end, window.head
        self._size.note(window.records)
        return Batch(records=list(map(self._tails.encoded, window.records)), point=self.point)


class _BatchSize:
    """How many records to read at once: as many as are asked for, and fewer where they are large."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.next = min(most, FIRST_BATCH)

    def note(self, records: Sequence[LogRecord]) -> None:
        """Learns from what was read."""
        size = sum(len(record.content.summary) for record in records if isinstance(record.content, Episode))
        if len(records) == self.next:
            fitting = self.next * BATCH_CHARACTERS // max(size, 1)
            self.next = max(1, min(self._most, fitting, self.next * 4))
