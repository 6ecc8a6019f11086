"""Writes to a reader that takes nothing: given up after the stall timeout, never cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hivemem.v1 import episode_service_pb2 as pb
from hivemem_server.domain.errors import SlowConsumer
from hivemem_server.rpc.pump import Outgoing, Pump

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


async def responses(stall_seconds: float, count: int = 1) -> AsyncGenerator[Outgoing]:
    for _ in range(count):
        yield Outgoing(pb.SubscribeEpisodesResponse(), stall_seconds)


async def pump(reader: Reader, made: AsyncGenerator[Outgoing]) -> None:
    context: Any = reader
    await Pump(context).run(made)


async def test_a_reader_that_takes_nothing_is_given_up_and_its_write_is_left_alone() -> None:
    reader = Reader()
    with pytest.raises(SlowConsumer, match=r"nothing was read for 0\.01 s: resume from the last cursor") as slow:
        await pump(reader, responses(0.01))
    assert slow.value.metadata == {"stall_seconds": "0.01"}
    assert reader.writing.is_set()
    assert not reader.cancelled
    reader.taken.set_exception(ConnectionError("gone at last"))  # nobody waits for it; it must not be complained of
    await asyncio.sleep(0)


async def test_a_reader_that_takes_its_time_within_the_timeout_is_served() -> None:
    reader = Reader()
    writing = asyncio.create_task(pump(reader, responses(LONG)))
    await reader.writing.wait()
    assert not writing.done()
    reader.taken.set_result(None)
    await writing


async def test_a_write_that_fails_says_so_and_no_more_is_made() -> None:
    reader, made = Reader(), responses(LONG, count=2)
    writing = asyncio.create_task(pump(reader, made))
    await reader.writing.wait()
    reader.taken.set_exception(ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        await writing
    assert [one async for one in made] == []


async def test_a_stream_without_anything_to_write_is_not_given_up_and_ends_with_its_call() -> None:
    ended = asyncio.Event()

    async def silent() -> AsyncGenerator[Outgoing]:
        yield Outgoing(pb.SubscribeEpisodesResponse(), 0.01)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    reader = Reader()
    reader.taken.set_result(None)
    writing = asyncio.create_task(pump(reader, silent()))
    await asyncio.wait({writing}, timeout=0.05)
    assert not writing.done()
    writing.cancel()
    await asyncio.wait_for(ended.wait(), LONG)


async def test_a_call_that_is_cancelled_does_not_take_its_write_with_it() -> None:
    reader = Reader()
    writing = asyncio.create_task(pump(reader, responses(LONG)))
    await reader.writing.wait()
    writing.cancel()
    await asyncio.wait({writing})
    assert not reader.cancelled
    reader.taken.set_result(None)


async def test_after_a_call_that_is_cancelled_in_a_write_nothing_more_is_written() -> None:
    ended = asyncio.Event()

    async def three() -> AsyncGenerator[Outgoing]:
        try:
            async for response in responses(LONG, count=3):
                yield response
        finally:
            ended.set()

    reader = Reader()
    writing = asyncio.create_task(pump(reader, three()))
    await reader.writing.wait()
    writing.cancel()
    await asyncio.wait({writing})
    reader.writing.clear()
    reader.taken.set_result(None)
    await asyncio.wait_for(ended.wait(), LONG)
    assert not reader.writing.is_set()
