"""A process that reads durably: prints the position of each episode, and gets stuck in handling one if told to."""

from __future__ import annotations

import asyncio
import sys

import hivemem


async def read(address: str, name: str, batch_size: int, stuck_at: int) -> None:
    """Reads until it is killed."""
    async with hivemem.Client(address) as memory, memory.subscribe(durable=name, max_batch_size=batch_size) as stream:
        async for episode in stream:
            print(episode.position, flush=True)
            if episode.position == stuck_at:
                await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(read(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
