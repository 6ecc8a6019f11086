"""A writer as a process of its own: appends to its stream, prints every acknowledged position, survives lost servers.

    python writer.py ADDRESSES AGENT COUNT

It goes from one address to the next whenever a server does not answer, with the same episode.
"""

from __future__ import annotations

import asyncio
import sys

import hivemem


async def main(addresses: list[str], agent_id: str, count: int) -> None:
    clients = [hivemem.Client(address, timeout=3.0) for address in addresses]
    turn = 0
    try:
        for number in range(count):
            new = hivemem.NewEpisode(summary=f"{agent_id} wrote {number}", turn=number + 1)
            while True:
                client = clients[turn % len(clients)]
                try:
                    session = await client.session("chaos")
                    done = await session.agent(agent_id).append_all([new])
                except (hivemem.Unavailable, hivemem.ConnectionFailed, hivemem.DeadlineExceeded):
                    turn += 1
                    continue
                break
            sys.stdout.write(f"{done[0].position} {done[0].revision} {new.episode_id}\n")
            sys.stdout.flush()
    finally:
        for client in clients:
            await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split(","), sys.argv[2], int(sys.argv[3])))
