"""A gRPC server that plays what a test has written down, for what a real one does only when it is in trouble."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from hivemem.v1 import episode_service_pb2 as messages
from hivemem.v1.session_service_pb2 import CreateSessionRequest, CreateSessionResponse, Session
from hivemem.v1.types_pb2 import Episode, Failure, LogRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from google.protobuf.message import Message

Response = messages.SubscribeEpisodesResponse
Context = grpc.aio.ServicerContext[object, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A status to end a call with; a bare one, as gRPC itself makes them, without a reason."""

    code: grpc.StatusCode
    reason: str = ""
    retry_delay: float | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    async def end(self, context: Context) -> None:
        details = [error_details_pb2.ErrorInfo(reason=self.reason, domain="hivemem.dev", metadata=self.metadata)]
        if self.retry_delay is not None:
            details.append(error_details_pb2.RetryInfo(retry_delay=seconds(self.retry_delay)))
        status = status_pb2.Status(message="refused by the script")
        for detail in details:
            status.details.append(packed(detail))
        trailer = (("grpc-status-details-bin", status.SerializeToString()),) if self.reason else ()
        await context.abort(self.code, "refused by the script", trailer)


def packed(detail: Message) -> Any:
    box = Any()
    box.Pack(detail)
    return box


class Silence:
    """The stream stays open and says nothing more."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Appends that are stored and answered: so many, or all until the client has sent its last one."""

    count: int | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An append that is stored, but whose answer gets lost."""


@dataclass(slots=True)
class Script:
    """What the server does: one list of steps for each stream, one outcome for each unary call; the last one stays."""

    address: str = ""
    streams: list[list[Response | Refusal | Silence]] = field(default_factory=list)
    calls: list[Refusal | None] = field(default_factory=list)
    # For each stream of appends; a Failure refuses one append in-band.
    append_streams: list[list[Answers | Unanswered | Failure | Refusal | Silence]] = field(default_factory=list)
    waits: list[messages.WaitEpisodesResponse] = field(default_factory=list)
    # What came in.
    requests: list[messages.SubscribeEpisodesRequest] = field(default_factory=list)
    wait_requests: list[messages.WaitEpisodesRequest] = field(default_factory=list)
    openings: list[messages.AppendEpisodeStreamRequest.Open] = field(default_factory=list)
    # Ids of the appends of each stream, and the position of what was stored.
    append_ids: list[list[str]] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    call_count: int = 0
    open_streams: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    all_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def subscribe_episodes(
        self, request: messages.SubscribeEpisodesRequest, context: Context
    ) -> AsyncIterator[Response]:
        self.requests.append(request)
        steps = self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]
        with self._stream():
            for step in steps:
                if isinstance(step, Refusal):
                    await step.end(context)
                elif isinstance(step, Silence):
                    await asyncio.Event().wait()
                else:
                    yield step

    async def wait_episodes(
        self, request: messages.WaitEpisodesRequest, context: Context
    ) -> messages.WaitEpisodesResponse:
        self.wait_requests.append(request)
        return self.waits.pop(0) if len(self.waits) > 1 else self.waits[0]

    async def append_episode_stream(
        self, requests: AsyncIterator[messages.AppendEpisodeStreamRequest], context: Context
    ) -> AsyncIterator[messages.AppendEpisodeStreamResponse]:
        steps = self.append_streams.pop(0) if len(self.append_streams) > 1 else self.append_streams[0]
        seen: list[str] = []
        self.append_ids.append(seen)
        with self._stream():
            self.openings.append((await anext(requests)).open)
            for step in steps:
                if isinstance(step, Refusal):
                    await step.end(context)
                elif isinstance(step, Silence):
                    await asyncio.Event().wait()
                else:
                    async for response in self._played(step, requests, seen):
                        yield response

    async def _played(
        self,
        step: Answers | Unanswered | Failure,
        requests: AsyncIterator[messages.AppendEpisodeStreamRequest],
        seen: list[str],
    ) -> AsyncIterator[messages.AppendEpisodeStreamResponse]:
        remaining = step.count if isinstance(step, Answers) else 1
        while remaining != 0 and (request := await anext(requests, None)) is not None:
            remaining = None if remaining is None else remaining - 1
            append = request.append
            seen.append(append.episodes[0].episode_id)
            if isinstance(step, Failure):
                yield messages.AppendEpisodeStreamResponse(sequence=append.sequence, failure=step)
            else:
                stored = self._stored(append)
                if isinstance(step, Answers):
                    yield messages.AppendEpisodeStreamResponse(sequence=append.sequence, appended=stored)

    def _stored(self, append: messages.AppendEpisodeStreamRequest.Append) -> messages.AppendEpisodesResponse:
        known = append.episodes[0].episode_id in self.positions
        for episode in append.episodes:
            self.positions.setdefault(episode.episode_id, len(self.positions) + 1)
        places = [
            messages.AppendedEpisode(episode_id=episode.episode_id, position=self.positions[episode.episode_id])
            for episode in append.episodes
        ]
        return messages.AppendEpisodesResponse(episodes=places, deduplicated=known)

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        """Counts a stream while it is open."""
        self.open_streams += 1
        self.all_ended.clear()
        self.arrived.set()
        try:
            yield
        finally:
            self.open_streams -= 1
            if self.open_streams == 0:
                self.all_ended.set()

    async def create_session(self, request: CreateSessionRequest, context: Context) -> CreateSessionResponse:
        self.call_count += 1
        outcome = self.calls.pop(0) if len(self.calls) > 1 else self.calls[0]
        if outcome is not None:
            await outcome.end(context)
        session = Session(namespace="default", session_id=request.session_id)
        return CreateSessionResponse(session=session, created=True)

    def handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        yield grpc.method_handlers_generic_handler(
            "hivemem.v1.EpisodeService",
            {
                "SubscribeEpisodes": grpc.unary_stream_rpc_method_handler(
                    self.subscribe_episodes,
                    request_deserializer=messages.SubscribeEpisodesRequest.FromString,
                    response_serializer=Response.SerializeToString,
                ),
                "WaitEpisodes": grpc.unary_unary_rpc_method_handler(
                    self.wait_episodes,
                    request_deserializer=messages.WaitEpisodesRequest.FromString,
                    response_serializer=messages.WaitEpisodesResponse.SerializeToString,
                ),
                "AppendEpisodeStream": grpc.stream_stream_rpc_method_handler(
                    self.append_episode_stream,
                    request_deserializer=messages.AppendEpisodeStreamRequest.FromString,
                    response_serializer=messages.AppendEpisodeStreamResponse.SerializeToString,
                ),
            },
        )
        yield grpc.method_handlers_generic_handler(
            "hivemem.v1.SessionService",
            {
                "CreateSession": grpc.unary_unary_rpc_method_handler(
                    self.create_session,
                    request_deserializer=CreateSessionRequest.FromString,
                    response_serializer=CreateSessionResponse.SerializeToString,
                )
            },
        )


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    """A scripted server at `script.address`. Write its `streams` or `calls` before calling it."""
    played = Script()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(tuple(played.handlers()))
    played.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield played
    await server.stop(None)


def started(position: int = 0, *, heartbeat: float = 10.0) -> Response:
    return Response(
        started=Response.Started(cursor=cursor(position), position=position, heartbeat_interval=seconds(heartbeat))
    )


def batch(*positions: int, score: float | None = None) -> Response:
    return Response(batch=Response.Batch(records=records(*positions, score=score), cursor=cursor(positions[-1])))


def records(*positions: int, score: float | None = None) -> list[LogRecord]:
    return [
        LogRecord(position=position, score=score, episode=Episode(position=position, episode_id=f"e{position}"))
        for position in positions
    ]


def caught_up(position: int) -> Response:
    return Response(caught_up=Response.CaughtUp(cursor=cursor(position), position=position))


def fell_behind(position: int) -> Response:
    return Response(fell_behind=Response.FellBehind(cursor=cursor(position), position=position))


def progress(position: int) -> Response:
    return Response(progress=Response.Progress(cursor=cursor(position), position=position))


def going_away(position: int, *, retry_delay: float | None = None) -> Response:
    delay = None if retry_delay is None else seconds(retry_delay)
    return Response(going_away=Response.GoingAway(cursor=cursor(position), position=position, retry_delay=delay))


def seconds(span: float) -> Duration:
    return Duration(seconds=int(span), nanos=round(span % 1 * 1e9))


def cursor(position: int) -> bytes:
    return f"cursor {position}".encode()
