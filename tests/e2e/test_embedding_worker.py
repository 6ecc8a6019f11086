"""The local model's process dies or hangs: search goes on by words at once, and by meaning again by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import hivemem
import pytest
from fix_server import ServerProcess, StartServer

RECOVERY = 90.0


def worker_of(server: ServerProcess) -> int:
    """The process id of a server's embedding worker."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text(encoding="ascii")
    for pid in map(int, children.split()):
        if b"hivemem_server.embedding.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError(f"no worker among {children}")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the worker in Linux's /proc")
async def test_a_killed_worker_comes_back_and_a_stopped_one_costs_no_answer(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server("--database-url", database_url)
    async with hivemem.Client(server.address, timeout=60) as memory:
        session = await memory.session("s")
        done = await session.agent("a").append(summary="The giraffe eats leaves high up in the trees.")
        await session.search("anything", wait_for_position=done.position)
        idle = worker_of(server)
        os.kill(idle, signal.SIGKILL)
        async with asyncio.timeout(RECOVERY):
            while not await by_meaning(session):  # noqa: ASYNC110 - another process comes back
                await asyncio.sleep(0.2)
        assert worker_of(server) != idle
        os.kill(worker_of(server), signal.SIGSTOP)
        result = await session.search("what does the giraffe eat")
        assert [hit.episode.position for hit in result] == [done.position]
        assert hivemem.Shortfall.EMBEDDER_UNAVAILABLE in result.shortfalls
        os.kill(worker_of(server), signal.SIGCONT)


async def by_meaning(session: hivemem.Session) -> bool:
    """Whether a search that shares no word with the episode finds it."""
    return len(await session.search("food of tall animals")) == 1
