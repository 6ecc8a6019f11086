"""Family `reading`: what following the log costs above reading rows and encoding them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import hivemem
import psycopg
from hivemem.v1.episode_service_pb2 import AppendEpisodesRequest, SubscribeEpisodesRequest, SubscribeEpisodesResponse
from hivemem.v1.episode_service_pb2_grpc import EpisodeServiceStub
from hivemem.v1.types_pb2 import StartPoint

from .append import OURS_STREAM, prepared, requests
from .bare_echo import echoing
from .bare_read import read_log
from .measuring import MILLISECONDS, PER_SECOND, Goal, Result, Side, median, milliseconds, taking_turns
from .stand import Stand, channel
from .texts import Texts

if TYPE_CHECKING:
    from hivemem.v1.episode_service_pb2_grpc import EpisodeServiceAsyncStub

LOG_EPISODES = 100_000
CATCHUP_ROUNDS = 3
LIVE_CALLS, LIVE_ROUNDS, LIVE_SECONDS = 100, 7, 10.0


async def catchup(stand: Stand) -> Result:
    """Episodes in a second through the raw stub, against psycopg and protobuf alone."""
    count, url = stand.count(20_000, LOG_EPISODES), await stand.filled(LOG_EPISODES)
    async with stand.server(url) as address, channel(address) as opened:
        episodes = EpisodeServiceStub(opened)

        async def our_rate() -> float:
            return await raw_rate(episodes, count)

        return await _against_bare(stand, "catchup", Goal(least=0.8), our_rate, url, count)


async def catchup_client(stand: Stand) -> Result:
    """The same through the client library."""
    count, url = stand.count(20_000, LOG_EPISODES), await stand.filled(LOG_EPISODES)
    async with stand.server(url) as address, hivemem.Client(address) as client:

        async def our_rate() -> float:
            return await _client_rate(client, count)

        return await _against_bare(stand, "catchup_client", Goal(least=0.5), our_rate, url, count)


async def _against_bare(stand: Stand, measure: str, goal: Goal, our_rate: Side, url: str, count: int) -> Result:
    with psycopg.connect(url, autocommit=True) as connection:

        async def bare_rate() -> float:
            begin = time.perf_counter()
            read_log(connection, LOG_EPISODES - count, count)
            return count / (time.perf_counter() - begin)

        ours, bares = await taking_turns(CATCHUP_ROUNDS, our_rate, bare_rate, tick=stand.tick)
    return Result(
        measure=measure,
        ours=median(ours),
        bare=median(bares),
        unit=PER_SECOND,
        goal=goal,
        detail={"log": LOG_EPISODES, "episodes": count, "ours": ours, "bare": bares},
    )


async def raw_rate(episodes: EpisodeServiceAsyncStub, count: int) -> float:
    """The newest episodes of the filled log, those that measures have added left out."""
    start = StartPoint(position=LOG_EPISODES - count)
    begin, left = time.perf_counter(), count
    call = episodes.SubscribeEpisodes(SubscribeEpisodesRequest(start=start))
    async for response in call:
        left -= len(response.batch.records)
        if left <= 0:
            break
    taken = time.perf_counter() - begin
    call.cancel()
    return (count - left) / taken


async def _client_rate(client: hivemem.Client, count: int) -> float:
    begin, left = time.perf_counter(), count
    async with client.subscribe(after=LOG_EPISODES - count) as subscription:
        async for _ in subscription:
            left -= 1
            if not left:
                break
    return count / (time.perf_counter() - begin)


async def live(stand: Stand) -> Result:
    """Median time from the call of an append until a subscriber has it, against its acknowledgement and an echo."""
    async with (
        stand.database() as url, stand.server(url) as address, stand.echo() as echo_channel,
        channel(address) as writing, channel(address) as following,
    ):  # fmt: skip
        append, echo, texts = await prepared(writing), echoing(echo_channel), Texts(OURS_STREAM)
        acknowledged: list[float] = []

        async with aclosing(positions(EpisodeServiceStub(following))) as arrivals:
            await anext(arrivals)

            async def our_time() -> float:
                delivered, answered = await delivering(append, arrivals, requests(texts, LIVE_CALLS))
                acknowledged.append(median(answered))
                return median(delivered)

            async def echo_time() -> float:
                return await milliseconds(echo, requests(texts, LIVE_CALLS))

            delivered, echoes = await taking_turns(LIVE_ROUNDS, our_time, echo_time, tick=stand.tick)
    answers = median(acknowledged[1:])
    return Result(
        measure="live",
        ours=median(delivered),
        bare=answers + median(echoes),
        unit=MILLISECONDS,
        goal=Goal(most=1.5),
        detail={"calls": LIVE_CALLS * LIVE_ROUNDS, "acknowledged": answers, "echo": median(echoes)},
    )


async def positions(episodes: EpisodeServiceAsyncStub) -> AsyncGenerator[int]:
    """How far a subscriber has come: once at the start, then with each delivery."""
    call = episodes.SubscribeEpisodes(SubscribeEpisodesRequest(start=StartPoint(now=StartPoint.Now())))
    try:
        response: SubscribeEpisodesResponse
        async for response in call:
            if response.HasField("started"):
                yield response.started.position
            elif response.HasField("batch"):
                yield response.batch.position
    finally:
        call.cancel()


async def delivering(
    append: EpisodeServiceAsyncStub,
    arrivals: AsyncIterator[int],
    given: list[AppendEpisodesRequest],
    pause: Callable[[], float] | None = None,
) -> tuple[list[float], list[float]]:
    """Milliseconds until the delivery, and until the acknowledgement, of appends one after the other."""
    delivered, answered = [], []

    async def timed_answer(request: AppendEpisodesRequest, begin: float) -> int:
        response = await append.AppendEpisodes(request)
        answered.append((time.perf_counter() - begin) * 1_000)
        return response.episodes[0].position

    for request in given:
        if pause is not None:
            await asyncio.sleep(pause())
        begin = time.perf_counter()
        answering = asyncio.create_task(timed_answer(request, begin))
        async with asyncio.timeout(LIVE_SECONDS):
            arrived = await anext(arrivals)
        delivered.append((time.perf_counter() - begin) * 1_000)
        assert arrived == await answering
    return delivered, answered


MEASURES = {measure.__name__: measure for measure in (catchup, catchup_client, live)}
