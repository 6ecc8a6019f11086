"""Raw stubs, for what the Python client would not send."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest_asyncio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from hivemem.v1 import admin_service_pb2_grpc as admin
from hivemem.v1 import agent_service_pb2_grpc as agents
from hivemem.v1 import episode_service_pb2 as episode_service
from hivemem.v1 import episode_service_pb2_grpc as episodes
from hivemem.v1 import knowledge_service_pb2_grpc as knowledge
from hivemem.v1 import namespace_service_pb2_grpc as namespaces
from hivemem.v1 import search_service_pb2_grpc as search
from hivemem.v1 import session_service_pb2 as session_service
from hivemem.v1 import session_service_pb2_grpc as sessions
from hivemem.v1 import thread_service_pb2_grpc as threads
from hivemem.v1 import types_pb2 as types

MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as it came over the wire."""

    code: grpc.StatusCode
    message: str
    reason: str
    metadata: dict[str, str]
    fields: list[str]
    retry_seconds: float | None


class Stubs:
    """Every service of one server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.namespaces = namespaces.NamespaceServiceStub(channel)
        self.sessions = sessions.SessionServiceStub(channel)
        self.episodes = episodes.EpisodeServiceStub(channel)
        self.search = search.SearchServiceStub(channel)
        self.threads = threads.ThreadServiceStub(channel)
        self.agents = agents.AgentServiceStub(channel)
        self.knowledge = knowledge.KnowledgeServiceStub(channel)
        self.admin = admin.AdminServiceStub(channel)

    async def session(self, session_id: str = "s", **fields: Any) -> None:
        """Makes a session."""
        await self.sessions.CreateSession(session_service.CreateSessionRequest(session_id=session_id, **fields))

    async def append(
        self, *new: types.NewEpisode, session_id: str = "s", agent_id: str = "a", **fields: Any
    ) -> episode_service.AppendEpisodesResponse:
        """Appends to a stream."""
        request = episode_service.AppendEpisodesRequest(
            session_id=session_id, agent_id=agent_id, episodes=new, **fields
        )
        return await self.episodes.AppendEpisodes(request)

    async def positions(self, session_id: str = "s") -> list[int]:
        """Positions of all episodes of a session."""
        request = episode_service.ListEpisodesRequest(filter=types.Filter(session_ids=[session_id]), page_size=1_000)
        return [episode.position for episode in (await self.episodes.ListEpisodes(request)).episodes]


def new_episode(summary: str = "something happened", **fields: Any) -> types.NewEpisode:
    """An episode with an id of its own."""
    return types.NewEpisode(episode_id=fields.pop("episode_id", str(uuid.uuid4())), summary=summary, **fields)


async def refusal(call: Any) -> Refusal:
    """The error of a call that must be refused."""
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return _refusal(error)
    raise AssertionError(f"not refused: {response}")


def _refusal(error: grpc.aio.AioRpcError) -> Refusal:
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for detail in status.details:
        for message in (info, bad, retry):
            assert isinstance(message, Message)
            detail.Unpack(message)
    fields = [violation.field for violation in bad.field_violations]
    delay = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9 if retry.HasField("retry_delay") else None
    return Refusal(error.code(), error.details() or "", info.reason, dict(info.metadata), fields, delay)


@pytest_asyncio.fixture(loop_scope="session")
async def stubs(server_address: str) -> AsyncIterator[Stubs]:
    """Raw stubs of a server in this process."""
    async with _channel(server_address) as channel:
        yield Stubs(channel)


@pytest_asyncio.fixture(loop_scope="session")
async def searching_stubs(searching_address: str) -> AsyncIterator[Stubs]:
    """Raw stubs of a server with the local embedding model."""
    async with _channel(searching_address) as channel:
        yield Stubs(channel)


def _channel(address: str) -> grpc.aio.Channel:
    options = [("grpc.max_send_message_length", MESSAGE_BYTES), ("grpc.max_receive_message_length", MESSAGE_BYTES)]
    return grpc.aio.insecure_channel(address, options=options)
