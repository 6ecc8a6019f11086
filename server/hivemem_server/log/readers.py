"""Reading on in a log: from memory where a reader is near the end, from the database where it is far from it."""

from __future__ import annotations

from collections.abc import Sequence

from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogStore, Window
from hivemem_server.domain.values import Episode, LogRecord, Namespace, Point
from hivemem_server.log.cursors import check_history
from hivemem_server.log.events import Batch
from hivemem_server.log.tail import Tail, Tails

FIRST_BATCH = 64
BATCH_CHARACTERS = 1_000_000  # of summaries in one read, more or less; a reader that stalls holds no more
NEAR_BYTES = 1_000_000  # of records taken from memory at once
SPAN = 10_000  # positions scanned in one read; what does not match costs no more than that


class Place:
    """Where a reader is in a log, and what it reads from there."""

    def __init__(
        self, store: LogStore, tails: Tails, tail: Tail, namespace: Namespace, point: Point, head: int
    ) -> None:
        self._store = store
        self._seen = head
        self.tails = tails
        self.tail = tail
        self.namespace = namespace
        self.point = point

    @property
    def head(self) -> int:
        """How far the log is known to reach."""
        end = self.tail.end
        return max(self._seen, end.position if end else 0)

    async def window(self, wanted: Filter, span: int, size: int) -> Window:
        """The next stretch in the database; the place moves to its end. Raises CursorExpired, CursorDiverged."""
        async with self.tails.far_reads:
            window = await self._store.window(self.namespace, wanted, self.point.position, span, size)
        check_history(self.point, window.begin, window.floor)
        self.point, self._seen = window.end, window.head
        return window


class Reader:
    """Gives what matches a filter."""

    def __init__(self, place: Place, wanted: Filter, most: int) -> None:
        self._place = place
        self._asked = place.tails.asked(wanted, most)
        self._size = BatchSize(most)

    @property
    def more(self) -> bool:
        """Whether there is more to read now."""
        return self._place.point.position < self._place.head

    @property
    def caught_up(self) -> bool:
        """Whether everything was read that was there."""
        return not self.more

    def falls_behind(self) -> bool:
        """Whether the reader, which was live, has to catch up again."""
        return self.more and not self._near

    @property
    def _near(self) -> bool:
        """Whether what comes next is in memory; what is known to lie behind the end of that is not."""
        point, tail = self._place.point, self._place.tail
        return tail.has(point) and not (self.more and point == tail.end)

    async def read(self) -> Batch:
        """What comes next."""
        return self._read_near() if self._near else await self._read_far()

    def _read_near(self) -> Batch:
        """One batch for all who ask the same at the same point."""
        tail, asked, point = self._place.tail, self._asked, self._place.point
        batch = tail.shared.get((point.position, asked))
        if batch is None:
            stretch = tail.after(point, asked.most, NEAR_BYTES)
            records = [encoded for encoded in stretch.records if asked.matches(encoded.record)]
            batch = Batch(records=records, point=stretch.end)
            tail.shared[point.position, asked] = batch
        self._place.point = batch.point
        return batch

    async def _read_far(self) -> Batch:
        window = await self._place.window(self._asked.wanted, SPAN, self._size.next)
        self._size.note(window.records)
        return Batch(records=list(map(self._place.tails.encoded, window.records)), point=window.end)

    async def news(self, seconds: float) -> None:
        """Waits until there may be more, at most so long."""
        await self._place.tail.news(seconds)


class BatchSize:
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
