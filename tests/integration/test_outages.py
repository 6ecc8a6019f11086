"""The database goes away, turns read-only, is full, crowded or locked: what callers see, what the log says, and the way
back, which nobody has to help along."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import hivemem
import psycopg
import pytest
from fix_cluster import FAST_STOP, IMMEDIATE_STOP, KILL, WAIT, Cluster
from fix_proxy import Proxy
from fix_server import ServerProcess, StartServer, address, settings
from fix_stubs import Refusal, Stubs, new_episode, refusal
from hivemem.v1 import types_pb2 as types
from hivemem_server.bootstrap import running_server
from hivemem_server.domain.errors import DatabaseUnavailable, Overloaded
from hivemem_server.postgres import database as postgres_database
from hivemem_server.postgres.database import Database
from hivemem_server.postgres.embedded.account import database_account
from structlog.testing import capture_logs

WORDS_ONLY = ("--embedder", "none")
UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
ANSWER_SECONDS = 8.0  # every call is answered by then, whatever the database does


@contextlib.asynccontextmanager
async def stubs_of(server: ServerProcess) -> AsyncIterator[Stubs]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield Stubs(channel)


async def refused(call: Any) -> Refusal:
    """The error of a call that must be refused, in time."""
    async with asyncio.timeout(ANSWER_SECONDS):
        return await refusal(call)


async def until(answers: Callable[[], Awaitable[Any]]) -> Any:
    """Calls until it is answered."""
    async with asyncio.timeout(WAIT):
        while True:
            try:
                return await answers()
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)


async def until_refused(call: Callable[[], Any], saying: str) -> Refusal:
    """Calls until it is refused with these words."""
    async with asyncio.timeout(WAIT):
        while True:
            with contextlib.suppress(AssertionError):
                seen = await refusal(call())
                if saying in seen.message:
                    return seen


def said(server: ServerProcess) -> list[str]:
    """What the log says: the events of all its lines."""
    return [json.loads(line)["event"] for line in server.said if line.startswith("{")]


async def until_said(server: ServerProcess, count: int) -> list[str]:
    """What the log says, once it is so many lines, or more by mistake."""
    async with asyncio.timeout(WAIT):
        while len(said(server)) < count:  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.05)
    return said(server)


GONE = ["the database does not answer; trying again", "the database answers again"]
READ_ONLY = ["the database takes no writes, reads go on; trying again", "the database takes writes again"]
CROWDED = ["the database has no connection left for us; trying again", "the database gives connections again"]
FULL = ["the database has no room left, reads go on: free some disk space", "the database has room again"]
LOCKED = ["another session holds a lock for long, calls that need it fail: end it", "the lock is gone"]


class Traffic:
    """Writers, and a subscription that was there all the time."""

    def __init__(self, memory: hivemem.Client) -> None:
        self._memory = memory
        self._enough = asyncio.Event()
        self.seen: list[int] = []
        self.written = 0

    async def __aenter__(self) -> Self:
        session = await self._memory.session("traffic")
        self._writing = [asyncio.create_task(self._write(session.agent(f"a{number}"))) for number in range(4)]
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._writing, self._reading]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def flows(self) -> None:
        """Waits until more is written and read."""
        goal = self.written + 20
        async with asyncio.timeout(WAIT):
            while self.written < goal or len(self.seen) < goal:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        """Lets the writers finish, and checks that all was delivered once and in order."""
        self._enough.set()
        await asyncio.gather(*self._writing)
        async with asyncio.timeout(WAIT):
            while len(self.seen) < self.written:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert self.seen == list(range(1, self.written + 1))

    async def _write(self, agent: hivemem.Agent) -> None:
        while not self._enough.is_set():
            await agent.append(summary="something happened")
            self.written += 1

    async def _read(self) -> None:
        async with self._memory.subscribe(after=0, heartbeat=1.0) as stream:
            async for episode in stream:
                self.seen.append(episode.position)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(FAST_STOP, id="fast", marks=pytest.mark.soak),
        pytest.param(IMMEDIATE_STOP, id="immediate", marks=pytest.mark.soak),
        pytest.param(KILL, id="kill -9"),
    ],
)
async def test_an_outage_is_one_line_and_service_returns_by_itself(
    cluster: Cluster, start_server: StartServer, how: signal.Signals
) -> None:
    server = await start_server("--database-url", cluster.url, *WORDS_ONLY)
    async with (
        hivemem.Client(server.address, timeout=60) as memory,
        stubs_of(server) as stubs,
        Traffic(memory) as traffic,
    ):
        await traffic.flows()
        await cluster.stop(how)
        await until_said(server, 1)
        seen = await refused(stubs.append(new_episode(), session_id="traffic"))
        assert (seen.code, seen.reason) == (UNAVAILABLE, "DATABASE_UNAVAILABLE")
        assert seen.retry_seconds
        await cluster.start()
        await traffic.flows()
        await until_said(server, 2)
        await traffic.end()
    assert said(server) == GONE


async def test_a_lost_connection_is_no_outage(cluster: Cluster, start_server: StartServer) -> None:
    server = await start_server("--database-url", cluster.url, *WORDS_ONLY)
    async with stubs_of(server) as stubs:
        await stubs.session()
        await cluster.tell(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'hivemem'"
        )
        assert (await stubs.append(new_episode())).episodes[0].position == 1
    assert said(server) == []


async def test_after_a_failover_the_server_writes_to_the_one_that_was_promoted(
    cluster: Cluster, start_server: StartServer, tmp_path: Path
) -> None:
    proxy = Proxy(cluster.target)
    await proxy.accept()
    server = await start_server("--database-url", database_at(proxy), *WORDS_ONLY)
    async with cluster.standby(tmp_path / "standby") as standby, hivemem.Client(server.address, timeout=60) as memory:
        async with Traffic(memory) as traffic:
            await traffic.flows()
            proxy.refuse()
            proxy.cut()
            await until_said(server, 1)
            await standby.caught_up_with(cluster)
            await cluster.stop(IMMEDIATE_STOP)
            proxy.lead_to(standby.target)
            await proxy.accept()
            await until_said(server, 2)  # first it is a standby
            await standby.promote()
            await traffic.flows()
            await until_said(server, 3)
            await traffic.end()
        assert said(server) == [GONE[0], *READ_ONLY]
        await server.stop()
    await proxy.close()


async def test_connections_that_still_lead_to_the_old_server_are_let_go(
    cluster: Cluster, start_server: StartServer, tmp_path: Path
) -> None:
    proxy = Proxy(cluster.target)
    await proxy.accept()
    async with cluster.standby(tmp_path / "standby") as standby:
        server = await start_server("--database-url", database_at(proxy), *WORDS_ONLY)
        async with stubs_of(server) as stubs:
            await stubs.session()
            await standby.caught_up_with(cluster)
            await standby.promote()
            proxy.lead_to(standby.target)  # while the old one goes on as a read-only server
            await cluster.tell("ALTER SYSTEM SET default_transaction_read_only = on")
            await cluster.tell("SELECT pg_reload_conf()")
            seen = await until_refused(lambda: stubs.append(new_episode()), "takes no writes")
            assert (seen.code, seen.reason) == (UNAVAILABLE, "DATABASE_UNAVAILABLE")
            await until(lambda: stubs.append(new_episode("written to the new one")))
        assert ("written to the new one",) in await standby.tell("SELECT summary FROM log")
        assert ("written to the new one",) not in await cluster.tell("SELECT summary FROM log")
        await server.stop()
    await proxy.close()


def database_at(proxy: Proxy) -> str:
    return f"postgresql://hivemem@{proxy.address}/postgres"


@pytest.mark.soak
async def test_a_server_that_began_on_a_standby_writes_once_it_is_promoted(
    cluster: Cluster, start_server: StartServer, tmp_path: Path
) -> None:
    first = await start_server("--database-url", cluster.url, *WORDS_ONLY)
    async with stubs_of(first) as stubs:
        await stubs.session()
        await stubs.append(new_episode())
    async with cluster.standby(tmp_path / "standby") as standby:
        server = await start_server("--database-url", standby.url, *WORDS_ONLY)
        async with stubs_of(server) as stubs:
            seen = await refused(stubs.append(new_episode()))
            assert (seen.code, seen.reason) == (UNAVAILABLE, "DATABASE_UNAVAILABLE")
            assert "standby" in seen.message
            assert await stubs.positions() == [1]
            await standby.promote()
            await until(lambda: stubs.append(new_episode()))
        assert await until_said(server, 2) == READ_ONLY
        await server.stop()


@pytest.mark.soak
async def test_of_several_hosts_the_one_that_takes_writes_is_used(
    cluster: Cluster, start_server: StartServer, tmp_path: Path
) -> None:
    await (await start_server("--database-url", cluster.url, *WORDS_ONLY)).stop()
    async with cluster.standby(tmp_path / "standby") as standby:
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{cluster.port}"
        url = f"postgresql://hivemem@{hosts}/postgres?target_session_attrs=read-write"
        server = await start_server("--database-url", url, *WORDS_ONLY)
        async with stubs_of(server) as stubs:
            await stubs.session()
            await standby.caught_up_with(cluster)
            await cluster.stop(IMMEDIATE_STOP)
            seen = await refused(stubs.append(new_episode()))
            assert (seen.code, seen.reason) == (UNAVAILABLE, "DATABASE_UNAVAILABLE")
            await standby.promote()
            await until(lambda: stubs.append(new_episode()))
        assert await until_said(server, 2) == GONE
        await server.stop()


@pytest.mark.parametrize("scope", ["SYSTEM", pytest.param("DATABASE postgres", marks=pytest.mark.soak)])
async def test_a_database_set_read_only_is_read_and_then_written_again(
    cluster: Cluster, start_server: StartServer, scope: str
) -> None:
    server = await start_server("--database-url", cluster.url, *WORDS_ONLY)
    async with stubs_of(server) as stubs:
        await stubs.session()
        await stubs.append(new_episode())
        await set_read_only(cluster, scope, "on")
        seen = await until_refused(lambda: stubs.append(new_episode("refused")), "takes no writes")
        assert (seen.code, seen.reason) == (UNAVAILABLE, "DATABASE_UNAVAILABLE")
        assert len(await stubs.positions()) >= 1
        await until_said(server, 1)
        await set_read_only(cluster, scope, "off")
        await until(lambda: stubs.append(new_episode()))
    assert await until_said(server, 2) == READ_ONLY


async def set_read_only(cluster: Cluster, scope: str, value: str) -> None:
    """For sessions to come too: those of the server are ended, as they are some day anyway."""
    async with await psycopg.AsyncConnection.connect(cluster.url, autocommit=True) as connection:
        await connection.execute("SET default_transaction_read_only = off")
        await connection.execute(f"ALTER {scope} SET default_transaction_read_only = {value}".encode())
        await connection.execute("SELECT pg_reload_conf()")
        if value == "on":
            await connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'hivemem'"
            )


@pytest.mark.soak
async def test_a_crowded_database_is_named_and_served_from_once_there_is_room(
    cluster: Cluster, start_server: StartServer
) -> None:
    await cluster.stop()
    await cluster.start(max_connections="12")
    server = await start_server("--database-url", cluster.url, *WORDS_ONLY)
    async with stubs_of(server) as stubs:
        await stubs.session()
        await cluster.tell(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'hivemem'"
        )
        async with all_connections(cluster):
            seen = await refused(stubs.append(new_episode()))
            assert (seen.code, seen.reason) == (UNAVAILABLE, "DATABASE_UNAVAILABLE")
            assert "max_connections" in seen.message
            assert seen.retry_seconds
        await until(lambda: stubs.append(new_episode()))
    assert await until_said(server, 2) == CROWDED


@contextlib.asynccontextmanager
async def all_connections(cluster: Cluster) -> AsyncIterator[None]:
    """While it is open, nobody else gets a connection."""
    async with contextlib.AsyncExitStack() as stack:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                await stack.enter_async_context(await psycopg.AsyncConnection.connect(cluster.url))
        yield


async def test_when_all_connections_are_in_use_calls_are_turned_away_and_nothing_is_said(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "CONNECTION_SECONDS", 0.2)
    with capture_logs() as logs:
        async with Database(database_url, size=2) as database, database.snapshot(), database.snapshot():
            with pytest.raises(Overloaded, match="all database connections are in use"):
                await database.fetch("SELECT 1")
        async with Database(database_url, size=2) as database:
            assert await database.fetch("SELECT 1") == [(1,)]
    assert logs == []


async def test_more_waiting_calls_than_there_is_room_for_are_turned_away(database_url: str) -> None:
    async with Database(database_url, size=2) as database:
        async with database.snapshot(), database.snapshot():
            waiting = [asyncio.create_task(database.fetch("SELECT 1")) for _ in range(1_000)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="too many statements wait"):
                await database.fetch("SELECT 1")
        assert await asyncio.gather(*waiting) == [[(1,)]] * 1_000


async def test_a_session_that_holds_the_lock_is_named_and_appends_go_on_when_it_ends(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "LOCK_SECONDS", 1)
    with capture_logs() as logs:
        async with (
            running_server(settings(database_url), lambda _: None) as running,
            grpc.aio.insecure_channel(address(running)) as channel,
        ):
            stubs = Stubs(channel)
            await stubs.session()
            async with await psycopg.AsyncConnection.connect(database_url, application_name="somebody") as holder:
                await holder.execute("SELECT * FROM namespaces FOR UPDATE")
                seen = await refused(stubs.append(new_episode()))
                assert (seen.code, seen.reason) == (UNAVAILABLE, "DATABASE_UNAVAILABLE")
                assert "another session" in seen.message
                assert seen.retry_seconds
                await refused(stubs.append(new_episode()))
                assert await stubs.positions() == []
                name = f"process {holder.info.backend_pid} (somebody), idle in transaction"
            await stubs.append(new_episode())
            async with asyncio.timeout(WAIT):
                while len(logs) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    assert [line["event"] for line in logs] == LOCKED
    assert logs[0]["error"].startswith(name)


async def test_a_transaction_that_stays_idle_is_ended_by_the_database_and_holds_nothing(database_url: str) -> None:
    async with Database(database_url, size=3) as database:
        ((limit,),) = await database.fetch("SHOW idle_in_transaction_session_timeout")
        assert limit == "30s"
        with pytest.raises(DatabaseUnavailable):
            await idle_in_transaction(database)


async def idle_in_transaction(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '100ms'")
        await connection.execute("LOCK TABLE log")
        async with database.transaction() as other:
            await other.execute("LOCK TABLE log")  # waits until the database ends the first
        await connection.execute("SELECT 1")


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A small file system that PostgreSQL may write to."""
    path = Path(f"/tmp/hivemem-small-disk-{os.getpid()}")
    path.mkdir()
    mounted = os.geteuid() == 0 and _run("mount", "-t", "tmpfs", "-o", "size=160m", "none", path)
    try:
        if not mounted:
            pytest.skip("only root may mount a file system that is full soon")
        account = database_account()
        os.chown(path, account.uid, account.gid)
        yield path
    finally:
        if mounted:
            _run("umount", "--lazy", path)
        path.rmdir()


