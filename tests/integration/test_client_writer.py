from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import hivemem
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fix_proxy import Proxy
    from fix_server import StartServer

WAIT = 60.0


@pytest.fixture
async def through(memory: hivemem.Client, proxy: Proxy) -> AsyncIterator[hivemem.Client]:
    """A second client, which reaches the same memory through the proxy."""
    async with hivemem.Client(proxy.address, namespace=memory.namespace) as client, asyncio.timeout(WAIT):
        yield client


async def agent_of(client: hivemem.Client) -> hivemem.Agent:
    return (await client.session("s")).agent("a")


async def stored(memory: hivemem.Client) -> list[str]:
    """The summaries of all episodes in log order, whose positions and revisions have no gap."""
    episodes = [episode async for episode in memory.episodes()]
    assert [episode.position for episode in episodes] == list(range(1, len(episodes) + 1))
    assert [episode.revision for episode in episodes] == list(range(1, len(episodes) + 1))
    return [episode.summary for episode in episodes]


def batch(first: int, count: int) -> list[hivemem.NewEpisode]:
    return [hivemem.NewEpisode(summary=f"{number}") for number in range(first, first + count)]


async def test_appends_are_stored_in_order_and_each_says_where(memory: hivemem.Client) -> None:
    async with (await agent_of(memory)).writer() as writer:
        singles = [await writer.append(summary=f"{number}") for number in range(500)]
        several = await writer.append_all(batch(500, 50))
        assert [(await one).position for one in singles] == list(range(1, 501))
        assert [one.revision for one in await several] == list(range(501, 551))
    assert await stored(memory) == [f"{number}" for number in range(550)]


async def test_a_refusal_in_the_middle_is_that_of_its_append_alone(memory: hivemem.Client) -> None:
    async with (await agent_of(memory)).writer() as writer:
        await writer.append(summary="0")
        empty = await writer.append(summary="")
        conflicting = await writer.append(summary="no", expect=hivemem.NoStream())
        large = await writer.append_all([hivemem.NewEpisode(summary="x" * 30_000) for _ in range(150)])
        many = await writer.append_all(batch(0, 501))
        fitting = await writer.append(summary="1", expect=hivemem.Revision(1))
        with pytest.raises(hivemem.InvalidField) as caught:
            await empty
        assert [violation.field for violation in caught.value.violations] == ["episodes[0].summary"]
        with pytest.raises(hivemem.RevisionConflict) as conflict:
            await conflicting
        assert (conflict.value.expected, conflict.value.actual) == ("0", 1)
        with pytest.raises(hivemem.TooLarge):
            await large
        with pytest.raises(hivemem.InvalidField):
            await many
        assert (await fitting).position == 2
    assert await stored(memory) == ["0", "1"]


async def test_a_session_that_is_not_there_or_closed_refuses_and_is_raised_on_leaving(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await session.close()
    with pytest.raises(hivemem.SessionClosed):
        async with session.agent("a").writer() as writer:
            await writer.append(summary="too late")


async def test_a_namespace_that_is_not_there_is_no_reason_to_try_again(memory: hivemem.Client) -> None:
    agent = await agent_of(memory)
    async with hivemem.Client(memory.address, namespace="none") as lost:
        writer = (
            hivemem.Session(lost, (await memory.get_session("s")).info, created=False).agent(agent.agent_id).writer()
        )
        async with asyncio.timeout(WAIT), writer:
            pending = [await writer.append(summary=f"{number}") for number in range(20)]
            for one in pending:
                with pytest.raises(hivemem.NamespaceNotFound):
                    await one


async def test_what_was_sent_is_sent_again_after_cuts_and_not_doubled(
    memory: hivemem.Client, through: hivemem.Client, proxy: Proxy
) -> None:
    agent = await agent_of(through)
    cuts = 8
    async with agent.writer(max_pending=64) as writer:
        pending = []
        for number in range(500):
            pending.append(await writer.append_all(batch(number * 4, 4)))
            if number % (500 // cuts) == 30:
                await pending[-20]
                proxy.cut()
        outcomes = [await one for one in pending]
    assert await stored(memory) == [f"{number}" for number in range(2_000)]
    assert [one.position for outcome in outcomes for one in outcome] == list(range(1, 2_001))


async def test_a_connection_that_went_silent_is_replaced(
    memory: hivemem.Client, through: hivemem.Client, proxy: Proxy
) -> None:
    async with (await agent_of(through)).writer(timeout=4.0) as writer:
        await (await writer.append(summary="0"))
        proxy.pause()
        pending = [await writer.append(summary=f"{number}") for number in range(1, 100)]
        assert [(await one).position for one in pending] == list(range(2, 101))
    assert await stored(memory) == [f"{number}" for number in range(100)]


async def test_a_server_away_longer_than_the_timeout_fails_what_waits_and_is_found_again(
    memory: hivemem.Client, through: hivemem.Client, proxy: Proxy
) -> None:
    # Longer than the pause that gRPC makes between two attempts to connect.
    async with (await agent_of(through)).writer(timeout=3.0) as writer:
        await (await writer.append(summary="0"))
        proxy.refuse()
        proxy.cut()
        pending = [await writer.append(summary=f"lost {number}") for number in range(10)]
        with pytest.raises(hivemem.ConnectionFailed, match=proxy.address) as caught:
            await writer.flush()
        assert caught.value.__notes__[1:] == ["9 more appends of this writer were refused"]
        assert all(one.done() for one in pending)
        await proxy.accept()
        again = await writer.append(summary="1")
        assert (await again).position == 2
    assert await stored(memory) == ["0", "1"]


async def test_leaving_with_an_exception_leaves_a_beginning_of_what_was_written(memory: hivemem.Client) -> None:
    agent = await agent_of(memory)

    async def write_and_fail() -> None:
        async with agent.writer() as writer:
            for number in range(1_000):
                await writer.append(summary=f"{number}")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await write_and_fail()
    await agent.append(summary="after")
    there = [summary for summary in await stored(memory) if summary != "after"]
    assert there == [f"{number}" for number in range(len(there))]
    assert len(there) >= 1_000 - 256


async def test_several_writers_share_a_namespace(memory: hivemem.Client) -> None:
    session = await memory.session("s")

    async def write(name: str) -> list[int]:
        async with session.agent(name).writer(max_pending=20) as writer:
            pending = [await writer.append(summary=f"{number}") for number in range(100)]
            return [(await one).position for one in pending]

    written = await asyncio.gather(*(write(f"a{number}") for number in range(8)))
    assert sorted(position for positions in written for position in positions) == list(range(1, 801))
    assert all(positions == sorted(positions) for positions in written)


async def test_a_writer_survives_the_death_of_its_server(start_server: StartServer, database_url: str) -> None:
    options = ("--database-url", database_url, "--embedder", "none")
    server = await start_server(*options)
    port = server.address.rpartition(":")[2]
    async with asyncio.timeout(WAIT), hivemem.Client(server.address) as memory:
        agent = await agent_of(memory)
        async with agent.writer(timeout=40.0) as writer:
            pending = [await writer.append_all(batch(number * 5, 5)) for number in range(200)]
            await pending[-200]
            server.kill()
            await server.ended()
            more = asyncio.create_task(writer.append_all(batch(1_000, 5)))
            await start_server(*options, "--port", port)
            await (await more)
        assert await stored(memory) == [f"{number}" for number in range(1_005)]
