"""EpisodeService."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2

from hivemem_server.domain import limits
from hivemem_server.domain.appends import Append, Condition, prepared
from hivemem_server.domain.errors import InvalidField, NotImplementedYet
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogBounds, LogStore, NamespaceStore
from hivemem_server.domain.redactors import redactor_of
from hivemem_server.domain.validation import Violations, check_append, check_filter, page_size
from hivemem_server.domain.values import AppendOutcome, Expectation, Namespace, NewEpisode, Point, Stored, StreamState
from hivemem_server.log import subscription as events
from hivemem_server.log.appender import Appender
from hivemem_server.log.cursors import encode_cursor
from hivemem_server.log.named_cursors import NamedCursors
from hivemem_server.log.tail import Tails
from hivemem_server.rpc import convert, waiting
from hivemem_server.rpc.append_stream import Ready, append_stream
from hivemem_server.rpc.batches import messages
from hivemem_server.rpc.cursors import CursorCalls
from hivemem_server.rpc.namespaces import namespace_name
from hivemem_server.rpc.pages import fitting, page_key, page_token, section
from hivemem_server.rpc.registry import Outgoing
from hivemem_server.rpc.starts import Starts

HEARTBEAT_SECONDS = (1.0, 10.0, 60.0)  # least, default, most
STALL_SECONDS = (5.0, 60.0, 600.0)
GOING_AWAY_SECONDS = 0.5


class EpisodeServicer:
    """Serves EpisodeService."""

    def __init__(
        self, namespaces: NamespaceStore, log: LogStore, appender: Appender, tails: Tails, cursors: NamedCursors
    ) -> None:
        self._namespaces = namespaces
        self._log = log
        self._appender = appender
        self._tails = tails
        self._starts = Starts(log, cursors)
        self._cursors = CursorCalls(namespaces, cursors)

    async def append_episodes(self, request: pb.AppendEpisodesRequest) -> pb.AppendEpisodesResponse:
        """Appends episodes to one stream."""
        namespace, append = await self._prepared(request)
        return _appended(append, await self._appender.append(namespace, append))

    async def append_episode_stream(
        self, requests: AsyncIterator[pb.AppendEpisodeStreamRequest]
    ) -> AsyncIterator[Outgoing]:
        """Appends many times to one stream."""
        async with aclosing(append_stream(requests, self._ready, self._appender.draining)) as responses:
            async for response in responses:
                yield response

    async def _ready(self, request: pb.AppendEpisodesRequest) -> Ready:
        namespace, append = await self._prepared(request)
        return Ready(partial(self._appender.submit, namespace, append), partial(_appended, append))

    async def _prepared(self, request: pb.AppendEpisodesRequest) -> tuple[Namespace, Append]:
        namespace = await self._namespaces.resolve(namespace_name(request.namespace))
        _refuse_unbuilt(request)
        return namespace, prepared(_append_from(request), namespace, redactor_of(namespace))

    async def get_episode(self, request: pb.GetEpisodeRequest) -> pb.GetEpisodeResponse:
        """Returns one episode with its neighbours."""
        found = Violations()
        found.between("before", request.before, 0, limits.NEIGHBOURS)
        found.between("after", request.after, 0, limits.NEIGHBOURS)
        found.between("neighbour_scope", request.neighbour_scope, 0, pb.NEIGHBOUR_SCOPE_STREAM)
        episode_id = None
        match request.WhichOneof("key"):
            case "episode_id":
                episode_id = convert.uuid_from(found, "episode_id", request.episode_id)
            case "position":
                found.at_least("position", request.position, 1)
            case _:
                found.add("key", "episode_id or position is required")
        found.done()
        namespace = await self._namespaces.resolve(namespace_name(request.namespace))
        episode = await self._log.get(namespace, episode_id=episode_id, position=request.position)
        before, after = await self._log.neighbours(
            namespace,
            episode,
            request.before,
            request.after,
            same_agent=request.neighbour_scope == pb.NEIGHBOUR_SCOPE_STREAM,
        )
        return pb.GetEpisodeResponse(
            episode=convert.episode(episode),
            before=section(map(convert.episode, reversed(before)))[::-1],
            after=section(map(convert.episode, after)),
        )

    async def list_episodes(self, request: pb.ListEpisodesRequest) -> pb.ListEpisodesResponse:
        """Lists episodes in log order."""
        name = namespace_name(request.namespace)
        wanted = _checked_filter(request.filter)
        size = page_size(request.page_size)
        newest_first = _newest_first(request.order)
        key = page_key(request)
        if key:
            wanted = _beyond(wanted, int(key[0]), newest_first=newest_first)
        namespace = await self._namespaces.resolve(name)
        episodes = await self._log.page(namespace, wanted, size + 1, newest_first=newest_first)
        shown = fitting([convert.episode(episode) for episode in episodes[:size]])
        more = len(episodes) > len(shown)
        return pb.ListEpisodesResponse(
            episodes=shown, next_page_token=page_token(request, [shown[-1].position] if more else ())
        )

    async def subscribe_episodes(self, request: pb.SubscribeEpisodesRequest) -> AsyncIterator[Outgoing]:
        """Follows the log."""
        name = namespace_name(request.namespace)
        wanted, terms = _terms_from(request)
        namespace = await self._namespaces.resolve(name)
        bounds = await self._log.bounds(namespace)
        start = await self._starts.point(namespace, request.start, bounds)
        yield Outgoing(_started(namespace, start, bounds, terms), terms.stall_seconds)
        following = events.follow(
            self._log,
            self._tails,
            namespace,
            wanted,
            start,
            batch_size=terms.batch_size,
            heartbeat=terms.heartbeat_seconds,
        )
        async with aclosing(following):
            async for event in following:
                for message in _event_messages(namespace, event):
                    yield Outgoing(message, terms.stall_seconds)

    async def wait_episodes(self, request: pb.WaitEpisodesRequest) -> pb.WaitEpisodesResponse:
        """Follows the log until anything matches."""
        name = namespace_name(request.namespace)
        wanted, batch_size = _wanted_from(request)
        timeout = convert.seconds(request.timeout) if request.HasField("timeout") else None
        namespace = await self._namespaces.resolve(name)
        bounds = await self._log.bounds(namespace)
        start = await self._starts.point(namespace, request.start, bounds)

        def follow(heartbeat: float) -> AsyncGenerator[events.Event]:
            return events.follow(
                self._log, self._tails, namespace, wanted, start, batch_size=batch_size, heartbeat=heartbeat
            )

        waited = await waiting.first_batch(
            follow, start, bounds.head.position, _clamped(timeout, *waiting.TIMEOUT_SECONDS)
        )
        return waiting.response(namespace, waited)

    async def commit_cursor(self, request: pb.CommitCursorRequest) -> pb.CommitCursorResponse:
        """Stores a cursor under a name."""
        return await self._cursors.commit(request)

    async def get_cursor(self, request: pb.GetCursorRequest) -> pb.GetCursorResponse:
        """Returns the cursor stored under a name."""
        return await self._cursors.get(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What a subscription gets of what it wished for."""

    heartbeat_seconds: float
    stall_seconds: float
    batch_size: int


