"""Subscriptions of the client library that nobody iterates over, in a process of their own.

python -m tests.bench.stalled_clients ADDRESS
"""

from __future__ import annotations

import sys
from typing import Any

import hivemem
import uvloop

from .talking import answering


async def _serve(address: str) -> None:
    subscriptions: list[hivemem.Subscription] = []

    async def read(episodes: int) -> dict[str, Any]:
        """Takes so many episodes, so that what every client needs is there."""
        async with client.subscribe() as subscription:
            for _ in range(episodes):
                await anext(subscription)
        return {}

    async def stall(count: int) -> dict[str, Any]:
        """Takes one episode of each subscription, and no more."""
        subscriptions.extend(client.subscribe() for _ in range(count))
        for subscription in subscriptions:
            await anext(subscription)
        return {}

    async with hivemem.Client(address) as client:
        await answering({"read": read, "stall": stall})


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