def _run(*command: str | Path) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def fill(disk: Path) -> Path:
    """Leaves no room; deleting the file that is returned makes room again."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65_536))
    return ballast


def long_episode() -> types.NewEpisode:
    """One that needs some room, however well it is packed."""
    return new_episode("".join(os.urandom(16_000).hex()))


async def test_a_full_disk_is_named_reads_go_on_and_writes_return_once_there_is_room(
    cluster: Cluster, start_server: StartServer, small_disk: Path
) -> None:
    (small_disk / "space").mkdir(mode=0o700)
    database_account().own(small_disk / "space")
    await cluster.tell(f"CREATE TABLESPACE small LOCATION '{small_disk / 'space'}'")
    await cluster.tell("CREATE DATABASE small TABLESPACE small")
    server = await start_server("--database-url", cluster.url.replace("/postgres", "/small"), *WORDS_ONLY)
    async with stubs_of(server) as stubs:
        await stubs.session()
        await stubs.append(new_episode())
        ballast = fill(small_disk)
        seen = await until_refused(lambda: stubs.append(long_episode()), "free some disk space")
        assert (seen.code, seen.reason) == (EXHAUSTED, "STORAGE_FULL")
        for _ in range(3):
            await refused(stubs.append(long_episode()))
        stored = await stubs.positions()
        assert stored == list(range(1, len(stored) + 1))
        await until_said(server, 1)
        ballast.unlink()
        answer = await until(lambda: stubs.append(long_episode()))
        assert answer.episodes[0].position == len(stored) + 1
    assert await until_said(server, 2) == FULL


@pytest.mark.soak
async def test_an_embedded_database_that_falls_over_its_full_disk_comes_back_once_there_is_room(
    start_server: StartServer, small_disk: Path
) -> None:
    server = await start_server("--data-dir", str(small_disk / "data"), *WORDS_ONLY)
    async with stubs_of(server) as stubs:
        await stubs.session()
        first = (await stubs.append(new_episode())).episodes[0].position
        ballast = fill(small_disk)
        with pytest.raises(psycopg.OperationalError):
            await write_ahead(small_disk / "data")
        await until_said(server, 2)
        seen = await refused(stubs.append(new_episode()))
        assert (seen.code, seen.reason) == (UNAVAILABLE, "DATABASE_UNAVAILABLE")
        assert any("The disk is full: free some space" in line for line in server.said)
        ballast.unlink()
        answer = await until(lambda: stubs.append(new_episode()))
        assert answer.episodes[0].position == first + 1
    async with asyncio.timeout(WAIT):
        while not {"postgres_restarted", GONE[1]} <= set(said(server)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for event in ("postgres_died", "postgres_restarted", *GONE):
        assert said(server).count(event) == 1


async def write_ahead(data_dir: Path) -> None:
    """Until PostgreSQL cannot write its log ahead any more: PANIC."""
    socket_directory = (data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[4]
    url = f"postgresql://hivemem@/hivemem?host={socket_directory}&port=5432"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            await connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")
