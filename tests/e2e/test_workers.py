"""`hivemem serve --workers N`: several processes on one port, which outlive each other but not their parent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import hivemem
import pytest
from fix_openai_server import OpenAIServer
from fix_server import ServerProcess, StartServer, refused_start
from fix_stubs import Stubs, new_episode
from hivemem.v1.admin_service_pb2 import GetStatsRequest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in Linux's /proc")

TWO = ("--workers", "2", "--embedder", "none")
WAIT = 60.0
CONNECTIONS_MOST = 64  # that all of them meet the same one of two workers is out of the question


async def workers_of(server: ServerProcess) -> list[int]:
    """The process ids that the server says its workers have."""
    said = await server.says(r"workers +(\d+) \(pids ([\d, ]+)\)")
    pids = [int(pid) for pid in said[2].split(", ")]
    assert len(pids) == int(said[1])
    return pids


def state(pid: int) -> str:
    """What a process does, as Linux says it: T for a stopped one, nothing for one that is gone."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if found == "Z" else found


async def gone(*pids: int) -> None:
    """Waits until there are no such processes any more."""
    async with asyncio.timeout(WAIT):
        while any(state(pid) for pid in pids):  # noqa: ASYNC110 - nobody tells of the end of other people's children
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def stubs_of_each(address: str, count: int) -> AsyncIterator[list[Stubs]]:
    """Stubs on connections to `count` workers, one to each."""
    found: dict[str, Stubs] = {}
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(CONNECTIONS_MOST):
            own = [("grpc.use_local_subchannel_pool", 1)]
            stubs = Stubs(await stack.enter_async_context(grpc.aio.insecure_channel(address, options=own)))
            stats = await stubs.admin.GetStats(GetStatsRequest(), timeout=WAIT)
            found.setdefault(stats.server.replica_id, stubs)
            if len(found) == count:
                break
        assert len(found) == count
        yield list(found.values())


async def append_until(enough: asyncio.Event, agent: hivemem.Agent) -> int:
    """Appends one after the other; returns how many."""
    count = 0
    while not enough.is_set():
        count += 1
        await agent.append(summary=f"number {count}")
    return count


async def check_log(memory: hivemem.Client, counts: list[int]) -> None:
    """Agent a0, a1, … has so many episodes in the log, and none is missing or doubled."""
    stored = [episode async for episode in (await memory.session("s")).episodes()]
    assert [episode.position for episode in stored] == list(range(1, sum(counts) + 1))
    for agent, count in enumerate(counts):
        mine = [episode for episode in stored if episode.agent_id == f"a{agent}"]
        assert [episode.revision for episode in mine] == list(range(1, count + 1))
        assert [episode.summary for episode in mine] == [f"number {number}" for number in range(1, count + 1)]


