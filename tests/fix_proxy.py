"""A TCP proxy before the server, or before its database, that can cut, pause and refuse connections, as networks do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

_CHUNK = 1 << 16


class Proxy:
    """Forwards bytes between clients and `target` (`host:port`, or the path of a socket) until told otherwise."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates: list[asyncio.Event] = []
        self._black_hole = False

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self._port}"

    async def accept(self) -> None:
        """Lets clients connect, always at the same address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def lead_to(self, target: str) -> None:
        """Leads new connections elsewhere, as an address does after a failover; those that are open go on."""
        self._target = target

    def refuse(self) -> None:
        """Refuses new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        """Breaks all open connections, without a goodbye."""
        for writer in list(self._open):
            writer.transport.abort()

    def pause(self) -> None:
        """Holds back the bytes of the connections that are open now, without a word to either side."""
        for gate in self._gates:
            gate.clear()

    def swallow(self) -> None:
        """As `pause`, for connections to come as well: whatever is sent stays without an answer, as in a black hole."""
        self._black_hole = True
        self.pause()

    def resume(self) -> None:
        """Lets the bytes go that were held back."""
        self._black_hole = False
        for gate in self._gates:
            gate.set()

    async def close(self) -> None:
        """Ends everything."""
        self.refuse()
        self.resume()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gate = asyncio.Event()
        if not self._black_hole:
            gate.set()
        self._gates.append(gate)
        with contextlib.suppress(OSError):
            server_reader, server_writer = await self._connected()
            self._start(self._pump(reader, server_writer, gate))
            await self._pump(server_reader, writer, gate)
        writer.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith("/"):
            return await asyncio.open_unix_connection(self._target)
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    def _start(self, pump: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(pump)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(_CHUNK):
                    await gate.wait()
                    writer.write(data)
                    await writer.drain()
        finally:
            self._open.discard(writer)
            writer.transport.abort()


def database_target(url: str) -> str:
    """Where the database of a URL is, for a proxy before it."""
    parts = conninfo_to_dict(url)
    host, port = str(parts.get("host") or "localhost"), str(parts.get("port") or 5432)
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host}:{port}"


@pytest.fixture
async def proxy(server_address: str) -> AsyncIterator[Proxy]:
    """A proxy before the server of the test."""
    made = Proxy(server_address)
    await made.accept()
    yield made
    await made.close()
