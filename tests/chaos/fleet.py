"""Several servers on one database, clients that write to all of them, and what was acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import hivemem
from fix_server import ServerProcess, StartServer
from fix_stubs import Refusal, Stubs, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import namespace_service_pb2 as namespaces
from hivemem.v1 import types_pb2 as types

HOT = "hot"
COLD = [f"cold-{number}" for number in range(6)]
LAST = "the last one"
COUNTED = "counted"  # the session whose stream is written by compare-and-set only
CALL_SECONDS = 1.5
SILENCE_SECONDS = 3.0
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
SENT_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

Place = tuple[int, int]  # position and revision


@dataclass(slots=True, eq=False)
class Replica:
    """A server process that comes back at the same address."""

    database_url: str
    start: StartServer
    process: ServerProcess | None = None

    async def up(self) -> ServerProcess:
        port = ["--port", self.process.address.rpartition(":")[2]] if self.process else []
        self.process = await self.start("--database-url", self.database_url, "--embedder", "none", *port)
        return self.process

    @property
    def running(self) -> ServerProcess:
        assert self.process is not None
        return self.process


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One answer: which append it was for, who gave it, when."""

    time: float
    namespace: str
    replica: int
    places: dict[str, Place]
    deduplicated: bool


@dataclass(slots=True, eq=False)
class Ledger:
    """All that was acknowledged, and the winners of each compare-and-set."""

    answers: list[Acknowledgement] = field(default_factory=list)
    requests: dict[str, pb.AppendEpisodesRequest] = field(default_factory=dict)
    winners: defaultdict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def add(self, request: pb.AppendEpisodesRequest, replica: int, answer: pb.AppendEpisodesResponse) -> None:
        places = {each.episode_id: (each.position, each.revision) for each in answer.episodes}
        self.requests.update(dict.fromkeys(places, request))
        await self.note(Acknowledgement(time.monotonic(), request.namespace, replica, places, answer.deduplicated))

    async def note(self, answer: Acknowledgement) -> None:
        self.answers.append(answer)
        async with self.changed:
            self.changed.notify_all()

    async def more(self, count: int, replicas: Sequence[int], namespace: str = "") -> None:
        """Waits for so many more answers of these replicas."""
        begin = len(self.answers)

        def enough() -> bool:
            fresh = self.answers[begin:]
            return sum(a.replica in replicas and namespace in ("", a.namespace) for a in fresh) >= count

        async with self.changed:
            await self.changed.wait_for(enough)

    def longest_pause(self, since: float, replicas: Sequence[int], namespace: str) -> float:
        """Seconds between two answers of these replicas, at most."""
        times = [since] + [
            answer.time
            for answer in self.answers
            if answer.time > since and answer.replica in replicas and answer.namespace == namespace
        ]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


