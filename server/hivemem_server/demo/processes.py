"""The processes of the demo, seen from the parent: each is ended when its context is left, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hivemem_server.demo.child import Job

_START_SECONDS = 180.0  # the first start makes a database, perhaps on a slow disk
_AGENT_GRACE_SECONDS = 5.0
_SERVER_GRACE_SECONDS = 20.0
_LISTENS = re.compile(r"listens on (\S+)")
_LINES_KEPT = 20
# The demo brings its own server, whatever the environment says about others.
_NOT_FOR_THE_SERVER = {"HIVEMEM_DATABASE_URL", "HIVEMEM_DATA_DIR", "HIVEMEM_HOST", "HIVEMEM_PORT"}


class DemoFailed(Exception):
    """The demo cannot go on; the message is one sentence that says why."""


class AgentProcess:
    """One agent at work."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self._killed = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    async def told(self) -> AsyncIterator[dict[str, Any]]:
        """What it tells, to its end. Raises DemoFailed if it ended badly, other than by `kill`."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message["tells"] == "error":
                raise DemoFailed(f"{self.name} (process {self.pid}) failed: {message['text']}")
            yield message
        code = await self.process.wait()
        if code != 0 and not self._killed:
            raise DemoFailed(f"{self.name} (process {self.pid}) {_how(code)}")

    def kill(self) -> None:
        """As kill -9."""
        self._killed = True
        self.process.kill()

    async def ended(self) -> int:
        """Waits for its end, which a kill brings at once."""
        return await self.process.wait()


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextlib.asynccontextmanager
async def agent(module: str, job: Job) -> AsyncIterator[AgentProcess]:
    """An agent with its job."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", f"hivemem_server.demo.{module}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the parent, which ends all in good order
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(job).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # its end is told where its output is read
            await process.stdin.drain()
        yield AgentProcess(job["agent"], process)
    finally:
        process.stdin.close()  # asks it to end
        await _gone(process, _AGENT_GRACE_SECONDS)


@contextlib.asynccontextmanager
async def server(data_dir: Path) -> AsyncIterator[ServerProcess]:
    """A server with a database of its own in `data_dir`, that answers. Leaving it stops both."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "hivemem.cli", "serve"),
        *("--data-dir", str(data_dir), "--port", "0", "--log-level", "ERROR"),
        env={name: value for name, value in os.environ.items() if name not in _NOT_FOR_THE_SERVER},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    said = deque[str](maxlen=_LINES_KEPT)
    try:
        async with _listened(process, said) as address:
            yield ServerProcess(process, address, said)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await _gone(process, _SERVER_GRACE_SECONDS)


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """The server. `said` is what it printed last."""

    process: asyncio.subprocess.Process
    address: str
    said: deque[str]

    async def watch(self) -> None:
        """Raises DemoFailed when it ends."""
        raise _stopped(await self.process.wait(), self.said)


@contextlib.asynccontextmanager
async def _listened(process: asyncio.subprocess.Process, said: deque[str]) -> AsyncIterator[str]:
    """Reads what the server prints for as long as the context is open; gives its address."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read(process, said, listening))
    try:
        either: set[asyncio.Future[Any]] = {listening, reading}
        await asyncio.wait(either, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            if reading.done():
                raise _stopped(await process.wait(), said)
            raise DemoFailed(f"the server did not start within {_START_SECONDS:.0f} s: {_last(said)}")
        yield listening.result()
    finally:
        reading.cancel()
        await asyncio.wait({reading})


async def _read(process: asyncio.subprocess.Process, said: deque[str], listening: asyncio.Future[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        said.append(line.decode(errors="replace").strip())
        if (found := _LISTENS.search(said[-1])) and not listening.done():
            listening.set_result(found[1])


def _stopped(code: int, said: deque[str]) -> DemoFailed:
    return DemoFailed(f"the server {_how(code)}: {_last(said)}")


def _last(said: deque[str]) -> str:
    """The last thing that the server said to people."""
    told = [line.removeprefix("hivemem: ") for line in said if line.startswith("hivemem: ")]
    return (told or [*said, "it said nothing"])[-1]


async def _gone(process: asyncio.subprocess.Process, grace: float) -> None:
    """Waits for the end of a process that was asked to end; after `grace` seconds it is killed."""
    try:
        async with asyncio.timeout(grace):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
