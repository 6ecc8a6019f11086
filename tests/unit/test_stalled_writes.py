"""Writes to a reader that takes nothing: given up after the stall timeout, never cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hivemem.v1 import episode_service_pb2 as pb
from hivemem_server.domain.errors import SlowConsumer
from hivemem_server.rpc import registry
from hivemem_server.rpc.registry import Outgoing

LONG = 10.0


class Reader:
    """A context whose writes end when the test says so."""

    def __init__(self) -> None:
        self.writing = asyncio.Event()
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelled = False

    async def write(self, _: object) -> None:
        self.writing.set()
        try:
            await self.taken
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def write(reader: Reader, stall_seconds: float) -> None:
    context: Any = reader
    await registry._write(context, Outgoing(pb.SubscribeEpisodesResponse(), stall_seconds))


async def test_a_reader_that_takes_nothing_is_given_up_and_its_write_is_left_alone() -> None:
    reader = Reader()
    with pytest.raises(SlowConsumer, match=r"nothing was read for 0\.01 s: resume from the last cursor") as slow:
        await write(reader, 0.01)
    assert slow.value.metadata == {"stall_seconds": "0.01"}
    assert reader.writing.is_set()
    assert not reader.cancelled
    reader.taken.set_exception(ConnectionError("gone at last"))  # nobody waits for it; it must not be complained of
    await asyncio.sleep(0)


async def test_a_reader_that_takes_its_time_within_the_timeout_is_served() -> None:
    reader = Reader()
    writing = asyncio.create_task(write(reader, LONG))
    await reader.writing.wait()
    assert not writing.done()
    reader.taken.set_result(None)
    await writing


async def test_a_write_that_fails_says_so() -> None:
    reader = Reader()
    writing = asyncio.create_task(write(reader, LONG))
    await reader.writing.wait()
    reader.taken.set_exception(ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        await writing
