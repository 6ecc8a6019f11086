"""EpisodeService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2

from hivemem_server.domain import limits
from hivemem_server.domain.appends import Append, Condition, prepared
from hivemem_server.domain.errors import InvalidField, NotImplementedYet
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import LogStore, NamespaceStore
from hivemem_server.domain.redactors import redactor_of
from hivemem_server.domain.validation import Violations, check_append, check_filter, page_size
from hivemem_server.domain.values import AppendOutcome, Expectation, Namespace, NewEpisode, Stored, StreamState
from hivemem_server.log.appender import Appender
from hivemem_server.rpc import convert
from hivemem_server.rpc.append_stream import Ready, append_stream
from hivemem_server.rpc.following import FollowingCalls
from hivemem_server.rpc.named_cursors import CursorCalls
from hivemem_server.rpc.namespaces import namespace_name
from hivemem_server.rpc.pages import fitting, page_key, page_token, section
from hivemem_server.rpc.pump import Outgoing

LARGE_BYTES = 64 * 1024  # appends above it are prepared beside the event loop


class EpisodeServicer:
    """Serves EpisodeService."""

    def __init__(
        self,
        namespaces: NamespaceStore,
        log: LogStore,
        appender: Appender,
        following: FollowingCalls,
        cursors: CursorCalls,
    ) -> None:
        self._namespaces = namespaces
        self._log = log
        self._appender = appender
        self._preparing = asyncio.Semaphore(1)
        self.subscribe_episodes = following.subscribe
        self.wait_episodes = following.wait
        self.commit_cursor = cursors.commit
        self.get_cursor = cursors.get

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
        append = _append_from(request)
        if append.size <= LARGE_BYTES:
            return namespace, prepared(append, namespace, redactor_of(namespace))
        # Redaction takes its time with large texts and many patterns: one at a time, and everybody else is served.
        async with self._preparing:
            return namespace, await asyncio.to_thread(prepared, append, namespace, redactor_of(namespace))

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
