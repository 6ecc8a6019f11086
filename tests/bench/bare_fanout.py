"""The least that sending to many can cost: a process that writes the bytes it was told to keep to all its streams.

    python -m tests.bench.bare_fanout

Options and event loop are those of the real server. Nothing is encoded: a message is the bytes that came.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc
import uvloop
from hivemem.v1.episode_service_pb2 import SubscribeEpisodesResponse

from .bare_echo import serve

SERVICE = "bench.BareFanout"
FOLLOW, KEEP, SEND = (f"/{SERVICE}/{method}" for method in ("Follow", "Keep", "Send"))

Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Fanout:
    """The streams, and what is sent to them."""

    def __init__(self) -> None:
        self._streams: list[Context] = []
        self._kept: list[bytes] = []

    async def follow(self, request: bytes, context: Context) -> None:
        """A stream: says that it is there, and then what is sent."""
        live = SubscribeEpisodesResponse(caught_up=SubscribeEpisodesResponse.CaughtUp())
        await context.write(live.SerializeToString())
        self._streams.append(context)
        await asyncio.Event().wait()  # until the stream is cancelled

    async def keep(self, message: bytes, context: Context) -> bytes:
        """Keeps a message for the next send."""
        self._kept.append(message)
        return b""

    async def send(self, request: bytes, context: Context) -> bytes:
        """Writes all that was kept to all streams, each at its own pace."""
        messages, self._kept = self._kept, []
        async with asyncio.TaskGroup() as group:
            for stream in self._streams:
                group.create_task(_write_all(stream, messages))
        return b""


async def _write_all(stream: Context, messages: list[bytes]) -> None:
    for message in messages:
        await stream.write(message)


async def send(channel: grpc.aio.Channel) -> None:
    """Has what was kept sent to all streams; returns when the server has written it."""
    call: Call = channel.unary_unary(SEND)
    await call(b"")


async def keep(channel: grpc.aio.Channel, messages: list[bytes]) -> None:
    """Hands the messages over for the next `send`."""
    call: Call = channel.unary_unary(KEEP)
    for message in messages:
        await call(message)


def _handlers() -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    fanout = Fanout()
    return {
        "Follow": grpc.unary_stream_rpc_method_handler(fanout.follow),
        "Keep": grpc.unary_unary_rpc_method_handler(fanout.keep),
        "Send": grpc.unary_unary_rpc_method_handler(fanout.send),
    }


if __name__ == "__main__":
    uvloop.run(serve(SERVICE, _handlers()))
