"""The health probe that container engines call."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health
from hivemem_server import health_probe
from hivemem_server.settings import DEFAULT_PORT, Settings

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def health() -> AsyncIterator[tuple[str, aio_health.HealthServicer]]:
    """A server with nothing but its health, and where it is."""
    servicer, server = aio_health.HealthServicer(), grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", servicer
    await server.stop(None)


async def probed(*arguments: str, **environment: str) -> tuple[int | None, str]:
    """Exit code and last words of the probe as a process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hivemem_server.health_probe", *arguments, env=environment, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_a_server_that_serves_is_healthy(health: tuple[str, aio_health.HealthServicer]) -> None:
    address, servicer = health
    await servicer.set("", SERVING)
    assert await probed(address) == (0, "")


async def test_the_probe_asks_where_the_environment_says_that_the_server_listens(
    health: tuple[str, aio_health.HealthServicer],
) -> None:
    address, servicer = health
    await servicer.set("", SERVING)
    assert await probed(HIVEMEM_PORT=address.rpartition(":")[2]) == (0, "")


async def test_a_server_that_stops_is_not_healthy(health: tuple[str, aio_health.HealthServicer]) -> None:
    address, servicer = health
    await servicer.set("", NOT_SERVING)
    code, said = await probed(address)
    assert code == 1
    assert "NOT_SERVING" in said


async def test_nobody_there_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    failure = await asyncio.to_thread(health_probe.failure, address)
    assert failure is not None
    assert address in failure


def test_the_probe_asks_where_a_server_listens_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIVEMEM_HOST", raising=False)
    monkeypatch.delenv("HIVEMEM_PORT", raising=False)
    assert health_probe.default_address() == f"{Settings().host}:{DEFAULT_PORT}"
    monkeypatch.setenv("HIVEMEM_HOST", "::1")
    assert health_probe.default_address() == f"[::1]:{DEFAULT_PORT}"
