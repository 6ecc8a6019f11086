"""Many subscribers: those that stall and those that go away cost neither memory nor anybody's time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from fix_server import ServerProcess, StartServer
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import admin_service_pb2 as admin
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2 as types
from hivemem_server.rpc import registry
from hivemem_server.rpc.pump import Pump

WAIT = 30.0
MIB = 1024 * 1024
# A window that does not grow: what is not read stays with the server.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1_024)]
LARGE = "words " * 5_000  # 30 KB

on_linux = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads a process's memory in Linux's /proc"
)


def resident(server: ServerProcess) -> float:
    """MiB of memory that the process has."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def subscribed(stubs: Stubs, **fields: Any) -> Any:
    return stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(**fields), timeout=10 * WAIT)


async def positions_until(kind: str, call: Any) -> list[int]:
    """Reads up to the first message of a kind; returns the positions that came."""
    came: list[int] = []
    async with asyncio.timeout(WAIT):
        while (message := await call.read()) is not grpc.aio.EOF:
            came += [record.position for record in message.batch.records]
            if message.WhichOneof("event") == kind:
                return came
    raise AssertionError(f"the stream ended before {kind}")


async def subscriptions(stubs: Stubs) -> int:
    return (await stubs.admin.GetStats(admin.GetStatsRequest(), timeout=WAIT)).server.subscription_count


async def until_followed_by(stubs: Stubs, count: int) -> None:
    async with asyncio.timeout(WAIT):
        while await subscriptions(stubs) != count:  # noqa: ASYNC110 - another process, or gRPC, that tells nobody
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def connected(address: str, options: Any = None) -> AsyncIterator[Stubs]:
    """Stubs on a connection of their own."""
    own = [*(options or []), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=own) as channel:
        yield Stubs(channel)


# Subscribers that stall


