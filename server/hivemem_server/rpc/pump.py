"""Writing the responses of a stream to a reader who may stop to read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import Message

from hivemem_server.domain.errors import SlowConsumer

FIRST_PATIENCE = 1.0  # seconds, until the first response tells how long writes may take


class Outgoing:
    """A response of a stream, encoded or not yet, and how long its write may wait for the reader."""

    __slots__ = ("message", "stall_seconds")

    def __init__(self, message: Message | bytes, stall_seconds: float) -> None:
        self.message = message
        self.stall_seconds = stall_seconds


class Pump:
    """Writes the responses of a stream in a task of its own, so that it can be left when the reader takes nothing.

    A write is never cancelled, because gRPC would leak it; it ends with the call.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self._now = asyncio.get_running_loop().time
        self._writing_since: float | None = None
        self._patience = FIRST_PATIENCE
        self._is_left = False

    async def run(self, responses: AsyncGenerator[Outgoing]) -> None:
        """Writes all of them. Raises SlowConsumer for a reader that stalls, and what making or writing one raises."""
        writing = asyncio.create_task(self._write_all(responses))
        writing.add_done_callback(_retrieved)  # it may fail when nobody waits for it any more
        try:
            while not writing.done():
                await asyncio.wait({writing}, timeout=self._left())
                if not writing.done() and self._left() <= 0:
                    raise SlowConsumer(
                        f"nothing was read for {self._patience:g} s: resume from the last cursor",
                        stall_seconds=f"{self._patience:g}",
                    )
            writing.result()
        finally:
            self._is_left = True
            if self._writing_since is None:
                writing.cancel()

    async def _write_all(self, responses: AsyncGenerator[Outgoing]) -> None:
        async with aclosing(responses):
            async for response in responses:
                self._patience = response.stall_seconds
                self._writing_since = self._now()
                await self._context.write(response.message)
                self._writing_since = None
                if self._is_left:
                    return

    def _left(self) -> float:
        """Seconds until a write that is under way, or begins now, has taken too long."""
        since = self._now() if self._writing_since is None else self._writing_since
        return max(0.0, since + self._patience - self._now())


def _retrieved(writing: asyncio.Task[None]) -> None:
    if not writing.cancelled():
        writing.exception()
