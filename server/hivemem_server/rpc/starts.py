"""Where a reader of the log starts."""

from __future__ import annotations

from hivemem.v1 import types_pb2 as pb

from hivemem_server.domain.ports import LogBounds, LogStore
from hivemem_server.domain.validation import Violations
from hivemem_server.domain.values import Namespace, Point
from hivemem_server.log.cursors import decode_cursor, expired, verified
from hivemem_server.log.named_cursors import NamedCursors
from hivemem_server.rpc import convert


class Starts:
    """Finds the points that requests name."""

    def __init__(self, log: LogStore, cursors: NamedCursors) -> None:
        self._log = log
        self._cursors = cursors

    async def point(self, namespace: Namespace, given: pb.StartPoint, bounds: LogBounds) -> Point:
        """The point that reading begins after; `bounds` are the log's of right now.

        Raises InvalidField, CursorMalformed, CursorForeign, CursorExpired, CursorDiverged, CursorNotFound.
        """
        found = Violations()
        match given.WhichOneof("point"):
            case "now":
                return bounds.head
            case "cursor":
                return await verified(self._log, namespace, decode_cursor(namespace, given.cursor))
            case "cursor_name":
                found.identifier("start.cursor_name", given.cursor_name)
                found.done()
                return await self._cursors.start(namespace, given.cursor_name)
            case "position":
                found.at_least("start.position", given.position)
                found.done()
                return await self._at(namespace, given.position, bounds)
            case "time":
                time = convert.time_from(found, "start.time", given.time)
                found.done()
                return await self._at(namespace, await self._log.position_at(namespace, time), bounds)
        return Point(position=bounds.floor)

    async def _at(self, namespace: Namespace, position: int, bounds: LogBounds) -> Point:
        if 0 < position < bounds.floor:
            raise expired(position, bounds.floor)
        point = await self._log.point(namespace, position)
        return point or Point(position=max(position, bounds.floor))
