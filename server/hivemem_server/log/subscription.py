"""Following a log: what is there after a point, then what comes, in one order, without gap or repeat."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.values import Episode, LogRecord, Namespace, Point
from hivemem_server.log.cursors import check_history
from hivemem_server.log.heads import Heads

FIRST_BATCH = 64
BATCH_CHARACTERS = 1_000_000  # of summaries in one read, more or less; a reader that stalls holds no more
SPAN = 10_000  # positions scanned in one read; what does not match costs no more than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records, in order; everything that matches up to `point` has been delivered with them."""

    records: Sequence[LogRecord]
    point: Point


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
    heads: Heads,
    namespace: Namespace,
    wanted: Filter,
    start: Point,
    *,
    batch_size: int,
    heartbeat: float,
) -> AsyncGenerator[Event]:
    """Events after `start`, for ever; the last one is GoingAway. A heartbeat is at most `heartbeat` seconds off.

    Nothing is held for the reader between two events but its point. Raises CursorExpired if the log's beginning is cut
    past it, CursorDiverged if the log goes on from another history than what was delivered.
    """
    point, live, spoke, size = start, False, time.monotonic(), _BatchSize(batch_size)
    with heads.following(namespace):
        while not heads.draining:
            window = await store.window(namespace, wanted, point.position, SPAN, size.next)
            check_history(point, window.begin, window.floor)
            point = window.end
            size.note(window.records)
            heads.advance(namespace, window.head)
            events = _tell(window.records, point, window.head, live=live)
            live = point.position >= window.head
            silent = time.monotonic() - spoke >= heartbeat
            for event in events or ([Progress(point=point, head=window.head)] if silent else []):
                yield event
                spoke = time.monotonic()
            if live:
                await heads.beyond(namespace, point.position, max(0.0, spoke + heartbeat - time.monotonic()))
        yield GoingAway(point=point)


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


def _tell(records: Sequence[LogRecord], point: Point, head: int, *, live: bool) -> list[Event]:
    """What one read has to say to a reader that was live before it, or was not."""
    events: list[Event] = [Batch(records=records, point=point)] if records else []
    at_head = point.position >= head
    if at_head and not live:
        events.append(CaughtUp(point=point))
    elif live and not at_head:
        events.append(FellBehind(point=point, head=head))
    elif not at_head and not records:
        events.append(Progress(point=point, head=head))
    return events
