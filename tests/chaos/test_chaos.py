"""Three servers on one database while backends are killed, also during COMMIT, and servers are killed and stopped.

HIVEMEM_CHAOS_SEED repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg
import pytest
from chaos.fleet import (
    COLD,
    HOT,
    LAST,
    Fleet,
    Replica,
    append,
    check,
    check_resends,
    counter,
    pinned_writer,
    piping_writer,
    reader,
    writer,
)
from fix_postgres import superuser
from fix_proxy import Proxy, database_target
from fix_server import StartServer
from psycopg.conninfo import make_conninfo

REPLICAS = 3
GO_ON_SECONDS = 20.0

BACKENDS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'hivemem' AND pid <> pg_backend_pid()
"""
ACTIVE = BACKENDS + "AND state = 'active'"
COMMITTING = BACKENDS + "AND wait_event = 'SyncRep'"


def _seed() -> int:
    seed = int(os.environ.get("HIVEMEM_CHAOS_SEED") or random.SystemRandom().randrange(10**9))
    print(f"HIVEMEM_CHAOS_SEED={seed}")
    return seed


class Havoc:
    """What goes wrong, one thing after the other. Each waits for news from the clients, never for a time."""

    def __init__(
        self, fleet: Fleet, chance: random.Random, database: psycopg.AsyncConnection, *, commits: bool
    ) -> None:
        self._fleet = fleet
        self._chance = chance
        self._database = database
        self._choices: list[Callable[[], Awaitable[str]]] = [
            self._end_any, self._end_active, self._end_active, self._kill, self._stop, self._stop,
        ]  # fmt: skip
        if commits:
            self._choices += [self._end_committing] * 3
        self.done: Counter[str] = Counter()

    async def wreak(self, times: int) -> None:
        """So many things, each kind at least once if there are enough; then it is calm."""
        first = self._chance.sample(self._choices, len(self._choices))
        for act in [*first, *self._chance.choices(self._choices, k=times)][:times]:
            await self._fleet.ledger.more(self._chance.randint(5, 40), range(REPLICAS))
            self.done[await act()] += 1
        self._fleet.calm.set()

    async def _end_any(self) -> str:
        return await self._end("ended a backend", BACKENDS, most=1)

    async def _end_active(self) -> str:
        return await self._end("ended a backend at work", ACTIVE, most=3)

    async def _end_committing(self) -> str:
        """Lets commits wait for a standby that is not there, and ends those that wait: they are durable, unanswered."""
        await self._database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        await self._database.execute("SELECT pg_reload_conf()")
        try:
            async with asyncio.timeout(GO_ON_SECONDS):
                while not await self._pids(COMMITTING):
                    pass
            return await self._end("ended backends during COMMIT", COMMITTING, most=100)
        finally:
            await self._database.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await self._database.execute("SELECT pg_reload_conf()")

    async def _end(self, what: str, which: str, *, most: int) -> str:
        pids = await self._pids(which)
        for pid in self._chance.sample(pids, min(most, len(pids))):
            await self._database.execute("SELECT pg_terminate_backend(%s)", [pid])
        return what if pids else "found no backend to end"

    async def _pids(self, which: str) -> list[int]:
        return [pid for (pid,) in await (await self._database.execute(which)).fetchall()]

    async def _kill(self) -> str:
        replica = self._chance.choice(self._fleet.replicas)
        replica.running.kill()
        await replica.running.ended()
        await replica.up()
        return "killed a server"

    async def _stop(self) -> str:
        """Stops a server, until the others have gone on for a while."""
        number = self._chance.randrange(REPLICAS)
        others = [other for other in range(REPLICAS) if other != number]
        self._fleet.replicas[number].running.pause()
        try:
            async with asyncio.timeout(GO_ON_SECONDS):
                await self._fleet.ledger.more(self._chance.randint(20, 100), others)
        finally:
            self._fleet.replicas[number].running.go_on()
        return "stopped a server for a while"


@contextlib.asynccontextmanager
async def running_fleet(start: StartServer, *database_urls: str) -> AsyncIterator[Fleet]:
    async with Fleet([Replica(url, start) for url in database_urls]).connected() as fleet:
        yield fleet


async def _chaos(start: StartServer, database_url: str, times: int) -> None:
    seed = _seed()
    async with (
        running_fleet(start, *[database_url] * REPLICAS) as fleet,
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as database,
        asyncio.TaskGroup() as group,
    ):
        havoc = Havoc(fleet, random.Random(seed), database, commits=await superuser(database))
        readers = [group.create_task(reader(fleet, number)) for number in range(REPLICAS)]
        async with asyncio.TaskGroup() as writing:
            _start_writers(fleet, writing, seed)
            await havoc.wreak(times)
        last = append(HOT, "last")
        last.episodes[0].summary = LAST
        await fleet.acknowledged(last, 0)
        log = await check(fleet, HOT)
        for task in readers:
            assert await task == log, "delivered = committed, in order"
        for namespace in COLD:
            await check(fleet, namespace)
        await check_resends(fleet, random.Random(seed), 5 * times)
        _report(fleet, havoc, len(log))


