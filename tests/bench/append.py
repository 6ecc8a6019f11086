"""Family `append`: what storing an episode costs above gRPC and PostgreSQL themselves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import grpc
import psycopg
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1.episode_service_pb2_grpc import EpisodeServiceStub
from hivemem.v1.namespace_service_pb2 import CreateNamespaceRequest
from hivemem.v1.namespace_service_pb2_grpc import NamespaceServiceStub
from hivemem.v1.session_service_pb2 import CreateSessionRequest
from hivemem.v1.session_service_pb2_grpc import SessionServiceStub
from hivemem_server.postgres.embedded.account import database_account
from hivemem_server.postgres.embedded.binaries import find_binaries
from hivemem_server.settings import Settings

from .bare_echo import echoing
from .bare_insert import BareLog, Placer, columns, one_row
from .measuring import (
    MILLISECONDS,
    PER_SECOND,
    Goal,
    Result,
    Side,
    median,
    milliseconds,
    milliseconds_blocking,
    per_second,
    taking_turns,
)
from .stand import Stand, channel
from .texts import Texts

if TYPE_CHECKING:
    from hivemem.v1.episode_service_pb2_grpc import EpisodeServiceAsyncStub

SESSION, AGENT = "bench", "agent-1"
OURS_STREAM, BARE_STREAM = 1, 2  # of texts

UNARY_CALLERS, UNARY_CALLS, UNARY_ROUNDS = 64, 2_000, 7
STREAM_BATCH, STREAM_ROUNDS = 50, 7
BARE_BATCHES = (50, 500, 1_000)
LONE_CALLS, LONE_ROUNDS = 150, 7
BESIDE_MARGIN = 1_000  # commits at the beginning and at the end, which are compared
GROWTH_CALLS, GROWTH_ROUNDS, GROWTH_FROM = 100, 5, 10_000
FLEET_CALLERS, FLEET_CHANNELS, FLEET_EPISODES, FLEET_CALLS, FLEET_ROUNDS = 100, 4, 10, 400, 3
FLEET_BARE_BATCH = 500


async def append_unary(stand: Stand) -> Result:
    """Calls in a second of 64 callers, each an agent, against a bare echo of the same messages."""
    agents = [f"agent-{number}" for number in range(UNARY_CALLERS)]
    async with stand.database() as url, stand.server(url) as address, stand.echo() as echo, channel(address) as ours:
        append, bare, texts = await prepared(ours), echoing(echo), Texts(OURS_STREAM)

        async def our_rate() -> float:
            return await per_second(append.AppendEpisodes, requests(texts, UNARY_CALLS, agents), UNARY_CALLERS)

        async def bare_rate() -> float:
            return await per_second(bare, requests(texts, UNARY_CALLS, agents), UNARY_CALLERS)

        ours_, bares = await taking_turns(UNARY_ROUNDS, our_rate, bare_rate, tick=stand.tick)
    return Result(
        measure="append_unary",
        ours=median(ours_),
        bare=median(bares),
        unit=PER_SECOND,
        goal=Goal(least=0.5),
        detail={"callers": UNARY_CALLERS, "calls": UNARY_CALLS, "ours": ours_, "bare": bares},
    )


async def append_stream(stand: Stand) -> Result:
    """Episodes in a second over one stream in batches of 50, against the best batch of bare inserts."""
    count = stand.count(3_000, 30_000)
    async with (
        stand.database() as url, stand.server(url) as address, channel(address) as ours,
        contextlib.AsyncExitStack() as stack,
    ):  # fmt: skip
        append, texts = await prepared(ours), Texts(OURS_STREAM)
        # Each in a database of its own, so that none has to keep larger indexes than ours.
        bares = [(await stack.enter_async_context(_bare(stand))).rate(count, batch) for batch in BARE_BATCHES]

        async def our_rate() -> float:
            return count / await _stream_seconds(append, [_part(texts, number) for number in range(1, _parts(count))])

        ours_, *bares_ = await taking_turns(STREAM_ROUNDS, our_rate, *bares, tick=stand.tick)
    by_batch = dict(zip(map(str, BARE_BATCHES), map(median, bares_), strict=True))
    return Result(
        measure="append_stream",
        ours=median(ours_),
        bare=max(by_batch.values()),
        unit=PER_SECOND,
        goal=Goal(least=0.85),
        detail={"episodes": count, "batch": STREAM_BATCH, "ours": ours_, "bare_by_batch": by_batch},
    )


async def append_lone(stand: Stand) -> Result:
    """Median time of one caller's append, against a bare echo and a bare insert, one after the other."""
    async with (
        stand.database() as url, stand.server(url) as address, stand.echo() as echo_channel, channel(address) as ours,
        _bare(stand) as bare,
    ):  # fmt: skip
        append, echo, texts = await prepared(ours), echoing(echo_channel), Texts(OURS_STREAM)

        async def our_time() -> float:
            return await milliseconds(append.AppendEpisodes, requests(texts, LONE_CALLS))

        async def echo_time() -> float:
            return await milliseconds(echo, requests(texts, LONE_CALLS))

        taken = await taking_turns(LONE_ROUNDS, our_time, echo_time, bare.time(LONE_CALLS), tick=stand.tick)
    ours_, echoes, inserts = map(median, taken)
    return Result(
        measure="append_lone",
        ours=ours_,
        bare=echoes + inserts,
        unit=MILLISECONDS,
        goal=Goal(most=1.7),
        detail={"calls": LONE_CALLS * LONE_ROUNDS, "ours": taken[0], "echo": echoes, "insert": inserts},
    )


