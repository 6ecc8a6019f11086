"""Asks a server by grpc.health.v1 whether it serves: `python -m hivemem_server.health_probe [ADDRESS]` exits 0 or 1.

For container engines and service managers, which call it every few seconds: it loads nothing of the server itself.
ADDRESS is host:port; without it, the place that HIVEMEM_HOST and HIVEMEM_PORT give the server.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", "7400"
TIMEOUT_SECONDS = 3.0


def failure(address: str, *, timeout: float = TIMEOUT_SECONDS) -> str | None:
    """Why the server at `address` is not to be sent work, in one sentence; None if it serves."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stub knows no methods
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            return f"{address} does not answer ({error.code().name}): start it, or check the address"
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        return f"{address} answers {name}: it starts or stops"
    return None


def default_address() -> str:
    """Where a server listens that was started with this environment."""
    host = os.environ.get("HIVEMEM_HOST", DEFAULT_HOST)
    port = os.environ.get("HIVEMEM_PORT", DEFAULT_PORT)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main(arguments: list[str]) -> str | None:
    """The failure, for `sys.exit`, which prints it and makes it exit code 1."""
    if len(arguments) > 1:
        return "usage: python -m hivemem_server.health_probe [ADDRESS]"
    return failure(arguments[0] if arguments else default_address())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
