from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import grpc
import hivemem
import pytest
from fix_scripted import Refusal, Script, Silence, batch, caught_up, cursor, going_away, progress, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


GONE = Refusal(code=grpc.StatusCode.UNAVAILABLE)
WAIT = 20.0


@pytest.fixture
async def memory(script: Script) -> AsyncIterator[hivemem.Client]:
    async with hivemem.Client(script.address) as client, asyncio.timeout(WAIT):
        yield client


async def taken(stream: hivemem.Subscription, count: int) -> list[int]:
    return [(await anext(stream)).position for _ in range(count)]


async def test_episodes_come_in_order_and_the_end_is_a_normal_one(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1, 2), caught_up(2), batch(3), Silence()]]
    stream = memory.subscribe()
    assert await taken(stream, 3) == [1, 2, 3]
    await stream.aclose()
    assert [episode async for episode in stream] == []


@pytest.mark.parametrize(
    "loss", [GONE, Refusal(code=grpc.StatusCode.CANCELLED), None], ids=["gone", "cancelled", "end"]
)
async def test_a_lost_stream_goes_on_at_its_cursor(
    memory: hivemem.Client, script: Script, loss: Refusal | None
) -> None:
    script.streams = [[started(), batch(1, 2), *([loss] if loss else [])], [started(2), batch(3), Silence()]]
    async with memory.subscribe() as stream:
        assert await taken(stream, 3) == [1, 2, 3]
    assert script.requests[1].start.cursor == cursor(2)


async def test_reasons_that_the_server_may_recover_from_are_no_end(memory: hivemem.Client, script: Script) -> None:
    unavailable, exhausted = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
    script.streams = [
        [Refusal(code=unavailable, reason="DRAINING", retry_delay=0.01)],
        [Refusal(code=unavailable, reason="DATABASE_UNAVAILABLE", retry_delay=0.01)],
        [started(), batch(1), Refusal(code=exhausted, reason="SLOW_CONSUMER")],
        [started(1), batch(2), Silence()],
    ]
    async with memory.subscribe() as stream:
        assert await taken(stream, 2) == [1, 2]


async def test_other_errors_are_raised_and_end_it(memory: hivemem.Client, script: Script) -> None:
    expired = Refusal(code=grpc.StatusCode.OUT_OF_RANGE, reason="CURSOR_EXPIRED", metadata={"first_position": "7"})
    script.streams = [[expired]]
    stream = memory.subscribe(after=3)
    with pytest.raises(hivemem.CursorExpired) as caught:
        await anext(stream)
    assert caught.value.first_position == 7
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_server_that_goes_away_is_left_for_the_next(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1), going_away(5), Silence()], [started(5), batch(6), Silence()]]
    async with memory.subscribe() as stream:
        assert await taken(stream, 2) == [1, 6]
        assert script.open_streams == 1
    assert script.requests[1].start.cursor == cursor(5)


async def test_a_silent_stream_is_taken_for_dead(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(heartbeat=0.05), batch(1), Silence()], [started(1), batch(2), Silence()]]
    async with memory.subscribe() as stream:
        assert await taken(stream, 2) == [1, 2]


async def test_a_dead_stream_gives_its_connection_up_and_the_others_go_on(
    memory: hivemem.Client, script: Script
) -> None:
    script.streams = [
        [started(heartbeat=0.1), Silence()],
        [started(), batch(1), Silence()],
        [started(), batch(1, 2), Silence()],
    ]
    dying, bystander = memory.subscribe(), memory.subscribe()
    reading = asyncio.create_task(taken(dying, 2))
    await script.arrived.wait()
    connection = memory._connection._channels[0]
    assert await taken(bystander, 2) == [1, 2]
    assert await reading == [1, 2]
    assert memory._connection._channels != [connection]
    script.calls = [None]
    assert (await memory.session("s")).created


async def test_a_slow_reader_is_not_taken_for_a_dead_stream(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(heartbeat=0.05), batch(1), batch(2), Silence()]]
    async with memory.subscribe() as stream:
        first = await anext(stream)
        await asyncio.sleep(0.5)  # the work of the reader, longer than ten heartbeats
        assert [first.position, (await anext(stream)).position] == [1, 2]
    assert len(script.requests) == 1


async def test_what_was_given_out_is_not_given_out_again(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1, 2, 3), GONE], [started(), batch(1, 2, 3, 4), batch(4, 5), Silence()]]
    async with memory.subscribe() as stream:
        assert await taken(stream, 5) == [1, 2, 3, 4, 5]


async def test_the_cursor_never_points_past_an_unfinished_episode(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1, 2), batch(3), progress(9), Silence()]]
    async with memory.subscribe() as stream:
        seen = []
        for _ in range(3):
            await anext(stream)
            seen.append((stream.position, stream.cursor))
        assert seen == [(0, cursor(0)), (1, cursor(0)), (2, cursor(2))]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.2)
        assert (stream.position, stream.cursor) == (9, cursor(9))


async def test_a_timeout_around_it_loses_nothing(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), Silence()]]
    async with memory.subscribe() as stream:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await anext(stream)
    assert len(script.requests) == 1


async def test_another_task_can_wait_until_it_has_caught_up(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1), caught_up(1), Silence()]]
    async with memory.subscribe() as stream, asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(taken(stream, 2))
        await stream.wait_caught_up()
        assert stream.caught_up
        assert stream.position == 1
        reading.cancel()


async def test_waiting_to_catch_up_ends_with_the_subscription(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), Silence()]]
    stream = memory.subscribe()
    waiting = asyncio.create_task(stream.wait_caught_up())
    reading = asyncio.create_task(taken(stream, 1))
    await script.arrived.wait()
    await memory.aclose()
    with pytest.raises(hivemem.Closed):
        await waiting
    with pytest.raises(StopAsyncIteration):
        await reading
    assert not stream.caught_up


async def test_closing_ends_the_call_and_the_iteration_of_another_task(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1), Silence()]]
    stream = memory.subscribe()
    await taken(stream, 1)

    async def positions() -> list[int]:
        return [episode.position async for episode in stream]

    reading = asyncio.create_task(positions())
    await asyncio.sleep(0)
    await stream.aclose()
    assert await reading == []
    await script.all_ended.wait()


async def test_closing_does_not_wait_for_a_pause_between_streams(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_delay=0.9)]]
    stream = memory.subscribe()
    reading = asyncio.create_task(taken(stream, 1))
    await script.arrived.wait()
    await script.all_ended.wait()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await reading


async def test_leaving_the_loop_and_forgetting_it_leaves_no_call_behind(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1, 2), Silence()]]
    async for episode in memory.subscribe():
        assert episode.position == 1
        break
    gc.collect()
    await script.all_ended.wait()


async def test_a_subscription_in_the_middle_of_a_read_can_be_forgotten(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), Silence()]]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(taken(memory.subscribe(), 1), 0.1)
    gc.collect()
    await script.all_ended.wait()


async def test_more_subscriptions_than_a_proxy_allows_a_connection(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1), Silence()]]
    streams = [memory.subscribe() for _ in range(200)]
    assert await asyncio.gather(*(taken(stream, 1) for stream in streams)) == [[1]] * 200
    assert len(memory._connection._channels) == 3
