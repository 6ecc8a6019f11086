"""The gRPC server: its options, its port, and its services."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Mapping

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health
from grpc_reflection.v1alpha import reflection
from hivemem.v1 import (
    admin_service_pb2,
    agent_service_pb2,
    episode_service_pb2,
    knowledge_service_pb2,
    namespace_service_pb2,
    search_service_pb2,
    session_service_pb2,
    thread_service_pb2,
)

from hivemem_server.domain import limits
from hivemem_server.rpc.registry import service_handler

SERVICES: tuple[ServiceDescriptor, ...] = tuple(
    descriptor
    for module in (
        namespace_service_pb2,
        session_service_pb2,
        episode_service_pb2,
        search_service_pb2,
        thread_service_pb2,
        agent_service_pb2,
        knowledge_service_pb2,
        admin_service_pb2,
    )
    for descriptor in module.DESCRIPTOR.services_by_name.values()
)

_OPTIONS = [
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # must be below the clients' interval
    ("grpc.http2.max_ping_strikes", 0),
]


class AddressError(Exception):
    """The server cannot listen there; the message is one sentence with the cure."""


def check_address(host: str, port: int) -> None:
    """Raises AddressError if the server cannot listen there; asked before anything is made for it."""
    _check_loopback(host)
    _check_free(host, port)


@contextlib.contextmanager
def reserved_port(host: str, port: int) -> Iterator[int]:
    """Holds a port, any if 0 is given, while the context is open: servers of this user with `shared_port` may listen
    there, nobody else. Raises AddressError.

    Without SO_REUSEADDR a port cannot be had again for a minute after its last server; with it, only to listen is
    exclusive, and the one that listens would get connections. So one socket listens for a moment, and the one that
    holds the port gets in beside it, and is exclusive itself before the first is closed.
    """
    _check_loopback(host)
    if not hasattr(socket, "SO_REUSEPORT"):
        raise AddressError("on this system processes cannot share a port: leave --workers at 1")
    with _socket(host) as holder:
        try:
            with _socket(host) as first:
                first.bind((host, port))
                first.listen(0)
                for one in (first, holder):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                holder.bind(first.getsockname())
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            raise _taken(host, port) from error
        yield holder.getsockname()[1]


class RpcServer:
    """A gRPC server with health and reflection. `servicers` is by service name; what is missing is UNIMPLEMENTED.

    With `shared_port`, others may listen on the port as well; the system gives each connection to one of them. A
    connection takes no new calls after about `connection_age` seconds, so that its client makes another.
    """

    def __init__(
        self, host: str, port: int, servicers: Mapping[str, object], *, connection_age: float, shared_port: bool = False
    ) -> None:
        self._host = host
        self._port = port
        # Not shared by default: a second server on the port would bind silently and take half of the calls.
        shared = ("grpc.so_reuseport", int(shared_port))
        age = ("grpc.max_connection_age_ms", int(connection_age * 1_000))
        self._server = grpc.aio.server(options=[*_OPTIONS, shared, age])
        self._health = aio_health.HealthServicer()
        handlers = [service_handler(service, servicers.get(service.name, object())) for service in SERVICES]
        self._server.add_generic_rpc_handlers(tuple(handlers))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.full_name for service in SERVICES]
        self._names = ["", *names]
        reflection.enable_server_reflection([*names, "grpc.health.v1.Health", reflection.SERVICE_NAME], self._server)

    async def start(self) -> int:
        """Listens and answers; returns the port, which was chosen by the system if 0 was asked for."""
        address = f"[{self._host}]" if ":" in self._host else self._host
        try:
            port = self._server.add_insecure_port(f"{address}:{self._port}")
        except RuntimeError as error:
            raise _taken(self._host, self._port) from error
        await self._server.start()
        await self._say(health_pb2.HealthCheckResponse.SERVING)
        return port

    async def say_not_serving(self) -> None:
        """Tells load balancers to send nothing new."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace: float) -> None:
        """Takes no new calls, gives those under way `grace` seconds, then ends them."""
        await self._server.stop(grace)

    async def _say(self, status: int) -> None:
        for name in self._names:
            await self._health.set(name, status)


def _check_loopback(host: str) -> None:
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise AddressError(
            f"{host} is no loopback address: without credentials the server listens on 127.0.0.1, ::1 or localhost only"
        )


def _check_free(host: str, port: int) -> None:
    """gRPC's own message names neither the port nor the reason."""
    if not port:
        return
    with _socket(host) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _taken(host, port) from error


def _socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _taken(host: str, port: int) -> AddressError:
    return AddressError(f"port {port} of {host} is in use: stop what listens there, or choose another with --port")
