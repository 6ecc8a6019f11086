"""Waiting for what the operating system does not announce."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


async def holds_within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether the condition came true in time. Processes that are not our children can only be polled."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        return condition()
    return True
