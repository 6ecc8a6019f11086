"""What a server does besides answering calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

_log = structlog.get_logger()

RESTART_SECONDS = 1.0


class Duties:
    """Background tasks. One that fails by a bug is logged and begun again; it does not take the server with it."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, name: str, duty: Callable[[], Awaitable[None]]) -> None:
        """Begins a duty."""
        self._tasks.append(asyncio.create_task(_kept_going(name, duty), name=name))

    async def end(self) -> None:
        """Ends all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _kept_going(name: str, duty: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await duty()
        except Exception:
            _log.exception("a background duty failed; it begins again", duty=name)
        await asyncio.sleep(RESTART_SECONDS)
