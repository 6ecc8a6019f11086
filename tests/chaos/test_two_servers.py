"""Two servers on one database, eight writer processes, four readers, and a kill -9 half-way."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import hivemem
import pytest
from fix_server import ServerProcess, StartServer

WRITER = Path(__file__).parent / "writer.py"
WRITERS = 8
WORDS_ONLY = ("--embedder", "none")


class Acknowledged:
    """What the writers were told: position, revision and id of every episode."""

    def __init__(self, total: int) -> None:
        self.rows: list[tuple[int, int, str]] = []
        self._half = asyncio.Event()
        self._half_at = total // 2

    def add(self, line: bytes) -> None:
        position, revision, episode_id = line.decode().split()
        self.rows.append((int(position), int(revision), episode_id))
        if len(self.rows) >= self._half_at:
            self._half.set()

    async def half(self) -> None:
        """Waits until half of them are acknowledged."""
        await self._half.wait()


async def _write(addresses: Sequence[str], agent_id: str, count: int, acknowledged: Acknowledged) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WRITER), ",".join(addresses), agent_id, str(count), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            acknowledged.add(line)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def _read(addresses: Sequence[str], total: int) -> list[str]:
    """Ids in the order in which a reader is given them; it moves to the next server when one is gone."""
    seen: list[str] = []
    position = 0
    for address in (*addresses, *addresses):
        async with hivemem.Client(address, timeout=3.0) as memory:
            with contextlib.suppress(_Gone):
                async for episode in _until_gone(memory, position):
                    seen.append(episode.episode_id)
                    position = episode.position
                    if len(seen) == total:
                        return seen
    raise AssertionError(f"a reader ended with {len(seen)} of {total}")


class _Gone(Exception):
    """The server is not there any more."""


async def _until_gone(memory: hivemem.Client, position: int) -> AsyncIterator[hivemem.Episode]:
    """Episodes until the server is gone: the client would wait for it for ever, this reader goes elsewhere."""
    async with memory.subscribe(after=position, heartbeat=1.0) as stream:
        while True:
            try:
                async with asyncio.timeout(3.0):
                    yield await anext(stream)
            except TimeoutError:
                try:
                    await memory.connect(timeout=1.0)
                except hivemem.HivememError as error:
                    raise _Gone from error


async def _scene(first: ServerProcess, second: ServerProcess, total: int) -> None:
    addresses = [first.address, second.address]
    async with hivemem.Client(second.address) as memory:
        await memory.session("chaos")
    acknowledged = Acknowledged(total)
    async with asyncio.timeout(600), asyncio.TaskGroup() as group:
        readers = [group.create_task(_read(addresses[n % 2 :] + addresses[: n % 2], total)) for n in range(4)]
        for number in range(WRITERS):
            order = addresses[number % 2 :] + addresses[: number % 2]
            group.create_task(_write(order, f"writer-{number}", total // WRITERS, acknowledged))
        await acknowledged.half()
        first.kill()
    _check(acknowledged, [reader.result() for reader in readers], total)


def _check(acknowledged: Acknowledged, readings: list[list[str]], total: int) -> None:
    rows = sorted(acknowledged.rows)
    assert [position for position, _, _ in rows] == list(range(1, total + 1)), "positions are dense"
    expected = [episode_id for _, _, episode_id in rows]
    for seen in readings:
        assert seen == expected, "every acknowledged episode, once, in one order"


async def test_every_acknowledged_episode_is_delivered_once_and_in_order(
    start_server: StartServer, database_url: str
) -> None:
    first = await start_server("--database-url", database_url, *WORDS_ONLY)
    second = await start_server("--database-url", database_url, *WORDS_ONLY)
    await _scene(first, second, 400)


@pytest.mark.soak
@pytest.mark.parametrize("round_number", range(5))
async def test_every_acknowledged_episode_of_2000_is_delivered_once_and_in_order(
    start_server: StartServer, database_url: str, round_number: int
) -> None:
    first = await start_server("--database-url", database_url, *WORDS_ONLY)
    second = await start_server("--database-url", database_url, *WORDS_ONLY)
    await _scene(first, second, 2_000)
