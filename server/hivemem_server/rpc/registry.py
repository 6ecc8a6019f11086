"""Puts servicers on the wire: one handler for each method of the contract, and one place where errors become statuses.

A servicer is an object with a method for each rpc, named as the rpc in snake case: a coroutine that takes the request
and returns the response, or an async generator of responses, which for a client's stream takes an async iterator of
requests. What it does not have answers UNIMPLEMENTED.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from hivemem_server.domain.errors import HivememError, InvalidField, NotImplementedYet
from hivemem_server.rpc import deadline, status
from hivemem_server.rpc.pump import Outgoing, Pump

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Unary: TypeAlias = Callable[[Any], Awaitable[Message]]
Streaming: TypeAlias = Callable[[Any], AsyncGenerator["Outgoing"]]


class Malformed:
    """Bytes that are no message of the method's; the handler answers instead of gRPC, which would say UNKNOWN."""


def service_handler(service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
    """The handlers of one service."""
    handlers = {method.name: _handler(method, servicer) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _handler(method: MethodDescriptor, servicer: object) -> grpc.RpcMethodHandler[Any, Any]:
    implementation: Any = getattr(servicer, _snake_case(method.name), None) or _missing(method)
    parse = _lenient(message_factory.GetMessageClass(method.input_type))
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(
            _streaming(method.full_name, implementation), request_deserializer=parse, response_serializer=_serialized
        )
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            _streaming(method.full_name, implementation), request_deserializer=parse, response_serializer=_serialized
        )
    return grpc.unary_unary_rpc_method_handler(
        _unary(method.full_name, implementation), request_deserializer=parse, response_serializer=_serialized
    )


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _missing(method: MethodDescriptor) -> Unary:
    async def answer(request: object) -> Message:
        raise NotImplementedYet(
            f"this server does not have {method.containing_service.name}.{method.name} yet", method=method.name
        )

    return answer


def _lenient(message_class: type[Message]) -> Callable[[bytes], Message | Malformed]:
    def parse(data: bytes) -> Message | Malformed:
        try:
            return message_class.FromString(data)
        except (DecodeError, UnicodeDecodeError):
            return Malformed()

    return parse


def _serialized(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def check_parsed(request: object) -> None:
    """Raises for bytes that were no message; a servicer asks it for each request of a stream."""
    if isinstance(request, Malformed):
        raise InvalidField.at("request", "the bytes are no message of this method, or its text is not valid UTF-8")


def _unary(name: str, implementation: Unary) -> Callable[[Any, Context], Awaitable[Message]]:
    async def handle(request: Any, context: Context) -> Message:
        deadline.begin(context.time_remaining())
        try:
            check_parsed(request)
            return await implementation(request)
        except Exception as error:
            await _abort(context, status.known(error, name))
            raise  # not reached: abort raises

    return handle


def _streaming(name: str, implementation: Streaming) -> Callable[[Any, Context], Awaitable[None]]:
    async def handle(request: Any, context: Context) -> None:
        try:
            if not isinstance(request, AsyncIterator):
                check_parsed(request)
            await Pump(context).run(implementation(request))
        except grpc.aio.BaseError:
            return  # the caller is gone
        except Exception as error:
            _end(context, status.known(error, name))

    return handle


async def _abort(context: Context, error: HivememError) -> None:
    await context.abort(status.code(error), status.message(error), status.trailers(error))


def _end(context: Context, error: HivememError) -> None:
    """Ends a stream with a status by returning: after a blocked write `abort` would block as well."""
    context.set_code(status.code(error))
    context.set_details(status.message(error))
    context.set_trailing_metadata(status.trailers(error))