class Fleet:
    """The servers, and channels to them."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        self.stubs: list[Stubs] = []
        self.ledger = Ledger()
        self.calm = asyncio.Event()  # writers end

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Fleet]:
        """Starts the servers, and makes namespaces and sessions."""
        await asyncio.gather(*(replica.up() for replica in self.replicas))
        async with contextlib.AsyncExitStack() as stack:
            for replica in self.replicas:
                channel = grpc.aio.insecure_channel(replica.running.address, options=CHANNEL)
                self.stubs.append(Stubs(await stack.enter_async_context(channel)))
            for namespace in (HOT, *COLD):
                await self.stubs[0].namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace=namespace))
                await self.stubs[0].session(namespace=namespace)
                await self.stubs[0].session(COUNTED, namespace=namespace)
            yield self

    async def acknowledged(
        self, request: pb.AppendEpisodesRequest, first: int, *, elsewhere: bool = True
    ) -> pb.AppendEpisodesResponse | Refusal:
        """Sends one append until a server answers it: to the next one whenever one does not, or always to the same."""
        for number in range(first, first + 1_000):
            replica = number % len(self.stubs) if elsewhere else first
            call = self.stubs[replica].episodes.AppendEpisodes(request, timeout=CALL_SECONDS)
            try:
                answer: pb.AppendEpisodesResponse = await call
            except grpc.aio.AioRpcError as error:
                if error.code() not in SENT_AGAIN:
                    return await refusal(call)
                await asyncio.sleep(random.uniform(0.01, 0.1))
            else:
                await self.ledger.add(request, replica, answer)
                return answer
        raise AssertionError(f"no server answered: {request}")


def append(
    namespace: str, agent_id: str, count: int = 1, *, session_id: str = "s", **fields: Any
) -> pb.AppendEpisodesRequest:
    """A request to append so many new episodes."""
    new = [types.NewEpisode(episode_id=str(uuid.uuid4()), summary=f"{agent_id} was here") for _ in range(count)]
    return pb.AppendEpisodesRequest(
        namespace=namespace, session_id=session_id, agent_id=agent_id, episodes=new, **fields
    )


# Clients


async def writer(fleet: Fleet, chance: random.Random, agent_id: str, places: Sequence[str]) -> None:
    """Appends until it is calm; now and then the same to two servers at the same moment, or one after the other."""
    while not fleet.calm.is_set():
        request = append(chance.choice(places), agent_id, chance.choice((1, 1, 1, 3)))
        replica = chance.randrange(len(fleet.stubs))
        twice = chance.random() < 0.3
        sent = [fleet.acknowledged(request, replica + more) for more in range(1 + twice)]
        for answer in await asyncio.gather(*sent):
            assert isinstance(answer, pb.AppendEpisodesResponse), answer
        await asyncio.sleep(chance.uniform(0, 0.02))


async def pinned_writer(fleet: Fleet, replica: int, agent_id: str, count: int) -> None:
    """Appends without a pause to one server and no other."""
    while not fleet.calm.is_set():
        answer = await fleet.acknowledged(append(HOT, agent_id, count), replica, elsewhere=False)
        assert isinstance(answer, pb.AppendEpisodesResponse), answer


async def counter(fleet: Fleet, chance: random.Random, namespace: str) -> None:
    """Adds one to what it believes to be the revision, in competition with others; learns from what it is refused."""
    revision = 0
    while not fleet.calm.is_set():
        expected = (
            pb.Expectation(revision=revision) if revision else pb.Expectation(no_stream=pb.Expectation.NoStream())
        )
        request = append(namespace, "counter", session_id=COUNTED, expectation=expected)
        answer = await fleet.acknowledged(request, chance.randrange(len(fleet.stubs)))
        if isinstance(answer, Refusal):
            assert answer.reason == "REVISION_CONFLICT", answer
            revision = int(answer.metadata["actual"])
        else:
            fleet.ledger.winners[namespace, revision].append(request.episodes[0].episode_id)
            revision += 1
        await asyncio.sleep(chance.uniform(0, 0.02))


async def piping_writer(fleet: Fleet, replica: int) -> None:
    """The client's pipelined writer, on one server through all that happens to it."""
    address = fleet.replicas[replica].running.address
    pending = []
    async with hivemem.Client(address, namespace=HOT, timeout=120.0) as memory:
        agent = (await memory.session("s")).agent(f"piping-{replica}")
        async with agent.writer(max_pending=8) as pipe:
            while not fleet.calm.is_set():
                pending.append(await pipe.append(summary="in a pipe"))
                await asyncio.sleep(0.02)
        for each in [await one for one in pending]:
            places = {each.episode_id: (each.position, each.revision)}
            answer = Acknowledgement(time.monotonic(), HOT, replica, places, each.deduplicated)
            await fleet.ledger.note(answer)


