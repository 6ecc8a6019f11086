"""The least that a gRPC server can do: a process that gives a message back, or answers with one it was told to keep.

    python -m tests.bench.bare_echo

Options, event loop and messages are those of the real server; nothing else is. It listens on a free port, says so on
stderr, and ends with SIGTERM, or when its stdin does.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
import uvloop
from google.protobuf.message import Message
from hivemem.v1 import episode_service_pb2, search_service_pb2, session_service_pb2

AnyRequest = TypeVar("AnyRequest", bound=Message)
AnyResponse = TypeVar("AnyResponse", bound=Message)
Handler: TypeAlias = Callable[[Any, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[Message]]

SERVICE = "bench.BareEcho"
MEBIBYTE = 1 << 20
OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 8 * MEBIBYTE),
    ("grpc.max_send_message_length", 8 * MEBIBYTE),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]

# Given back as it came.
ECHOED = episode_service_pb2.AppendEpisodesRequest
# Requests whose answer is the response kept last.
ANSWERED: dict[type[Message], type[Message]] = {
    search_service_pb2.SearchEpisodesRequest: search_service_pb2.SearchEpisodesResponse,
    session_service_pb2.ResumeSessionRequest: session_service_pb2.ResumeSessionResponse,
}

Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[AnyRequest, AnyResponse]"


def echoing(
    channel: grpc.aio.Channel,
) -> Call[episode_service_pb2.AppendEpisodesRequest, episode_service_pb2.AppendEpisodesRequest]:
    """The call that gives an append back."""
    return _call(channel, "Echo", ECHOED, ECHOED)


async def answering(
    channel: grpc.aio.Channel, request: type[AnyRequest], response: AnyResponse
) -> Call[AnyRequest, AnyResponse]:
    """The call that answers such requests with this response, always."""
    kept = type(response)
    keep: Call[AnyResponse, AnyResponse] = _call(channel, f"Keep{kept.__name__}", kept, kept)
    await keep(response)
    return _call(channel, request.__name__, request, kept)


def _call(
    channel: grpc.aio.Channel, method: str, request: type[AnyRequest], response: type[AnyResponse]
) -> Call[AnyRequest, AnyResponse]:
    return channel.unary_unary(
        f"/{SERVICE}/{method}", request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )


async def _echo(request: Message, context: object) -> Message:
    return request


def _handlers() -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    handlers = {"Echo": _handler(_echo, ECHOED)}
    for request, response in ANSWERED.items():
        kept: list[Message] = [response()]
        handlers[f"Keep{response.__name__}"] = _handler(_keeper(kept), response)
        handlers[request.__name__] = _handler(_answerer(kept), request)
    return handlers


def _keeper(kept: list[Message]) -> Handler:
    async def keep(request: Message, context: object) -> Message:
        kept[0] = request
        return request

    return keep


def _answerer(kept: list[Message]) -> Handler:
    async def answer(request: Message, context: object) -> Message:
        return kept[0]

    return answer


def _handler(handler: Handler, request: type[Message]) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        handler,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


async def serve(service: str, handlers: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
    """Answers on a free port, which it tells, until it is ended."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C reaches the whole group: the bench ends us
    loop.add_reader(sys.stdin, ended.set)
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"{service} listens on 127.0.0.1:{port}", file=sys.stderr, flush=True)
    await ended.wait()
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(serve(SERVICE, _handlers()))
