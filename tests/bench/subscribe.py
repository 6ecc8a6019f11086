"""Family `subscribe`: what many subscribers cost, when they read and when they do not, and how soon they have what is
new. What one subscriber costs is in `reading`, and measured with it.

Fan-out is made fair so: appends of ten episodes each are one message each for every subscriber, because that is the
batch size they ask for; the same messages, byte for byte, are what the bare server sends to as many streams. Followers
of both are the same process, which does next to nothing for a message (see `followers`), so that servers are what is
measured and not clients. What ours does besides, the appends, is part of it. In the detail, processor time of
each server for one message, which says the same on a machine that is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.duration_pb2 import Duration
from hivemem.v1.episode_service_pb2 import AppendEpisodesRequest, SubscribeEpisodesRequest, SubscribeEpisodesResponse
from hivemem.v1.episode_service_pb2_grpc import EpisodeServiceStub
from hivemem.v1.types_pb2 import Filter, StartPoint
from hivemem_server.settings import Settings

from . import reading
from .append import AGENT, OURS_STREAM, SESSION, prepared, requests
from .bare_echo import echoing
from .bare_fanout import FOLLOW, keep, send
from .measuring import MEBIBYTES, MILLISECONDS, PER_SECOND, Goal, Result, median, milliseconds, percentile, taking_turns
from .processes import processor_seconds, steady_resident
from .reading import LOG_EPISODES, delivering, positions, raw_rate
from .stand import Serving, Stand, channel
from .talking import Talker
from .texts import Texts

if TYPE_CHECKING:
    from hivemem.v1.episode_service_pb2_grpc import EpisodeServiceAsyncStub

SUBSCRIBE = "/hivemem.v1.EpisodeService/SubscribeEpisodes"
FOLLOWER_CONNECTIONS = 20
FANOUT_BATCH, FANOUT_ROUNDS = 10, 5
TAG = "everyone"
HEARTBEAT, STALL = Duration(seconds=60), Duration(seconds=600)

STALLED, STALLED_CONNECTIONS, WARM_READERS, WARM_EPISODES = 200, 10, 4, 4_000
# A window that does not grow: what is not read stays with the server.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1_024)]
BARE_SERVER_MEBIBYTES, BARE_CLIENT_MEBIBYTES = 48.0, 200.0

HINTS = "listen" in Settings.model_fields  # whether replicas tell each other; without, they only poll
REPLICA_WARM_CALLS, ECHO_CALLS = 20, 200
LONGEST_PAUSE = 0.2  # between appends, at random: else they would keep step with a poll


async def fanout(stand: Stand) -> Result:
    """Deliveries in a second to subscribers that want everything, against a bare server that sends the same bytes."""
    return await _fanout(stand, "fanout", Goal(least=0.8), lambda _: Filter())


async def fanout_filtered(stand: Stand) -> Result:
    """The same with a filter of its own for each, all of which everything matches."""
    return await _fanout(stand, "fanout_filtered", Goal(least=0.5), _filter)


def _filter(number: int) -> Filter:
    own = f"only-{number}"
    match number % 4:
        case 0:
            return Filter(session_ids=[SESSION, own])
        case 1:
            return Filter(agent_ids=[AGENT, own])
        case 2:
            return Filter(any_tags=[TAG, own])
    return Filter(exclude_agent_ids=[own])


async def _fanout(stand: Stand, measure: str, goal: Goal, filter_of: Callable[[int], Filter]) -> Result:
    followers, appends = stand.count(200, 1_000), stand.count(50, 200)
    async with (
        stand.database() as url, stand.serving(url) as server, channel(server.address) as to_ours,
        stand.bare("bare_fanout") as bare, channel(bare.address) as to_bare,
    ):  # fmt: skip
        episodes, texts = await prepared(to_ours), Texts(OURS_STREAM)
        asked = [_follow_request(filter_of(number)).SerializeToString() for number in range(followers)]
        async with (
            _following(stand, server, SUBSCRIBE, asked) as ours,
            _following(stand, bare, FOLLOW, [b""] * followers) as theirs,
        ):
            sent: list[bytes] = []

            async def our_rate() -> float:
                given = [_append_request(texts) for _ in range(appends)]
                rate = await ours.rate(lambda: _append_all(episodes, given), appends * FANOUT_BATCH)
                sent[:] = await _last_sent(to_ours, appends)
                return rate

            async def bare_rate() -> float:
                await keep(to_bare, sent)
                return await theirs.rate(lambda: send(to_bare), appends * FANOUT_BATCH)

            rates = await taking_turns(FANOUT_ROUNDS, our_rate, bare_rate, tick=stand.tick)
    detail = {"subscribers": followers, "episodes": appends * FANOUT_BATCH, "batch": FANOUT_BATCH}
    return Result(
        measure=measure,
        ours=median(rates[0]),
        bare=median(rates[1]),
        unit=PER_SECOND,
        goal=goal,
        detail=detail | {"ours": rates[0], "bare": rates[1]} | ours.costs("ours") | theirs.costs("bare"),
    )


def _follow_request(wanted: Filter) -> SubscribeEpisodesRequest:
    return SubscribeEpisodesRequest(
        start=StartPoint(now=StartPoint.Now()),
        filter=wanted,
        max_batch_size=FANOUT_BATCH,
        heartbeat_interval=HEARTBEAT,
        stall_timeout=STALL,
    )


def _append_request(texts: Texts) -> AppendEpisodesRequest:
    given = texts.messages(FANOUT_BATCH)
    for episode in given:
        episode.tags.append(TAG)
    return AppendEpisodesRequest(session_id=SESSION, agent_id=AGENT, episodes=given)


async def _append_all(episodes: EpisodeServiceAsyncStub, given: Sequence[AppendEpisodesRequest]) -> None:
    for request in given:
        await episodes.AppendEpisodes(request)


async def _last_sent(opened: grpc.aio.Channel, count: int) -> list[bytes]:
    """The last batches as a subscriber receives them, byte for byte."""
    begun = EpisodeServiceStub(opened).SubscribeEpisodes(_follow_request(Filter()))
    head = (await anext(aiter(begun))).started.head_position
    begun.cancel()
    request = _follow_request(Filter())
    request.start.position = head - count * FANOUT_BATCH
    call: Any = opened.unary_stream(SUBSCRIBE, request_serializer=SubscribeEpisodesRequest.SerializeToString)(request)
    found: list[bytes] = []
    async for message in call:
        if SubscribeEpisodesResponse.FromString(message).HasField("batch"):
            found.append(message)
        if len(found) == count:
            break
    call.cancel()
    return found


class _Followed:
    """A server, and followers that count what comes from it."""

    def __init__(self, server: Serving, talker: Talker, followers: int) -> None:
        self._server = server
        self._talker = talker
        self._followers = followers
        self._microseconds: list[float] = []
        self._follower_shares: list[float] = []

    async def rate(self, write: Callable[[], Awaitable[None]], episodes: int) -> float:
        """Deliveries in a second, from the beginning of the writing until all have all."""
        begin, used = time.perf_counter(), processor_seconds(self._server.pid)
        counting = asyncio.create_task(self._talker.ask("expect", records=episodes))
        await write()
        seen = await counting
        taken = time.perf_counter() - begin
        used = processor_seconds(self._server.pid) - used
        self._microseconds.append(used / seen["messages"] * 1e6)
        self._follower_shares.append(seen["processor"] / taken)
        return self._followers * episodes / taken

    def costs(self, name: str) -> dict[str, float]:
        """Processor time of the server for a message, and how much of one processor the followers took."""
        return {
            f"{name}_us_a_message": median(self._microseconds),
            f"{name}_follower_processors": median(self._follower_shares),
        }


@contextlib.asynccontextmanager
async def _following(stand: Stand, server: Serving, path: str, asked: Sequence[bytes]) -> AsyncIterator[_Followed]:
    async with stand.talker("followers") as talker:
        calls = [request.hex() for request in asked]
        await talker.ask("open", address=server.address, path=path, connections=FOLLOWER_CONNECTIONS, requests=calls)
        yield _Followed(server, talker, len(asked))


async def stalled_memory(stand: Stand) -> Result:
    """MiB that a server has more with subscribers that do not read a long log than before them."""
    url = await stand.filled(LOG_EPISODES)
    async with stand.serving(url) as server, contextlib.AsyncExitStack() as stack:
        async with channel(server.address) as warming:
            episodes = EpisodeServiceStub(warming)
            await asyncio.gather(*(raw_rate(episodes, WARM_EPISODES) for _ in range(WARM_READERS)))
        without = await steady_resident(server.pid)
        channels = [
            await stack.enter_async_context(channel(server.address, SMALL_WINDOW)) for _ in range(STALLED_CONNECTIONS)
        ]
        calls = [await _stalled(channels[number % STALLED_CONNECTIONS]) for number in range(STALLED)]
        having = await steady_resident(server.pid)
        assert not any(call.done() for call in calls), "a stalled stream has ended"
    return _memory("stalled_memory", having - without, BARE_SERVER_MEBIBYTES, having)


async def _stalled(opened: grpc.aio.Channel) -> Any:
    request = SubscribeEpisodesRequest(heartbeat_interval=HEARTBEAT, stall_timeout=STALL)
    call: Any = EpisodeServiceStub(opened).SubscribeEpisodes(request)
    assert (await call.read()).HasField("started")
    return call


async def stalled_client_memory(stand: Stand) -> Result:
    """MiB that a client has more with subscriptions that nobody iterates over than before them."""
    url = await stand.filled(LOG_EPISODES)
    async with stand.server(url) as address, stand.talker("stalled_clients", address) as client:
        await client.ask("read", episodes=WARM_EPISODES)
        without = await steady_resident(client.pid)
        await client.ask("stall", count=STALLED)
        having = await steady_resident(client.pid)
    return _memory("stalled_client_memory", having - without, BARE_CLIENT_MEBIBYTES, having)


def _memory(measure: str, ours: float, bare: float, whole: float) -> Result:
    return Result(
        measure=measure,
        ours=ours,
        bare=bare,
        unit=MEBIBYTES,
        goal=Goal(most=1.0),
        detail={"subscribers": STALLED, "log": LOG_EPISODES, "whole_process": whole},
    )


async def replica_delivery(stand: Stand) -> Result:
    """Median time from the call of an append until a subscriber on another replica has it, against what `live` has."""
    calls = stand.count(200, 1_000)
    variants: dict[str, tuple[str, ...]] = {"hints": (), "poll": ("--no-listen",)} if HINTS else {"poll": ()}
    seen: dict[str, tuple[list[float], list[float]]] = {}
    for name, options in variants.items():
        seen[name] = await _between_replicas(stand, calls, options)
        stand.tick()
    async with stand.echo() as echo_channel:
        echo = await milliseconds(echoing(echo_channel), requests(Texts(OURS_STREAM), ECHO_CALLS))
    delivered, acknowledged = next(iter(seen.values()))
    return Result(
        measure="replica_delivery",
        ours=median(delivered),
        bare=median(acknowledged) + echo,
        unit=MILLISECONDS,
        goal=Goal(),
        detail={"calls": calls, "echo": echo} | {name: _percentiles(*times) for name, times in seen.items()},
    )


async def _between_replicas(stand: Stand, calls: int, options: Sequence[str]) -> tuple[list[float], list[float]]:
    """Milliseconds until each delivery, and until each acknowledgement."""
    pauses = random.Random(calls)
    async with (
        stand.database() as url, stand.server(url, *options) as one, stand.server(url, *options) as other,
        channel(one) as writing, channel(other) as following,
    ):  # fmt: skip
        append, texts = await prepared(writing), Texts(OURS_STREAM)
        async with aclosing(positions(EpisodeServiceStub(following))) as arrivals:
            await anext(arrivals)
            await delivering(append, arrivals, requests(texts, REPLICA_WARM_CALLS))
            return await delivering(append, arrivals, requests(texts, calls), lambda: pauses.uniform(0, LONGEST_PAUSE))


def _percentiles(delivered: Sequence[float], acknowledged: Sequence[float]) -> dict[str, float]:
    return {
        "p50": percentile(delivered, 50),
        "p99": percentile(delivered, 99),
        "acknowledged_p50": percentile(acknowledged, 50),
    }


MEASURES = reading.MEASURES | {
    measure.__name__: measure
    for measure in (fanout, fanout_filtered, stalled_memory, stalled_client_memory, replica_delivery)
}