async def reader(fleet: Fleet, first: int) -> list[tuple[int, str]]:
    """What subscriptions to the hot namespace deliver; at each break it goes on from its cursor, elsewhere."""
    seen: list[tuple[int, str]] = []
    start = types.StartPoint(beginning=types.StartPoint.Beginning())
    for number in range(first, first + 1_000):
        request = pb.SubscribeEpisodesRequest(namespace=HOT, start=start)
        request.heartbeat_interval.FromSeconds(1)
        call: Any = fleet.stubs[number % len(fleet.stubs)].episodes.SubscribeEpisodes(request)
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            while (message := await asyncio.wait_for(call.read(), SILENCE_SECONDS)) is not grpc.aio.EOF:
                event = getattr(message, message.WhichOneof("event"))
                start = types.StartPoint(cursor=event.cursor)
                seen += [(record.position, record.episode.episode_id) for record in message.batch.records]
                if message.batch.records and message.batch.records[-1].episode.summary == LAST:
                    return seen
        call.cancel()
        await asyncio.sleep(0.05)
    raise AssertionError(f"the reader ended with {len(seen)} episodes")


# What must be true at the end


async def listed(stubs: Stubs, namespace: str) -> list[types.Episode]:
    """All episodes of a namespace."""
    found: list[types.Episode] = []
    request = pb.ListEpisodesRequest(namespace=namespace, page_size=1_000)
    while True:
        page = await stubs.episodes.ListEpisodes(request)
        found += page.episodes
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def check(fleet: Fleet, namespace: str) -> list[tuple[int, str]]:
    """Raises unless the log of a namespace is what was acknowledged. Returns it."""
    logs = [await listed(stubs, namespace) for stubs in fleet.stubs]
    log = logs[0]
    assert all(other == log for other in logs), "all servers show the same log"
    assert [episode.position for episode in log] == list(range(1, len(log) + 1)), "positions are dense"
    _check_revisions(log)
    stored = {episode.episode_id: (episode.position, episode.revision) for episode in log}
    assert len(stored) == len(log), "none is there twice"
    answers = [answer for answer in fleet.ledger.answers if answer.namespace == namespace]
    for answer in answers:
        for episode_id, place in answer.places.items():
            assert stored.get(episode_id) == place, f"{episode_id} was acknowledged at {place}"
    assert stored.keys() == {episode_id for answer in answers for episode_id in answer.places}
    first = Counter(episode_id for answer in answers if not answer.deduplicated for episode_id in answer.places)
    assert set(first.values()) <= {1}, "of all answers for an id, at most one is not deduplicated"
    _check_counted(fleet, namespace, log)
    return [(episode.position, episode.episode_id) for episode in log]


def _check_revisions(log: Iterable[types.Episode]) -> None:
    streams: Counter[tuple[str, str]] = Counter()
    for episode in log:
        streams[episode.session_id, episode.agent_id] += 1
        assert episode.revision == streams[episode.session_id, episode.agent_id], "revisions are dense"


def _check_counted(fleet: Fleet, namespace: str, log: Iterable[types.Episode]) -> None:
    counted = [episode.episode_id for episode in log if episode.session_id == COUNTED]
    winners = [fleet.ledger.winners[namespace, revision] for revision in range(len(counted))]
    assert winners == [[episode_id] for episode_id in counted], "each compare-and-set has one winner"
    assert sum(won[0] == namespace for won in fleet.ledger.winners) == len(counted)


async def check_resends(fleet: Fleet, chance: random.Random, count: int) -> None:
    """Raises unless all servers answer for the same id what was answered first."""
    requests = list(fleet.ledger.requests.items())
    places = {episode_id: place for answer in fleet.ledger.answers for episode_id, place in answer.places.items()}
    for episode_id, request in chance.sample(requests, min(count, len(requests))):
        for stubs in fleet.stubs:
            answer = await stubs.episodes.AppendEpisodes(request, timeout=CALL_SECONDS)
            assert answer.deduplicated
            assert places[episode_id] in [(each.position, each.revision) for each in answer.episodes]