def _start_writers(fleet: Fleet, group: asyncio.TaskGroup, seed: int) -> None:
    for number in range(8):
        group.create_task(writer(fleet, random.Random(seed + number), f"hot-{number}", [HOT]))
    for number in range(4):
        group.create_task(writer(fleet, random.Random(seed - number), f"cold-{number}", COLD))
    for number, namespace in itertools.product(range(3), (HOT, COLD[0])):
        group.create_task(counter(fleet, random.Random(seed * number), namespace))
    for number in range(REPLICAS):
        group.create_task(piping_writer(fleet, number))


def _report(fleet: Fleet, havoc: Havoc, hot: int) -> None:
    answers = fleet.ledger.answers
    again = sum(answer.deduplicated for answer in answers)
    print(
        f"{len(answers)} answers, {again} of them deduplicated; {hot} episodes in the hot namespace;", dict(havoc.done)
    )


async def test_nothing_is_lost_or_doubled_and_all_servers_say_the_same(
    start_server: StartServer, database_url: str
) -> None:
    await _chaos(start_server, database_url, 6)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("round_number", range(3))
async def test_nothing_is_lost_or_doubled_by_120_misfortunes(
    start_server: StartServer, database_url: str, round_number: int
) -> None:
    await _chaos(start_server, database_url, 120)


# A server that stops or loses its database holds nobody up


async def _go_on_without_one(
    fleet: Fleet, chance: random.Random, times: int, lose: Callable[[], object], find: Callable[[], object]
) -> list[float]:
    """Loses the first server at a random moment under load, so often; the longest pause of the others each time."""
    others, pauses = range(1, len(fleet.stubs)), []
    async with asyncio.TaskGroup() as writing:
        for number in range(12):
            pinned = pinned_writer(fleet, number % len(fleet.stubs), f"pinned-{number}", (1, 100)[number // 6])
            writing.create_task(pinned)
        for _ in range(times):
            await fleet.ledger.more(chance.randint(5, 30), [0], HOT)
            await fleet.ledger.more(chance.randint(1, 20), others, HOT)
            since = time.monotonic()
            lose()
            try:
                async with asyncio.timeout(GO_ON_SECONDS):
                    await fleet.ledger.more(60, others, HOT)
            finally:
                find()
            pauses.append(fleet.ledger.longest_pause(since, others, HOT))
        fleet.calm.set()
    await check(fleet, HOT)
    return pauses


async def _stopped(start: StartServer, database_url: str, times: int) -> None:
    chance = random.Random(_seed())
    async with running_fleet(start, *[database_url] * REPLICAS) as fleet:
        first = fleet.replicas[0].running
        pauses = await _go_on_without_one(fleet, chance, times, first.pause, first.go_on)
    print(f"longest pause of the others beside a stopped server: {max(pauses):.3f} s, of {times} times")


async def test_the_others_go_on_beside_a_server_that_is_stopped(start_server: StartServer, database_url: str) -> None:
    await _stopped(start_server, database_url, 1)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
async def test_the_others_go_on_beside_a_server_that_is_stopped_100_times(
    start_server: StartServer, database_url: str
) -> None:
    await _stopped(start_server, database_url, 100)


async def _cut_off(start: StartServer, database_url: str, times: int) -> None:
    chance = random.Random(_seed())
    proxy = Proxy(database_target(database_url))
    await proxy.accept()
    host, _, port = proxy.address.rpartition(":")
    try:
        proxied = make_conninfo(database_url, host=host, port=port, sslmode="disable")
        async with running_fleet(start, proxied, database_url, database_url) as fleet:
            pauses = await _go_on_without_one(fleet, chance, times, proxy.swallow, proxy.resume)
    finally:
        await proxy.close()
    print(f"longest pause of the others beside a server that is cut off: {max(pauses):.3f} s, of {times} times")


async def test_the_others_go_on_beside_a_server_that_is_cut_off_from_the_database(
    start_server: StartServer, database_url: str
) -> None:
    await _cut_off(start_server, database_url, 1)


@pytest.mark.soak
@pytest.mark.timeout(1_200)
async def test_the_others_go_on_beside_a_server_that_is_cut_off_from_the_database_50_times(
    start_server: StartServer, database_url: str
) -> None:
    await _cut_off(start_server, database_url, 50)
