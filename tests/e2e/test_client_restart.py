from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import hivemem

if TYPE_CHECKING:
    from fix_server import StartServer


async def test_reader_and_writer_survive_restarts_of_the_server_without_loss_or_repeat(
    start_server: StartServer, database_url: str
) -> None:
    count, rounds = 40, 3
    options = ("--database-url", database_url, "--embedder", "none")
    server = await start_server(*options)
    port = server.address.rpartition(":")[2]
    async with asyncio.timeout(100), hivemem.Client(server.address, timeout=40.0) as memory:
        session = await memory.session("s")

        async def read() -> list[hivemem.Episode]:
            async with session.subscribe() as stream:
                return [await anext(stream) for _ in range(count * rounds)]

        async def write() -> list[hivemem.Appended]:
            return [await session.agent("a").append(summary=f"{number}") for number in range(count)]

        reading = asyncio.create_task(read())
        written: list[hivemem.Appended] = []
        for round_number in range(rounds):
            writing = asyncio.create_task(write())
            if round_number < rounds - 1:
                server.kill()
                await server.ended()
                server = await start_server(*options, "--port", port)
            written += await writing
        seen = await reading
    assert [episode.position for episode in seen] == list(range(1, count * rounds + 1))
    assert [episode.episode_id for episode in seen] == [one.episode_id for one in written]