async def growth_append(stand: Stand) -> Result:
    """Median time of one caller's append to a long log, against the same on a short one."""
    long = stand.count(100_000, 1_000_000)
    async with _filled_side(stand, long) as on_long, _filled_side(stand, GROWTH_FROM) as on_short:
        taken = await taking_turns(GROWTH_ROUNDS, on_long, on_short, tick=stand.tick)
    return Result(
        measure="growth_append",
        ours=median(taken[0]),
        bare=median(taken[1]),
        unit=MILLISECONDS,
        goal=Goal(most=1.5),
        detail={"calls": GROWTH_CALLS * GROWTH_ROUNDS, "episodes": long, "bare_episodes": GROWTH_FROM},
    )


@contextlib.asynccontextmanager
async def _filled_side(stand: Stand, episodes: int) -> AsyncIterator[Side]:
    url = await stand.filled(episodes)
    async with stand.server(url) as address, channel(address) as opened:
        append, texts = await prepared(opened), Texts(OURS_STREAM)

        async def time_taken() -> float:
            return await milliseconds(append.AppendEpisodes, requests(texts, GROWTH_CALLS))

        yield time_taken


async def append_beside_snapshot(stand: Stand) -> Result:
    """Median time of one caller's last appends beside a reader that keeps its snapshot open, against its first ones."""
    return await _beside(stand, "append_beside_snapshot", _open_snapshot)


async def append_beside_dump(stand: Stand) -> Result:
    """The same beside a pg_dump that reads all and cannot get rid of it."""
    return await _beside(stand, "append_beside_dump", _stalled_dump)


async def _beside(
    stand: Stand, measure: str, reader: Callable[[str], contextlib.AbstractAsyncContextManager[None]]
) -> Result:
    """In the detail, the same commits with nobody beside them: what growth alone costs."""
    commits = stand.count(4_000, 20_000)
    async with stand.database() as url, stand.server(url) as address, channel(address) as ours:
        append, texts = await prepared(ours), Texts(OURS_STREAM)
        await milliseconds(append.AppendEpisodes, requests(texts, BESIDE_MARGIN))
        async with reader(url):
            first, last = await _first_and_last(stand, append, texts, commits)
    async with stand.database() as url, stand.server(url) as address, channel(address) as ours:
        append, texts = await prepared(ours), Texts(OURS_STREAM)
        await milliseconds(append.AppendEpisodes, requests(texts, BESIDE_MARGIN))
        alone = await _first_and_last(stand, append, texts, commits)
    return Result(
        measure=measure,
        ours=last,
        bare=first,
        unit=MILLISECONDS,
        goal=Goal(most=1.2),
        detail={"commits": commits, "alone": {"ours": alone[1], "bare": alone[0], "ratio": alone[1] / alone[0]}},
    )


