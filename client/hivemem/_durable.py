"""The cursor of a durable subscription, which the server keeps under a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hivemem._errors import ConnectionFailed, CursorConflict, CursorNotFound, DeadlineExceeded
from hivemem.v1 import episode_service_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from hivemem._channel import Channel, Connection, UnaryMethod

Request = TypeVar("Request")
Response = TypeVar("Response")


class DurableCursor:
    """Where the reader of a name stopped. Its calls raise Unavailable for whatever may go better later."""

    def __init__(self, connection: Connection, namespace: str, name: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._name = name
        # What is known to be stored; None before it was asked for, and while there is nothing.
        self.stored: bytes | None = None
        # Whether it was asked for.
        self.recalled = False

    async def recall(self) -> bytes | None:
        """Asks for what is stored; None if there is nothing yet."""
        request = messages.GetCursorRequest(namespace=self._namespace, name=self._name)
        try:
            self.stored = (await self._call(lambda to: to.episodes.GetCursor, request)).cursor
        except CursorNotFound:
            self.stored = None
        self.recalled = True
        return self.stored

    async def commit(self, cursor: bytes) -> None:
        """Stores a cursor. Raises CursorConflict if another reader of the name is further."""
        request = messages.CommitCursorRequest(namespace=self._namespace, name=self._name, cursor=cursor)
        try:
            await self._call(lambda to: to.episodes.CommitCursor, request)
        except CursorConflict as error:
            raise CursorConflict(
                f"another process reads under the name {self._name!r} and has come further (to position"
                f" {error.actual}, this one to {error.position}): give each reader a name of its own",
                metadata=error.metadata,
            ) from error
        self.stored = cursor

    async def _call(self, method: Callable[[Channel], UnaryMethod[Request, Response]], request: Request) -> Response:
        try:
            return await self._connection.call(method, request)
        except DeadlineExceeded as error:
            raise ConnectionFailed(str(error)) from error
