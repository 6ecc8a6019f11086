"""AdminService."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from uuid import UUID

from hivemem.v1 import admin_service_pb2 as pb

from hivemem_server import __version__
from hivemem_server.domain.embedder import EmbedderSlot
from hivemem_server.domain.ports import DatabaseStats, NamespaceStats, NamespaceStore, StatsStore
from hivemem_server.log.appender import Appender
from hivemem_server.log.tail import Tails
from hivemem_server.rpc import convert, namespaces
from hivemem_server.rpc.namespaces import namespace_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What stays true of a server process while it runs."""

    replica: UUID
    start_time: dt.datetime
    embedded_database: bool
    slot: EmbedderSlot


class AdminServicer:
    """Serves AdminService."""

    def __init__(
        self, namespaces: NamespaceStore, stats: StatsStore, facts: ServerFacts, appender: Appender, tails: Tails
    ) -> None:
        self._namespaces = namespaces
        self._stats = stats
        self._facts = facts
        self._appender = appender
        self._tails = tails

    async def get_stats(self, request: pb.GetStatsRequest) -> pb.GetStatsResponse:
        """Returns numbers about a namespace and the server."""
        namespace = await self._namespaces.get(namespace_name(request.namespace))
        stats = await self._stats.namespace(namespace)
        return pb.GetStatsResponse(
            namespace=namespaces.message(namespace),
            session_count=stats.sessions,
            open_session_count=stats.open_sessions,
            agent_count=stats.agents,
            episode_count=stats.episodes,
            open_thread_count=stats.open_threads,
            indexes=self._indexes(stats),
            server=self._server(await self._stats.database()),
        )

    def _indexes(self, stats: NamespaceStats) -> list[pb.IndexStats]:
        current = self._facts.slot.model
        return [
            pb.IndexStats(
                model=index.model,
                dimension=index.dimension,
                indexed_position=index.position,
                vector_count=index.vectors,
                set_aside_count=index.set_aside,
                current=current is not None and index.model == current.name,
            )
            for index in stats.indexes
        ]

    def _server(self, database: DatabaseStats) -> pb.ServerStats:
        return pb.ServerStats(
            version=__version__,
            replica_id=str(self._facts.replica),
            start_time=convert.stamp(self._facts.start_time),
            database_version=database.version,
            embedded_database=self._facts.embedded_database,
            database_bytes=database.size,
            subscription_count=self._tails.follower_count,
            pending_append_count=self._appender.pending,
        )
