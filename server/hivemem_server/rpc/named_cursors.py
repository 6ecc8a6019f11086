"""The calls of EpisodeService that keep cursors under names."""

from __future__ import annotations

from hivemem.v1 import episode_service_pb2 as pb

from hivemem_server.domain.ports import NamespaceStore
from hivemem_server.domain.validation import Violations
from hivemem_server.log.named_cursors import NamedCursors, stored_cursor
from hivemem_server.rpc import convert
from hivemem_server.rpc.namespaces import namespace_name


class CursorCalls:
    """Commits and returns named cursors."""

    def __init__(self, namespaces: NamespaceStore, cursors: NamedCursors) -> None:
        self._namespaces = namespaces
        self._cursors = cursors

    async def commit(self, request: pb.CommitCursorRequest) -> pb.CommitCursorResponse:
        """Stores a cursor under a name."""
        found = Violations()
        found.identifier("name", request.name)
        if not request.cursor:
            found.add("cursor", "is required")
        found.done()
        namespace = await self._namespaces.resolve(namespace_name(request.namespace))
        expected = request.expected_cursor if request.HasField("expected_cursor") else None
        point = await self._cursors.commit(namespace, request.name, request.cursor, expected)
        return pb.CommitCursorResponse(position=point.position)

    async def get(self, request: pb.GetCursorRequest) -> pb.GetCursorResponse:
        """Returns the cursor stored under a name."""
        found = Violations()
        found.identifier("name", request.name)
        found.done()
        namespace = await self._namespaces.resolve(namespace_name(request.namespace))
        stored = await self._cursors.get(namespace, request.name)
        return pb.GetCursorResponse(
            cursor=stored_cursor(namespace, stored),
            position=stored.point.position,
            commit_time=convert.stamp(stored.commit_time),
        )