def _refuse_unbuilt(request: pb.AppendEpisodesRequest) -> None:
    if request.writer_fence:
        raise NotImplementedYet("this server has no exclusive writing yet: leave `writer_fence` unset")


def _append_from(request: pb.AppendEpisodesRequest) -> Append:
    found = Violations()
    episodes: list[NewEpisode] = []
    for index, given in enumerate(request.episodes[: limits.APPEND_EPISODES]):
        episodes.append(convert.new_episode_from(found, f"episodes[{index}]", given))
    append = Append(
        session_id=request.session_id,
        agent_id=request.agent_id,
        episodes=tuple(episodes),
        expectation=_expectation_from(found, request.expectation),
        conditions=tuple(
            Condition(wanted=convert.filter_from(found, given.filter), after=given.after_position)
            for given in request.conditions[: limits.CONDITIONS]
        ),
        size=request.ByteSize(),
    )
    # Counted here, because no more than the first that are too many were read.
    found.count("episodes", request.episodes, limits.APPEND_EPISODES)
    found.count("conditions", request.conditions, limits.CONDITIONS)
    check_append(found, append)
    return append


def _expectation_from(found: Violations, given: pb.Expectation) -> Expectation:
    match given.WhichOneof("state"):
        case "no_stream":
            return Expectation(state=StreamState.NO_STREAM)
        case "stream_exists":
            return Expectation(state=StreamState.EXISTS)
        case "revision":
            found.at_least("expectation.revision", given.revision, 1)
            return Expectation(state=StreamState.REVISION, revision=given.revision)
    return Expectation()


