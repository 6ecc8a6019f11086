"""`hivemem serve` as a process: it starts, refuses in one line, survives a kill -9, and ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
import hivemem
import psycopg
import pytest
from fix_server import StartServer, refused_start
from fix_stubs import Stubs, new_episode, refusal
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hivemem.v1 import episode_service_pb2 as episodes
from hivemem.v1 import types_pb2 as types
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

WORDS_ONLY = ("--embedder", "none")


def server_processes_of(data_dir: Path) -> list[int]:
    """Processes whose command line names the data directory or that run in it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and data_dir in ((entry / "cwd").resolve(), *(entry / "cwd").resolve().parents):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_it_starts_from_nothing_answers_health_and_ends_within_ten_seconds(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = await start_server("--data-dir", str(tmp_path), *WORDS_ONLY)
    async with grpc.aio.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "hivemem.v1.EpisodeService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    server.process.send_signal(signal.SIGTERM)
    assert await server.ended(within=10) == 0
    assert server.said[-1] == "Stopped."
    assert server_processes_of(tmp_path) == []


async def test_a_killed_server_leaves_its_database_and_the_next_one_finds_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    first = await start_server("--data-dir", str(tmp_path), *WORDS_ONLY)
    async with hivemem.Client(first.address) as memory:
        await (await memory.session("s")).agent("a").append(summary="before the kill")
    first.kill()
    await first.ended()
    second = await start_server("--data-dir", str(tmp_path), *WORDS_ONLY)
    async with hivemem.Client(second.address) as memory:
        assert [e.summary async for e in (await memory.session("s")).episodes()] == ["before the kill"]
    assert await second.stop() == 0
    assert server_processes_of(tmp_path) == []


async def test_a_second_server_on_the_same_data_directory_says_who_has_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    first = await start_server("--data-dir", str(tmp_path), *WORDS_ONLY)
    line = await refused_start(*WORDS_ONLY, "--data-dir", str(tmp_path), "--port", "0")
    assert str(first.process.pid) in line


async def test_a_port_in_use_is_one_line(start_server: StartServer, database_url: str) -> None:
    first = await start_server("--database-url", database_url, *WORDS_ONLY)
    port = first.address.rsplit(":", 1)[1]
    line = await refused_start(*WORDS_ONLY, "--database-url", database_url, "--port", port)
    assert f"port {port}" in line
    assert "--port" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--database-url", "postgresql://u:secret@127.0.0.1:9/x"], "cannot be reached"),
        (["--database-url", "not a url"], "postgresql://user:password@host:5432/name"),
        (["--port", "70000"], "--port"),
        (["--workers", "0"], "--workers"),
        (["--embedder", "openai", "--embedding-dimensions", "0"], "--embedding-dimensions"),
    ],
)
async def test_a_bad_option_is_one_line_with_its_cure(arguments: list[str], said: str) -> None:
    line = await refused_start(*WORDS_ONLY, *arguments)
    assert said in line
    assert "secret" not in line


async def test_it_listens_on_loopback_only(database_url: str) -> None:
    assert "loopback" in await refused_start(*WORDS_ONLY, "--database-url", database_url, "--host", "0.0.0.0")


async def test_a_database_that_goes_away_is_unavailable_until_it_returns(
    start_server: StartServer, postgres: str, database_url: str
) -> None:
    server = await start_server("--database-url", database_url, *WORDS_ONLY)
    async with grpc.aio.insecure_channel(server.address) as channel:
        stubs = Stubs(channel)
        await stubs.session()
        await stubs.append(new_episode())
        await set_reachable(postgres, database_url, False)
        new = new_episode()
        refused = await refusal(stubs.append(new))
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DATABASE_UNAVAILABLE")
        assert refused.retry_seconds
        await set_reachable(postgres, database_url, True)
        answer = await until_answered(stubs, new)
        assert answer.episodes[0].position == 2
    complaints = [line for line in server.said if "does not answer" in line]
    assert len(complaints) == 1, server.said


async def set_reachable(postgres: str, database_url: str, reachable: bool) -> None:
    """Lets connections to the database in, or ends all there are and lets none in."""
    name = conninfo_to_dict(database_url)["dbname"]
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as connection:
        allowed = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        await connection.execute(allowed.format(sql.Identifier(str(name)), sql.Literal(reachable)))
        if not reachable:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )


async def until_answered(stubs: Stubs, new: types.NewEpisode) -> episodes.AppendEpisodesResponse:
    """Sends an episode until the server stores it."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await stubs.append(new)
            await asyncio.sleep(0.1)


async def test_appends_whose_connections_are_killed_are_stored_once_by_their_retries(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server("--database-url", database_url, *WORDS_ONLY)
    enough = asyncio.Event()
    async with hivemem.Client(server.address, timeout=60) as memory:
        session = await memory.session("s")
        killing = asyncio.create_task(kill_active_appends(database_url, 10, enough))
        counts = await asyncio.gather(*(append_until(enough, session.agent(f"a{number}")) for number in range(8)))
        await killing
        stored = [episode async for episode in session.episodes()]
    assert [episode.position for episode in stored] == list(range(1, sum(counts) + 1))
    for number, count in enumerate(counts):
        assert [e.revision for e in stored if e.agent_id == f"a{number}"] == list(range(1, count + 1))


async def append_until(enough: asyncio.Event, agent: hivemem.Agent) -> int:
    """Appends one after the other; returns how many."""
    count = 0
    while not enough.is_set():
        count += 1
        await agent.append(summary=f"number {count}")
    return count


async def kill_active_appends(database_url: str, wanted: int, enough: asyncio.Event) -> None:
    """Terminates backends in the middle of an append until so many have died."""
    killed = 0
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        while killed < wanted:
            cursor = await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND state = 'active' AND query LIKE '%append_v%' AND pid <> pg_backend_pid()"
            )
            killed += cursor.rowcount
            await asyncio.sleep(0.02)
    enough.set()


async def test_a_database_that_is_stopped_does_not_hold_up_the_end(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server("--database-url", database_url, *WORDS_ONLY)
    async with hivemem.Client(server.address, timeout=1) as memory:
        agent = (await memory.session("s")).agent("a")
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            found = await connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'hivemem'"
            )
            backends = [pid for (pid,) in await found.fetchall()]
        try:
            for pid in backends:
                os.kill(pid, signal.SIGSTOP)
            with pytest.raises(hivemem.HivememError):
                await agent.append(summary="never committed")
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended(within=10) == 0
        finally:
            for pid in backends:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


async def test_ctrl_c_while_it_starts_ends_it(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hivemem.cli", "serve", "--data-dir", str(tmp_path), "--port", "0", *WORDS_ONLY,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=os.environ,
    )  # fmt: skip
    async with asyncio.timeout(60):
        while not (tmp_path / "lock").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 0
    assert server_processes_of(tmp_path) == []