async def _first_and_last(
    stand: Stand, append: EpisodeServiceAsyncStub, texts: Texts, commits: int
) -> tuple[float, float]:
    """Median times of the first and of the last of so many commits, one after the other."""
    medians = []
    for _ in range(commits // BESIDE_MARGIN):
        medians.append(await milliseconds(append.AppendEpisodes, requests(texts, BESIDE_MARGIN)))
        stand.tick()
    return medians[0], medians[-1]


@contextlib.asynccontextmanager
async def _open_snapshot(url: str) -> AsyncIterator[None]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        before = await (await connection.execute("SELECT count(*) FROM log")).fetchone()
        yield
        assert await (await connection.execute("SELECT count(*) FROM log")).fetchone() == before, "the snapshot is over"


@contextlib.asynccontextmanager
async def _stalled_dump(url: str) -> AsyncIterator[None]:
    """A pg_dump whose output nobody takes, so that it goes on for as long as it is needed."""
    program = find_binaries(database_account()).program("pg_dump")
    process = await asyncio.create_subprocess_exec(program, "--dbname", url, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readuntil(b"COPY ")  # its snapshot is taken, and it is at the rows
        yield
        assert process.returncode is None, "it was done before the appends were"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def append_hot(stand: Stand) -> Result:
    """Episodes in a second of 100 callers, 10 a call, all in one namespace, against bare inserts of 500 a commit."""
    return await _fleet(stand, "append_hot", ["default"])


async def append_spread(stand: Stand) -> Result:
    """The same with each caller in a namespace of its own."""
    return await _fleet(stand, "append_spread", [f"team-{number}" for number in range(FLEET_CALLERS)])


async def _fleet(stand: Stand, measure: str, names: Sequence[str]) -> Result:
    """With one worker; with two as well, in the detail, if the server can have them."""
    seen: dict[int, tuple[float, float]] = {}
    async with _bare(stand) as bare:
        for workers in (1, 2) if "workers" in Settings.model_fields else (1,):
            async with _fleet_side(stand, names, workers) as our_rate:
                sides = (our_rate, bare.rate(FLEET_CALLS * FLEET_EPISODES, FLEET_BARE_BATCH))
                ours, bares = map(median, await taking_turns(FLEET_ROUNDS, *sides, tick=stand.tick))
                seen[workers] = ours, bares
    detail = {
        "callers": FLEET_CALLERS,
        "namespaces": len(names),
        "episodes_a_call": FLEET_EPISODES,
        "bare_batch": FLEET_BARE_BATCH,
        "by_workers": {str(workers): ours for workers, (ours, _) in seen.items()},
    }
    return Result(measure=measure, ours=seen[1][0], bare=seen[1][1], unit=PER_SECOND, goal=Goal(), detail=detail)


@contextlib.asynccontextmanager
async def _fleet_side(stand: Stand, names: Sequence[str], workers: int) -> AsyncIterator[Side]:
    options = ("--workers", str(workers)) if workers > 1 else ()
    async with stand.database() as url, stand.server(url, *options) as address, contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(channel(address)) for _ in range(FLEET_CHANNELS)]
        stubs = itertools.cycle([await prepared(opened, names) for opened in channels])
        texts = Texts(OURS_STREAM)

        async def rate() -> float:
            given = [_fleet_request(texts, names, number) for number in range(FLEET_CALLS)]
            calls = await per_second(lambda request: next(stubs).AppendEpisodes(request), given, FLEET_CALLERS)
            return calls * FLEET_EPISODES

        yield rate


def _fleet_request(texts: Texts, names: Sequence[str], number: int) -> pb.AppendEpisodesRequest:
    return pb.AppendEpisodesRequest(
        namespace=names[number % len(names)],
        session_id=SESSION,
        agent_id=f"agent-{number % FLEET_CALLERS}",
        episodes=texts.messages(FLEET_EPISODES),
    )


async def prepared(opened: grpc.aio.Channel, namespaces: Sequence[str] = ("default",)) -> EpisodeServiceAsyncStub:
    """The service to append to, with a session to do it in."""
    for name in namespaces:
        if name != "default":
            await NamespaceServiceStub(opened).CreateNamespace(CreateNamespaceRequest(namespace=name))
        await SessionServiceStub(opened).CreateSession(CreateSessionRequest(namespace=name, session_id=SESSION))
    return EpisodeServiceStub(opened)


def requests(texts: Texts, count: int, agents: Sequence[str] = (AGENT,)) -> list[pb.AppendEpisodesRequest]:
    """Appends of one episode each, made before the clock starts."""
    return [
        pb.AppendEpisodesRequest(session_id=SESSION, agent_id=agent, episodes=[texts.message()])
        for agent, _ in zip(itertools.cycle(agents), range(count), strict=False)
    ]


def _part(texts: Texts, sequence: int) -> pb.AppendEpisodeStreamRequest:
    append = pb.AppendEpisodeStreamRequest.Append(sequence=sequence, episodes=texts.messages(STREAM_BATCH))
    return pb.AppendEpisodeStreamRequest(append=append)


def _parts(count: int) -> int:
    return count // STREAM_BATCH + 1


async def _stream_seconds(episodes: EpisodeServiceAsyncStub, parts: Sequence[pb.AppendEpisodeStreamRequest]) -> float:
    """From opening the stream until the last append is acknowledged; the server's flow control sets the pace."""
    opening = pb.AppendEpisodeStreamRequest.Open(session_id=SESSION, agent_id=AGENT)

    async def sent() -> AsyncIterator[pb.AppendEpisodeStreamRequest]:
        yield pb.AppendEpisodeStreamRequest(open=opening)
        for part in parts:
            yield part

    begin, answered = time.perf_counter(), 0
    async for answer in episodes.AppendEpisodeStream(sent()):
        assert answer.HasField("appended"), answer
        answered += 1
    assert answered == len(parts)
    return time.perf_counter() - begin


class _Bare:
    """Bare inserts into a database of their own, as sides of a comparison. Rows are made before the clock starts."""

    def __init__(self, log: BareLog) -> None:
        self._log = log
        self._texts = Texts(BARE_STREAM)
        self._placer = Placer()

    def rate(self, count: int, batch: int) -> Side:
        """Episodes in a second, so many a commit."""

        async def episodes_per_second() -> float:
            placed = self._placer.one_stream(self._texts.episodes(count))
            commits = [columns(placed[start : start + batch]) for start in range(0, count, batch)]
            begin = time.perf_counter()
            for parameters in commits:
                self._log.insert_many(parameters)
            return count / (time.perf_counter() - begin)

        return episodes_per_second

    def time(self, count: int) -> Side:
        """Median time of a commit of one episode."""

        async def time_taken() -> float:
            placed = self._placer.one_stream(self._texts.episodes(count))
            return milliseconds_blocking(self._log.insert_one, list(map(one_row, placed)))

        return time_taken


@contextlib.asynccontextmanager
async def _bare(stand: Stand) -> AsyncIterator[_Bare]:
    async with stand.database() as url:
        with BareLog(url) as log:
            log.prepare()
            bare = _Bare(log)
            await bare.rate(2_000, 500)()
            await asyncio.to_thread(log.settle)
            yield bare


MEASURES = {
    measure.__name__: measure
    for measure in (
        append_unary,
        append_stream,
        append_lone,
        growth_append,
        append_beside_snapshot,
        append_beside_dump,
        append_hot,
        append_spread,
    )
}
