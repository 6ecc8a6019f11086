from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING

import grpc
import hivemem
import pytest
from fix_scripted import (
    Refusal,
    Script,
    Silence,
    batch,
    caught_up,
    cursor,
    fell_behind,
    going_away,
    progress,
    records,
    started,
)
from hivemem.v1.episode_service_pb2 import WaitEpisodesResponse

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


async def test_a_server_that_ages_its_streams_loses_and_repeats_nothing(memory: hivemem.Client, script: Script) -> None:
    script.streams = [
        [started(start), batch(start + 1, start + 2), progress(start + 2), batch(start + 3), going_away(start + 3)]
        for start in range(0, 300, 3)
    ]
    script.streams.append([started(300), Silence()])
    async with memory.subscribe() as stream:
        assert await taken(stream, 300) == list(range(1, 301))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.2)
    assert [request.start.cursor for request in script.requests[1:]] == [cursor(end) for end in range(3, 303, 3)]


async def test_a_server_that_goes_away_says_when_to_connect_again(
    memory: hivemem.Client, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hivemem")
    script.streams = [
        [started(), batch(1), going_away(1)],
        [started(1), batch(2), going_away(2, retry_delay=0.4)],
        [started(2), going_away(2)],
        [started(2), batch(3), Silence()],
    ]
    async with memory.subscribe() as stream:
        assert await taken(stream, 3) == [1, 2, 3]
    at_once, asked_for, fruitless = pauses(caplog)
    assert at_once == 0.0
    assert 0.4 <= asked_for <= 0.5
    assert fruitless > 0.0


async def test_pauses_grow_while_there_is_no_server_and_start_again_after_news(
    memory: hivemem.Client, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hivemem")
    script.streams = [[GONE], [started(), GONE], [GONE], [started(), batch(1), GONE], [started(1), batch(2), Silence()]]
    async with memory.subscribe() as stream:
        assert await taken(stream, 2) == [1, 2]
    *growing, afterwards = pauses(caplog)
    assert [bound / 2 <= pause <= bound for pause, bound in zip(growing, (0.1, 0.2, 0.4), strict=True)] == [True] * 3
    assert afterwards <= 0.1


def pauses(caplog: pytest.LogCaptureFixture) -> list[float]:
    """The pauses before new streams, as the subscription tells of them."""
    found = [record.args for record in caplog.records if "connects again" in record.getMessage()]
    return [args[0] for args in found if isinstance(args, tuple) and isinstance(args[0], float)]


async def test_short_timeouts_around_it_do_not_put_the_next_try_off(memory: hivemem.Client, script: Script) -> None:
    script.streams = [
        [Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_delay=0.5)],
        [started(), batch(1), Silence()],
    ]
    async with memory.subscribe() as stream:
        while (episode := await within(stream, 0.1)) is None:
            pass
    assert episode.position == 1


async def test_short_timeouts_around_it_do_not_hide_a_dead_stream(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(heartbeat=0.2), Silence()], [started(), batch(1), Silence()]]
    async with memory.subscribe() as stream:
        while (episode := await within(stream, 0.1)) is None:
            pass
    assert episode.position == 1


async def within(stream: hivemem.Subscription, seconds: float) -> hivemem.Episode | None:
    try:
        async with asyncio.timeout(seconds):
            return await anext(stream)
    except TimeoutError:
        return None


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


async def test_who_falls_behind_has_to_catch_up_again(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), caught_up(0), batch(1), fell_behind(1), batch(2), caught_up(2), batch(3), Silence()]]
    async with memory.subscribe() as stream:
        seen = []
        for _ in range(3):
            await anext(stream)
            seen.append(stream.caught_up)
    assert seen == [True, False, True]


async def test_it_ends_when_it_has_caught_up_if_that_is_asked_for(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1, 2), GONE], [started(2), batch(3), caught_up(5), batch(6), Silence()]]
    stream = memory.subscribe(until_caught_up=True)
    assert [episode.position async for episode in stream] == [1, 2, 3]
    assert (stream.position, stream.cursor) == (5, cursor(5))
    await stream.wait_caught_up()
    await stream.aclose()
    await script.all_ended.wait()


async def test_closing_in_the_middle_of_a_batch_ends_it_at_once(memory: hivemem.Client, script: Script) -> None:
    script.streams = [[started(), batch(1, 2, 3), Silence()]]
    seen = []
    stream = memory.subscribe()
    async for episode in stream:
        seen.append(episode.position)
        await stream.aclose()
    assert seen == [1]
    assert stream.cursor == cursor(0)


async def test_a_standing_query_goes_to_the_server_and_its_scores_come_back(
    memory: hivemem.Client, script: Script
) -> None:
    script.streams = [[started(), batch(1, score=0.75), batch(2, score=0.0), batch(3), Silence()]]
    async with memory.subscribe(relevant_to="pricing", min_score=0.0) as stream:
        seen = [(await anext(stream), stream.score)[1] for _ in range(3)]
    assert seen == [0.75, 0.0, None]
    async with memory.subscribe(relevant_to="pricing") as stream:
        assert [record.score async for record in first(stream, 2)] == [0.75, 0.0]
    query, without_score = (request.relevance for request in script.requests)
    assert (query.relevant_to, query.HasField("min_score"), query.min_score) == ("pricing", True, 0.0)
    assert (without_score.relevant_to, without_score.HasField("min_score")) == ("pricing", False)


async def first(stream: hivemem.Subscription, count: int) -> AsyncIterator[hivemem.LogRecord]:
    records = stream.records()
    for _ in range(count):
        yield await anext(records)


async def test_a_wait_takes_a_standing_query_too(memory: hivemem.Client, script: Script) -> None:
    script.waits = [WaitEpisodesResponse(records=records(4, 6, score=0.5), cursor=cursor(6), position=6)]
    found = await memory.wait(relevant_to="pricing", min_score=0.4)
    assert [(record.position, record.score) for record in found.records] == [(4, 0.5), (6, 0.5)]
    await memory.wait()
    query, nothing = script.wait_requests
    assert (query.relevance.relevant_to, query.relevance.min_score) == ("pricing", 0.4)
    assert not nothing.HasField("relevance")


async def test_a_score_without_a_standing_query_is_a_mistake_of_the_caller(memory: hivemem.Client) -> None:
    with pytest.raises(TypeError, match="relevant_to"):
        memory.subscribe(min_score=0.4)
    with pytest.raises(TypeError, match="relevant_to"):
        await memory.wait(min_score=0.4)


async def test_a_server_without_an_embedder_is_told_at_the_start_and_waited_for_later(
    memory: hivemem.Client, script: Script
) -> None:
    without = Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="EMBEDDER_UNAVAILABLE", retry_delay=0.01)
    script.streams = [[without], [started(), batch(1), without], [without], [started(1), batch(2), Silence()]]
    with pytest.raises(hivemem.EmbedderUnavailable):
        await anext(memory.subscribe(relevant_to="pricing"))
    async with memory.subscribe(relevant_to="pricing") as stream:
        assert await taken(stream, 2) == [1, 2]


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