def _appended(append: Append, outcome: AppendOutcome) -> pb.AppendEpisodesResponse:
    stored = zip(append.episodes, outcome.stored, strict=True)
    return pb.AppendEpisodesResponse(
        episodes=[_appended_episode(new, where) for new, where in stored], deduplicated=outcome.deduplicated
    )


def _appended_episode(new: NewEpisode, where: Stored) -> pb.AppendedEpisode:
    return pb.AppendedEpisode(
        episode_id=str(new.episode_id),
        position=where.position,
        revision=where.revision,
        commit_time=convert.stamp(where.commit_time),
        decision_ids=[decision.decision_id for decision in new.decisions],
        thread_ids=[thread.thread_id for thread in new.open_threads],
    )


def _newest_first(order: int) -> bool:
    if order not in (pb.LIST_ORDER_UNSPECIFIED, pb.LIST_ORDER_OLDEST_FIRST, pb.LIST_ORDER_NEWEST_FIRST):
        raise InvalidField.at("order", "is not an order that this server knows")
    return order == pb.LIST_ORDER_NEWEST_FIRST


def _checked_filter(given: types_pb2.Filter) -> Filter:
    found = Violations()
    wanted = convert.filter_from(found, given)
    check_filter(found, wanted)
    found.done()
    return wanted


def _beyond(wanted: Filter, position: int, *, newest_first: bool) -> Filter:
    """The filter for what a list has not shown yet."""
    if newest_first:
        return replace(wanted, through=position - 1) if position > 1 else replace(wanted, after=position, through=0)
    return replace(wanted, after=position)


def _terms_from(request: pb.SubscribeEpisodesRequest) -> tuple[Filter, _Terms]:
    wanted, batch_size = _wanted_from(request)
    heartbeat = convert.seconds(request.heartbeat_interval) if request.HasField("heartbeat_interval") else None
    stall = convert.seconds(request.stall_timeout) if request.HasField("stall_timeout") else None
    return wanted, _Terms(
        heartbeat_seconds=_clamped(heartbeat, *HEARTBEAT_SECONDS),
        stall_seconds=_clamped(stall, *STALL_SECONDS),
        batch_size=batch_size,
    )


def _wanted_from(request: pb.SubscribeEpisodesRequest | pb.WaitEpisodesRequest) -> tuple[Filter, int]:
    """What a reader is to get, and how many records at once."""
    if request.HasField("relevance"):
        raise NotImplementedYet("this server has no standing queries yet: leave `relevance` unset")
    found = Violations()
    kinds = convert.record_kinds_from(found, request.record_kinds)
    wanted = convert.filter_from(found, request.filter, record_kinds=kinds)
    check_filter(found, wanted)
    found.at_least("max_batch_size", request.max_batch_size)
    found.done()
    return wanted, min(request.max_batch_size or limits.DEFAULT_BATCH_SIZE, limits.BATCH_SIZE)


def _clamped(value: float | None, least: float, default: float, most: float) -> float:
    return default if value is None else min(max(value, least), most)


def _started(namespace: Namespace, start: Point, bounds: LogBounds, terms: _Terms) -> pb.SubscribeEpisodesResponse:
    return pb.SubscribeEpisodesResponse(
        started=pb.SubscribeEpisodesResponse.Started(
            cursor=encode_cursor(namespace, start),
            position=start.position,
            first_position=bounds.floor + 1,
            head_position=bounds.head.position,
            heartbeat_interval=convert.duration(terms.heartbeat_seconds),
            max_batch_size=terms.batch_size,
            stall_timeout=convert.duration(terms.stall_seconds),
        )
    )


def _event_messages(namespace: Namespace, event: events.Event) -> Sequence[pb.SubscribeEpisodesResponse | bytes]:
    response = pb.SubscribeEpisodesResponse
    if isinstance(event, events.Batch):
        return messages(namespace, event)
    cursor, position = encode_cursor(namespace, event.point), event.point.position
    match event:
        case events.CaughtUp():
            return [response(caught_up=response.CaughtUp(cursor=cursor, position=position))]
        case events.FellBehind(head=head):
            fell = response.FellBehind(cursor=cursor, position=position, head_position=head)
            return [response(fell_behind=fell)]
        case events.Progress(head=head):
            return [response(progress=response.Progress(cursor=cursor, position=position, head_position=head))]
        case events.GoingAway():
            retry = convert.duration(GOING_AWAY_SECONDS)
            away = response.GoingAway(cursor=cursor, position=position, retry_delay=retry)
            return [response(going_away=away)]
