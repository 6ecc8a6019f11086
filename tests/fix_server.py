"""Servers: in this process for most tests, as processes of their own for those that kill, stop or restart them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import hivemem
import pytest_asyncio
from hivemem_server.bootstrap import Running, running_server
from hivemem_server.settings import EmbedderKind, Settings
from pydantic import SecretStr

START_SECONDS = 60.0
LISTENS = re.compile(r"listens on (\S+)")


def settings(database_url: str, **changes: object) -> Settings:
    """Settings for a server of a test: any port, words only, quick to end."""
    chosen: dict[str, object] = {
        "port": 0, "database_url": SecretStr(database_url), "embedder": EmbedderKind.NONE, "poll_seconds": 0.02,
        "database_connections": 8, "drain_seconds": 0.02,
    } | changes  # fmt: skip
    return Settings(**chosen)  # type: ignore[arg-type]


def address(running: Running) -> str:
    """Where a server listens."""
    return f"{running.host}:{running.port}"


@pytest_asyncio.fixture(loop_scope="session")
async def server_address(database_url: str) -> AsyncIterator[str]:
    """Address of a server in this process that searches by words only."""
    async with running_server(settings(database_url), lambda _: None) as running:
        yield address(running)


@pytest_asyncio.fixture(loop_scope="session")
async def memory(server_address: str) -> AsyncIterator[hivemem.Client]:
    """A client of that server."""
    async with hivemem.Client(server_address) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def searching_address(database_url: str) -> AsyncIterator[str]:
    """Address of a server in this process with the local embedding model."""
    async with running_server(settings(database_url, embedder=EmbedderKind.LOCAL), lambda _: None) as running:
        yield address(running)


@pytest_asyncio.fixture(loop_scope="session")
async def searching_memory(searching_address: str) -> AsyncIterator[hivemem.Client]:
    """A client of that server."""
    async with hivemem.Client(searching_address) as client:
        yield client


@dataclass(slots=True, eq=False)
class ServerProcess:
    """`hivemem serve` as a process of its own. `said` is what it printed so far."""

    process: asyncio.subprocess.Process
    address: str
    said: list[str]
    heard: asyncio.Event
    reading: asyncio.Task[None]

    async def says(self, pattern: str, *, after: int = 0, within: float = 60.0) -> re.Match[str]:
        """Waits for a line with the pattern, among those after the first `after`; returns the first match."""
        async with asyncio.timeout(within):
            while True:
                self.heard.clear()
                for line in self.said[after:]:
                    if found := re.search(pattern, line):
                        return found
                await self.heard.wait()

    def kill(self) -> None:
        """As kill -9."""
        self.process.kill()

    def pause(self) -> None:
        """As kill -STOP."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """As kill -CONT."""
        self.process.send_signal(signal.SIGCONT)

    async def ended(self, *, within: float = 30.0) -> int:
        """Waits for its end; returns the exit code."""
        async with asyncio.timeout(within):
            code = await self.process.wait()
            await self.reading
        return code

    async def stop(self) -> int:
        """As Ctrl-C, to its end."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGINT)
        return await self.ended()


StartServer: TypeAlias = Callable[..., Awaitable[ServerProcess]]


@pytest_asyncio.fixture(loop_scope="session")
async def start_server() -> AsyncIterator[StartServer]:
    """Starts `hivemem serve` with the arguments given, on any port unless one is given; all end with the test."""
    started: list[ServerProcess] = []

    async def start(*arguments: str, **environment: str) -> ServerProcess:
        server = await _started(arguments, environment)
        started.append(server)
        return server

    yield start
    for server in started:
        with contextlib.suppress(ProcessLookupError):
            server.go_on()
            await server.stop()


async def _started(arguments: tuple[str, ...], environment: dict[str, str]) -> ServerProcess:
    port = [] if "--port" in arguments else ["--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hivemem.cli", "serve", *port, *arguments,
        env=os.environ | environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said: list[str] = []
    heard = asyncio.Event()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read(process, said, heard, listening))
    async with asyncio.timeout(START_SECONDS):
        where = await listening
    return ServerProcess(process, where, said, heard, reading)


async def refused_start(*arguments: str, **environment: str) -> str:
    """What `hivemem serve` says when it does not start: one line, exit code 1."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hivemem.cli", "serve", *arguments,
        env=os.environ | environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(START_SECONDS):
        out, err = await process.communicate()
    assert process.returncode == 1
    assert out == b""
    lines = err.decode().strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


async def _read(
    process: asyncio.subprocess.Process, said: list[str], heard: asyncio.Event, listening: asyncio.Future[str]
) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        said.append(line.decode(errors="replace").rstrip())
        heard.set()
        if (found := LISTENS.search(said[-1])) and not listening.done():
            listening.set_result(found[1])
    if not listening.done():
        await process.wait()
        listening.set_exception(AssertionError(f"the server did not start: {said}"))
