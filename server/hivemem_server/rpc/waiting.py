"""Long polls: the first batch of a subscription that ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from hivemem.v1 import episode_service_pb2 as pb

from hivemem_server.domain.values import LogRecord, Namespace, Point
from hivemem_server.log.cursors import encode_cursor
from hivemem_server.log.events import Batch, CaughtUp, Event, FellBehind, GoingAway, Progress
from hivemem_server.rpc import convert
from hivemem_server.rpc.deadline import time_to_wait
from hivemem_server.rpc.pages import fitting

TIMEOUT_SECONDS = (0.0, 30.0, 60.0)  # least, default, most
LOOK_SECONDS = 1.0  # for reading what is there, however short the wait is
READ_SECONDS = 0.2  # for the last look, which moves the cursor past what did not match
SHORTEST_HEARTBEAT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """What a wait came to. Everything that matches up to `point` is in `records`."""

    records: Sequence[LogRecord]
    point: Point
    head: int


async def first_batch(
    follow: Callable[[float], AsyncGenerator[Event]], start: Point, head: int, timeout: float
) -> Waited:
    """The first batch of events after `start`, or none when `timeout` seconds are over or the server drains.

    `follow` begins the events, with heartbeats so many seconds off. It returns before the caller's deadline.
    """
    longest = time_to_wait(timeout + LOOK_SECONDS)
    seconds = max(0.0, min(timeout, longest - READ_SECONDS))
    ends, last_look = time.monotonic() + seconds, time.monotonic() + longest - READ_SECONDS
    waited = Waited(records=(), point=start, head=max(head, start.position))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest), aclosing(follow(max(seconds, SHORTEST_HEARTBEAT))) as events:
            async for event in events:
                waited = _after(event, waited.head)
                if _is_over(event, waited, ends, last_look):
                    break
    return waited


def _after(event: Event, head: int) -> Waited:
    match event:
        case Batch(records=records, point=point):
            return Waited(records=[one.record for one in records], point=point, head=max(head, point.position))
        case FellBehind(point=point, head=now) | Progress(point=point, head=now):
            return Waited(records=(), point=point, head=now)
        case CaughtUp(point=point) | GoingAway(point=point):
            return Waited(records=(), point=point, head=max(head, point.position))


def _is_over(event: Event, waited: Waited, ends: float, last_look: float) -> bool:
    if isinstance(event, Batch | GoingAway):
        return True
    read_all = isinstance(event, CaughtUp) or waited.point.position >= waited.head
    return time.monotonic() >= (ends if read_all else last_look)


def response(namespace: Namespace, waited: Waited) -> pb.WaitEpisodesResponse:
    """A message of bounded size, with the cursor after its last record."""
    records = fitting([convert.record(record) for record in waited.records])
    point = waited.point
    if len(records) < len(waited.records):
        last = waited.records[len(records) - 1]
        point = Point(position=last.position, record_id=last.record_id)
    return pb.WaitEpisodesResponse(
        records=records,
        cursor=encode_cursor(namespace, point),
        position=point.position,
        head_position=max(waited.head, point.position),
    )
