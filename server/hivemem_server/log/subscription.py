"""Following a log: what is there after a point, then what comes, in one order, without gap or repeat."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator

from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.values import Namespace, Point
from hivemem_server.log.events import CaughtUp, Event, FellBehind, GoingAway, Progress
from hivemem_server.log.readers import Place, Reader
from hivemem_server.log.standing import StandingQuery, StandingReader
from hivemem_server.log.tail import Tails

DRAINED_SECONDS = 0.5  # until another replica can be expected to have taken over


async def follow(
    store: LogStore,
    tails: Tails,
    namespace: Namespace,
    wanted: Filter,
    start: Point,
    *,
    batch_size: int,
    heartbeat: float,
    head: int = 0,
    age: float = math.inf,
    standing: StandingQuery | None = None,
) -> AsyncGenerator[Event]:
    """Events after `start`; the last one is GoingAway, when the server drains or after `age` seconds.

    Who was told that the log reaches to `head` is not caught up before it, however late this replica learns of it. With
    a `standing` query only what is close to it is delivered, once it is indexed. A heartbeat is at most `heartbeat`
    seconds off.

    Nothing is held for the reader between two events but its point. Raises CursorExpired if the log's beginning is cut
    past it, CursorDiverged if the log goes on from another history than what was delivered.
    """
    now = asyncio.get_running_loop().time
    ends, spoke, live = now() + age, now(), False
    with tails.following(namespace) as tail:
        place = Place(store, tails, tail, namespace, start, head)
        reader = StandingReader(place, wanted, batch_size, standing) if standing else Reader(place, wanted, batch_size)
        while not tails.draining and now() < ends:
            events: list[Event] = []
            if live and reader.falls_behind():
                live = False
                events.append(FellBehind(point=place.point, head=place.head))
            batch = await reader.read()
            if batch.records:
                events.append(batch)
            if not live and reader.caught_up:
                live = True
                events.append(CaughtUp(point=place.point))
            if not events and (not live or now() - spoke >= heartbeat):
                events.append(Progress(point=place.point, head=place.head))
            for event in events:
                yield event
                spoke = now()
            del events, batch  # while it waits, a follower keeps nothing but its place
            if not (reader.more or tails.draining):  # either may have changed while the events were taken
                await reader.news(max(0.0, min(spoke + heartbeat, ends) - now()))
        yield GoingAway(point=place.point, retry_seconds=DRAINED_SECONDS if tails.draining else 0.0)
