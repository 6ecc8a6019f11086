"""The calls of EpisodeService that follow a log: the stream, and its twin for those that cannot hold one."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from hivemem.v1 import episode_service_pb2 as pb

from hivemem_server.domain import limits
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogBounds, LogStore, NamespaceStore
from hivemem_server.domain.validation import Violations, check_filter
from hivemem_server.domain.values import Namespace, Point
from hivemem_server.log.cursors import encode_cursor
from hivemem_server.log.events import Batch, CaughtUp, Event, FellBehind, GoingAway, Progress
from hivemem_server.log.standing import StandingQueries, StandingQuery
from hivemem_server.log.subscription import follow
from hivemem_server.log.tail import Tails
from hivemem_server.rpc import convert, waiting
from hivemem_server.rpc.batches import messages
from hivemem_server.rpc.namespaces import namespace_name
from hivemem_server.rpc.pump import Outgoing
from hivemem_server.rpc.starts import Starts

HEARTBEAT_SECONDS = (1.0, 10.0, 60.0)  # least, default, most
STALL_SECONDS = (5.0, 60.0, 600.0)
AGE_JITTER = 0.2  # of a stream's age, so that not all come again at once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What a subscription gets of what it wished for."""

    heartbeat_seconds: float
    stall_seconds: float
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A request that may be served: where it begins, and the log's bounds at that moment."""

    namespace: Namespace
    start: Point
    bounds: LogBounds
    follow: partial[AsyncGenerator[Event]]


class FollowingCalls:
    """Subscribes and waits. A stream lives for about `subscription_age` seconds."""

    def __init__(
        self,
        namespaces: NamespaceStore,
        log: LogStore,
        tails: Tails,
        starts: Starts,
        standing: StandingQueries,
        subscription_age: float,
    ) -> None:
        self._namespaces = namespaces
        self._log = log
        self._tails = tails
        self._starts = starts
        self._standing = standing
        self._subscription_age = subscription_age

    async def subscribe(self, request: pb.SubscribeEpisodesRequest) -> AsyncGenerator[Outgoing]:
        """Follows the log."""
        wanted, batch_size = _wanted_from(request)
        terms = _terms_from(request, batch_size)
        opened = await self._opened(request, wanted, batch_size)
        age = self._subscription_age * random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER)
        yield Outgoing(_started(opened, terms), terms.stall_seconds)
        async with aclosing(opened.follow(heartbeat=terms.heartbeat_seconds, age=age)) as events:
            async for event in events:
                for message in _event_messages(opened.namespace, event):
                    yield Outgoing(message, terms.stall_seconds)

    async def wait(self, request: pb.WaitEpisodesRequest) -> pb.WaitEpisodesResponse:
        """Follows the log until anything matches."""
        wanted, batch_size = _wanted_from(request)
        timeout = convert.seconds(request.timeout) if request.HasField("timeout") else None
        opened = await self._opened(request, wanted, batch_size)
        waited = await waiting.first_batch(
            lambda heartbeat: opened.follow(heartbeat=heartbeat, age=math.inf),
            opened.start,
            opened.bounds.head.position,
            _clamped(timeout, *waiting.TIMEOUT_SECONDS),
        )
        return waiting.response(opened.namespace, waited)

    async def _opened(
        self, request: pb.SubscribeEpisodesRequest | pb.WaitEpisodesRequest, wanted: Filter, batch_size: int
    ) -> _Opened:
        namespace = await self._namespaces.resolve(namespace_name(request.namespace))
        bounds = await self._log.bounds(namespace)
        start = await self._starts.point(namespace, request.start, bounds)
        following = partial(
            follow,
            self._log,
            self._tails,
            namespace,
            wanted,
            start,
            batch_size=batch_size,
            head=bounds.head.position,
            standing=await self._standing_query(request),
        )
        return _Opened(namespace=namespace, start=start, bounds=bounds, follow=following)

    async def _standing_query(
        self, request: pb.SubscribeEpisodesRequest | pb.WaitEpisodesRequest
    ) -> StandingQuery | None:
        if not request.HasField("relevance"):
            return None
        given = request.relevance
        return await self._standing.query(given.relevant_to, given.min_score if given.HasField("min_score") else None)


def _wanted_from(request: pb.SubscribeEpisodesRequest | pb.WaitEpisodesRequest) -> tuple[Filter, int]:
    """What a reader is to get, and how many records at once."""
    found = Violations()
    kinds = convert.record_kinds_from(found, request.record_kinds)
    wanted = convert.filter_from(found, request.filter, record_kinds=kinds)
    check_filter(found, wanted)
    found.at_least("max_batch_size", request.max_batch_size)
    if request.HasField("relevance"):
        found.text("relevance.relevant_to", request.relevance.relevant_to, limits.QUERY_BYTES, required=True)
        found.between("relevance.min_score", request.relevance.min_score, 0, 1)
    found.done()
    return wanted, min(request.max_batch_size or limits.DEFAULT_BATCH_SIZE, limits.BATCH_SIZE)


def _terms_from(request: pb.SubscribeEpisodesRequest, batch_size: int) -> _Terms:
    heartbeat = convert.seconds(request.heartbeat_interval) if request.HasField("heartbeat_interval") else None
    stall = convert.seconds(request.stall_timeout) if request.HasField("stall_timeout") else None
    return _Terms(
        heartbeat_seconds=_clamped(heartbeat, *HEARTBEAT_SECONDS),
        stall_seconds=_clamped(stall, *STALL_SECONDS),
        batch_size=batch_size,
    )


def _clamped(value: float | None, least: float, default: float, most: float) -> float:
    return default if value is None else min(max(value, least), most)


def _started(opened: _Opened, terms: _Terms) -> pb.SubscribeEpisodesResponse:
    return pb.SubscribeEpisodesResponse(
        started=pb.SubscribeEpisodesResponse.Started(
            cursor=encode_cursor(opened.namespace, opened.start),
            position=opened.start.position,
            first_position=opened.bounds.floor + 1,
            head_position=opened.bounds.head.position,
            heartbeat_interval=convert.duration(terms.heartbeat_seconds),
            max_batch_size=terms.batch_size,
            stall_timeout=convert.duration(terms.stall_seconds),
        )
    )


def _event_messages(namespace: Namespace, event: Event) -> Sequence[pb.SubscribeEpisodesResponse | bytes]:
    if isinstance(event, Batch):
        return messages(namespace, event)
    response = pb.SubscribeEpisodesResponse
    cursor, position = encode_cursor(namespace, event.point), event.point.position
    match event:
        case CaughtUp():
            return [response(caught_up=response.CaughtUp(cursor=cursor, position=position))]
        case FellBehind(head=head):
            fell = response.FellBehind(cursor=cursor, position=position, head_position=head)
            return [response(fell_behind=fell)]
        case Progress(head=head):
            return [response(progress=response.Progress(cursor=cursor, position=position, head_position=head))]
        case GoingAway(retry_seconds=seconds):
            retry = convert.duration(seconds) if seconds else None
            away = response.GoingAway(cursor=cursor, position=position, retry_delay=retry)
            return [response(going_away=away)]