@on_linux
async def test_200_stalled_subscribers_slow_nobody_and_the_servers_memory_is_bounded(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server("--database-url", database_url, "--embedder", "none")
    async with connected(server.address) as stubs, connected(server.address, SMALL_WINDOW) as slow:
        await stubs.session()
        normal = subscribed(stubs)
        await positions_until("caught_up", normal)
        await _append_large(stubs, normal, 1)
        before = resident(server)
        stalled = [subscribed(slow) for _ in range(200)]
        for call in stalled:
            assert (await call.read()).WhichOneof("event") == "started"
        await until_followed_by(stubs, 201)
        for first in (101, 201):
            await _append_large(stubs, normal, first)
        grown = resident(server) - before
        print(f"{grown:.0f} MiB for 200 stalled subscribers")
        assert grown < 160, "of 9 MB that wait for each of them"
        assert await positions_until("caught_up", stalled[0]) == list(range(1, 301))
        for call in stalled:
            call.cancel()
        normal.cancel()
        await until_followed_by(stubs, 0)


async def _append_large(stubs: Stubs, normal: Any, first: int) -> None:
    """Appends 100 large episodes, which come to a normal subscriber meanwhile."""
    came: list[int] = []
    for _ in range(2):
        await stubs.append(*(new_episode(LARGE) for _ in range(50)))
    while len(came) < 100:
        came += await positions_until("batch", normal)
    assert came == list(range(first, first + 100))


# Subscribers that go away


async def _come_and_go(stubs: Stubs, count: int) -> None:
    """So many streams, which are cancelled at different moments: at once, when they have begun, when they are live."""

    async def one(number: int) -> None:
        call = subscribed(stubs, max_batch_size=7)
        if number % 3:
            await positions_until("started" if number % 3 == 1 else "caught_up", call)
        call.cancel()

    for first in range(0, count, 50):
        await asyncio.gather(*(one(number) for number in range(first, min(first + 50, count))))


async def _flat(start_server: StartServer, database_url: str, warm_up: int, count: int, most: float) -> None:
    server = await start_server("--database-url", database_url, "--embedder", "none")
    async with connected(server.address) as stubs:
        await stubs.session()
        await stubs.append(*(new_episode() for _ in range(20)))
        await _come_and_go(stubs, warm_up)
        await until_followed_by(stubs, 0)
        before = resident(server)
        await _come_and_go(stubs, count)
        await until_followed_by(stubs, 0)
        grown = resident(server) - before
        print(f"{grown:.1f} MiB after {count} cancelled streams")
        assert grown < most
        assert await positions_until("caught_up", subscribed(stubs)) == list(range(1, 21))


@on_linux
async def test_1000_cancelled_streams_leave_nothing_behind(start_server: StartServer, database_url: str) -> None:
    await _flat(start_server, database_url, 500, 1_000, 20)


@on_linux
@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_100000_cancelled_streams_leave_nothing_behind(start_server: StartServer, database_url: str) -> None:
    await _flat(start_server, database_url, 5_000, 100_000, 60)


@pytest.fixture
async def no_task_left(stubs: Stubs) -> Callable[[], Awaitable[None]]:
    """Waits until all tasks have ended that came since: but for the reader of the log, and gRPC's for the next call."""
    before = asyncio.all_tasks()

    def stays(task: asyncio.Task[Any]) -> bool:
        return task.get_name() == "tail default" or "_request_call" in repr(task)

    async def wait() -> None:
        known = before | {asyncio.current_task()}
        async with asyncio.timeout(WAIT):
            await until_followed_by(stubs, 0)
            while not all(map(stays, asyncio.all_tasks() - known)):  # noqa: ASYNC110 - gRPC tells nobody
                await asyncio.sleep(0.01)

    return wait


async def test_cancelled_streams_leave_no_task(stubs: Stubs, no_task_left: Callable[[], Awaitable[None]]) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(20)))
    await _come_and_go(stubs, 200)
    await no_task_left()


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set when a write has waited for its reader for a while."""
    event = asyncio.Event()

    class Watching(Pump):
        def _left(self) -> float:
            left = super()._left()
            if self._writing_since is not None and self._now() - self._writing_since > 0.3:
                event.set()
            return min(left, 0.1)  # looks often

    monkeypatch.setattr(registry, "Pump", Watching)
    return event


async def _blocked_stream(stubs: Stubs, slow: Stubs, blocked: asyncio.Event) -> Any:
    """A stream that has begun and whose server waits for its reader."""
    await stubs.session()
    for _ in range(2):
        await stubs.append(*(new_episode(LARGE) for _ in range(50)))
    call = subscribed(slow, max_batch_size=10)
    assert (await call.read()).WhichOneof("event") == "started"
    async with asyncio.timeout(WAIT):
        await blocked.wait()
    return call


async def test_a_stream_that_is_cancelled_while_a_write_waits_for_it_leaves_nothing_behind(
    stubs: Stubs, server_address: str, blocked: asyncio.Event, no_task_left: Callable[[], Awaitable[None]]
) -> None:
    async with connected(server_address, SMALL_WINDOW) as slow:
        call = await _blocked_stream(stubs, slow, blocked)
        assert await subscriptions(stubs) == 1
        call.cancel()
        await no_task_left()
        assert await positions_until("caught_up", subscribed(slow)) == list(range(1, 101))


async def test_a_connection_that_is_lost_while_a_write_waits_for_it_leaves_nothing_behind(
    stubs: Stubs, server_address: str, blocked: asyncio.Event, no_task_left: Callable[[], Awaitable[None]]
) -> None:
    async with connected(server_address, SMALL_WINDOW) as slow:
        await _blocked_stream(stubs, slow, blocked)
    await no_task_left()


async def test_an_error_after_a_write_that_waited_comes_when_the_reader_has_read_what_was_sent(
    stubs: Stubs,
    server_address: str,
    database_url: str,
    blocked: asyncio.Event,
    no_task_left: Callable[[], Awaitable[None]],
) -> None:
    async with connected(server_address, SMALL_WINDOW) as slow:
        call = await _blocked_stream(stubs, slow, blocked)
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            await connection.execute("UPDATE namespaces SET floor = 100")
            await connection.execute("DELETE FROM log")
        await stubs.append(new_episode())
        came: list[int] = []

        async def to_the_end() -> None:
            while (message := await call.read()) is not grpc.aio.EOF:
                came.extend(record.position for record in message.batch.records)

        refused = await refusal(asyncio.wait_for(to_the_end(), WAIT))
        assert came == list(range(1, len(came) + 1))
        assert (refused.code, refused.reason) == (grpc.StatusCode.OUT_OF_RANGE, "CURSOR_EXPIRED")
        assert refused.metadata == {"position": str(len(came)), "first_position": "101"}
        again = subscribed(slow, start=types.StartPoint(position=100))
        assert await positions_until("caught_up", again) == [101]
    await no_task_left()