async def test_workers_share_one_port_and_their_appends_have_one_dense_order(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server(*TWO, "--database-url", database_url)
    async with (
        stubs_of_each(server.address, 2) as each,
        hivemem.Client(server.address) as memory,
        (await memory.session("s")).subscribe() as stream,
        asyncio.timeout(WAIT),
    ):
        appended = await asyncio.gather(
            *(each[number % 2].append(new_episode(), agent_id=f"a{number % 5}") for number in range(200))
        )
        assert sorted(answer.episodes[0].position for answer in appended) == list(range(1, 201))
        for stubs in each:
            assert await stubs.positions() == list(range(1, 201))
        followed = aiter(stream)
        assert [(await anext(followed)).position for _ in range(200)] == list(range(1, 201))


async def test_a_worker_that_dies_again_and_again_is_replaced_ever_more_slowly_and_callers_go_on(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server(*TWO, "--database-url", database_url)
    victim, other = await workers_of(server)
    enough, failures = asyncio.Event(), []
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(hivemem.Client(server.address, timeout=WAIT)) for _ in range(8)]
        agents = [(await client.session("s")).agent(f"a{number}") for number, client in enumerate(clients)]
        writing = asyncio.gather(*(append_until(enough, agent) for agent in agents))
        for _ in range(3):
            mark = len(server.said)
            os.kill(victim, signal.SIGKILL)
            failures.append(json.loads((await server.says("another is started", after=mark)).string))
            assert failures[-1]["pid"] == victim
            victim = json.loads((await server.says("in the place of one that failed", after=mark)).string)["pid"]
        enough.set()
        await check_log(clients[0], await writing)
    assert [failure["pause_seconds"] for failure in failures] == [0, 0.5, 1]
    assert {failure["reason"] for failure in failures} == {"was killed by SIGKILL"}
    assert sum("another is started" in line for line in server.said) == 3
    assert state(other)
    assert await server.stop() == 0


async def test_a_stopped_worker_is_noticed_and_replaced_and_the_other_serves_meanwhile(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server(*TWO, "--database-url", database_url)
    hung, _ = await workers_of(server)
    async with stubs_of_each(server.address, 2) as each:
        await each[0].session()
        os.kill(hung, signal.SIGSTOP)
        calls = [asyncio.ensure_future(stubs.append(new_episode())) for stubs in each]
        await asyncio.wait(calls, timeout=WAIT, return_when=asyncio.FIRST_COMPLETED)
        assert state(hung) == "T"
        answered = [call for call in calls if call.done()]
        assert [call.result().episodes[0].position for call in answered] == [1]
        failure = json.loads((await server.says("another is started")).string)
        assert failure["pid"] == hung
        assert failure["reason"].startswith("hangs")
        await gone(hung)
        await asyncio.wait(calls, timeout=WAIT)
        assert sum(isinstance(call.exception(), grpc.aio.AioRpcError) for call in calls) == 1
    await server.says("in the place of one that failed")
    async with stubs_of_each(server.address, 2) as each:
        assert [await stubs.positions() for stubs in each] == [[1], [1]]


async def test_sigterm_drains_all_of_them_and_leaves_no_process(start_server: StartServer, tmp_path: Path) -> None:
    server = await start_server(*TWO, "--data-dir", str(tmp_path))
    pids = await workers_of(server)
    async with hivemem.Client(server.address, timeout=WAIT) as memory, contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context((await memory.session("s")).agent("a").writer())
        pending = [await writer.append(summary=f"number {number}") for number in range(1, 101)]
        await pending[0]
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended(within=20) == 0
        stored = sum(done.done() for done in pending)
        again = await start_server(*TWO, "--data-dir", str(tmp_path), "--port", server.address.rsplit(":", 1)[1])
        await asyncio.gather(*pending)
        assert 1 <= stored <= 100
    assert server.said[-1] == "Stopped."
    assert [line for line in server.said if '"error"' in line] == []
    assert [state(pid) for pid in pids] == ["", ""]
    async with hivemem.Client(again.address) as memory:
        summaries = [episode.summary async for episode in (await memory.session("s")).episodes()]
    assert summaries == [f"number {number}" for number in range(1, 101)]
    assert await again.stop() == 0


async def test_workers_end_when_their_parent_is_killed_and_the_next_one_finds_the_database(
    start_server: StartServer, tmp_path: Path
) -> None:
    first = await start_server(*TWO, "--data-dir", str(tmp_path))
    pids = await workers_of(first)
    async with hivemem.Client(first.address) as memory:
        await (await memory.session("s")).agent("a").append(summary="before the kill")
    first.kill()
    await gone(*pids)
    await first.ended()
    port = first.address.rsplit(":", 1)[1]
    second = await start_server(*TWO, "--data-dir", str(tmp_path), "--port", port)
    async with hivemem.Client(second.address) as memory:
        assert [e.summary async for e in (await memory.session("s")).episodes()] == ["before the kill"]
    assert await second.stop() == 0


async def test_the_port_of_workers_is_refused_to_others(start_server: StartServer, database_url: str) -> None:
    first = await start_server(*TWO, "--database-url", database_url)
    port = first.address.rsplit(":", 1)[1]
    for workers in ("1", "2"):
        line = await refused_start(*TWO, "--database-url", database_url, "--workers", workers, "--port", port)
        assert f"port {port}" in line
        assert "--port" in line


async def test_a_port_in_use_is_one_line(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = await refused_start(*TWO, "--database-url", database_url, "--port", str(port))
    assert f"port {port}" in line


async def test_what_a_worker_refuses_to_start_with_is_one_line_and_the_end(
    database_url: str, openai_server: OpenAIServer
) -> None:
    openai_server.key = "the right one"
    line = await refused_start(
        *TWO, "--port", "0", "--database-url", database_url, "--embedder", "openai",
        "--embedding-url", openai_server.url, HIVEMEM_EMBEDDING_KEY="a wrong one",
    )  # fmt: skip
    assert "the embedding endpoint refuses" in line


async def test_more_connections_than_the_embedded_database_has_are_refused(tmp_path: Path) -> None:
    line = await refused_start(*TWO, "--data-dir", str(tmp_path / "none"), HIVEMEM_DATABASE_CONNECTIONS="100")
    assert "connections are more than" in line
    assert "HIVEMEM_DATABASE_CONNECTIONS" in line
    assert not (tmp_path / "none").exists()
