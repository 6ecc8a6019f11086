"""The pool of database connections: none is lost, whatever becomes of those who use them."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from hivemem_server.postgres.database import Database

SIZE = 4
WAIT = 30.0


async def _reads(database: Database) -> None:
    async with database.snapshot() as connection:
        await connection.execute("SELECT 1")


async def _storm(database: Database, chance: random.Random) -> None:
    """Callers, most of whom are cancelled: while they wait for a connection, use it, or hand it back."""
    callers = [asyncio.create_task(_reads(database)) for _ in range(40)]
    while waiting := [caller for caller in callers if not caller.done()]:
        for caller in waiting:
            if chance.random() < 0.05:
                caller.cancel()
        await asyncio.sleep(chance.choice((0, 0, 0.001)))
    for caller in callers:
        with contextlib.suppress(asyncio.CancelledError):
            await caller


@pytest.mark.parametrize("seed", range(3))
async def test_callers_that_are_cancelled_at_any_moment_cost_no_connection(database_url: str, seed: int) -> None:
    async with Database(database_url, size=SIZE) as database:
        async with asyncio.timeout(WAIT):
            for _ in range(12):
                await _storm(database, random.Random(seed))
        all_in_use = asyncio.Barrier(SIZE)

        async def uses_one() -> None:
            async with database.snapshot():
                await all_in_use.wait()

        async with asyncio.timeout(WAIT):
            await asyncio.gather(*(uses_one() for _ in range(SIZE)))
