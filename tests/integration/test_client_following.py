from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import hivemem
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fix_proxy import Proxy

WAIT = 60.0


@pytest.fixture
async def through(memory: hivemem.Client, proxy: Proxy) -> AsyncIterator[hivemem.Client]:
    """A second client, which reaches the same memory through the proxy."""
    async with hivemem.Client(proxy.address, namespace=memory.namespace) as client, asyncio.timeout(WAIT):
        yield client


async def write(session: hivemem.Session, count: int, agent: str = "a") -> list[int]:
    done = await session.agent(agent).append_all([hivemem.NewEpisode(summary=f"{number}") for number in range(count)])
    return [one.position for one in done]


async def taken(stream: hivemem.Subscription, count: int) -> list[int]:
    return [(await anext(stream)).position for _ in range(count)]


async def test_what_is_there_comes_first_and_then_what_is_new(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    there = await write(session, 1_200 // 3)
    async with asyncio.timeout(WAIT), session.subscribe() as stream:
        assert await taken(stream, len(there)) == there
        reading = asyncio.create_task(taken(stream, 5))
        await stream.wait_caught_up()
        new = await write(session, 5)
        assert await reading == new


async def test_the_whole_namespace_comes_in_one_order_and_no_other(memory: hivemem.Client) -> None:
    await memory.create_namespace("other")
    async with hivemem.Client(memory.address, namespace="other") as stranger:
        await write(await stranger.session("s"), 3)
    written = [position for name in ("s", "t", "s") for position in await write(await memory.session(name), 2, name)]
    async with asyncio.timeout(WAIT), memory.subscribe(until_caught_up=True) as stream:
        seen = [(episode.position, episode.session_id) async for episode in stream]
    assert seen == list(zip(written, ("s", "s", "t", "t", "s", "s"), strict=True))


async def test_a_script_gets_the_same_without_asyncio(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    there = await write(session, 400)
    follower = await asyncio.to_thread(lambda: hivemem.follow(memory.address, session="s", timeout=WAIT))

    def take(count: int) -> list[int]:
        return [next(follower).position for _ in range(count)]

    assert await asyncio.to_thread(take, len(there)) == there
    reading = asyncio.create_task(asyncio.to_thread(take, 5))
    assert await write(session, 5) == await reading
    follower.close()


async def test_own_episodes_can_be_left_out_and_starts_are_after_a_point(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    mine = await write(session, 2, "writer")
    theirs = await write(session, 3, "researcher")
    middle = (await memory.episode(theirs[1])).episode
    async with asyncio.timeout(WAIT):
        async with session.subscribe(exclude_agents=["writer"]) as stream:
            assert await taken(stream, 3) == theirs
        for after in (mine[-1], theirs[0]):
            async with session.subscribe(after=after) as stream:
                assert await taken(stream, 1) == [after + 1]
        async with session.subscribe(after=middle.commit_time) as stream:
            reading = asyncio.create_task(taken(stream, 1))
            await stream.wait_caught_up()
            assert await write(session, 1) == await reading
        async with session.subscribe(after=hivemem.Start.NOW) as stream:
            reading = asyncio.create_task(taken(stream, 1))
            await stream.wait_caught_up()
            assert await write(session, 1) == await reading


async def test_a_cursor_resumes_in_another_client(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    there = await write(session, 10)
    async with asyncio.timeout(WAIT):
        async with session.subscribe() as stream:
            await taken(stream, 10)
            reading = asyncio.create_task(taken(stream, 1))
            await stream.wait_caught_up()
            cursor = stream.cursor
            reading.cancel()
        new = await write(session, 2)
        other = hivemem.Client(memory.address, namespace=memory.namespace)
        async with other, other.subscribe(after=cursor) as stream:
            assert await taken(stream, 2) == new
    assert new[0] > there[-1]


async def test_an_altered_cursor_is_an_error(memory: hivemem.Client) -> None:
    with pytest.raises(hivemem.CursorMalformed):
        await anext(memory.subscribe(after=b"made up"))


async def test_records_of_other_kinds_come_when_they_are_asked_for(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    opened = await session.agent("a").append(summary="x", open_threads=["t"])
    await session.agent("b").append(summary="y", resolves=[opened.thread_ids[0]])
    kinds = [hivemem.RecordKind.EPISODE, hivemem.RecordKind.THREAD_EVENT]
    async with asyncio.timeout(WAIT), session.subscribe(record_kinds=kinds) as stream:
        records = stream.records()
        found = [await anext(records) for _ in range(3)]
    assert sorted(record.kind for record in found) == ["episode", "episode", "thread_event"]
    (event,) = (record.record for record in found if isinstance(record.record, hivemem.ThreadEvent))
    assert (event.thread_id, event.type) == (opened.thread_ids[0], hivemem.ThreadEventType.RESOLVED)


async def test_cut_connections_neither_lose_nor_repeat(
    memory: hivemem.Client, through: hivemem.Client, proxy: Proxy
) -> None:
    session = await memory.session("s")
    written: list[int] = []
    async with through.subscribe(sessions=["s"], max_batch_size=7) as stream:
        seen: list[int] = []
        for round_number in range(8):
            written += await write(session, 50)
            proxy.refuse()
            proxy.cut()
            await proxy.accept()
            seen += await taken(stream, 10 + round_number)
        seen += await taken(stream, len(written) - len(seen))
    assert seen == written


async def test_a_server_out_of_reach_is_waited_for(
    memory: hivemem.Client, through: hivemem.Client, proxy: Proxy
) -> None:
    session = await memory.session("s")
    first = await write(session, 1)
    async with through.subscribe() as stream:
        assert await taken(stream, 1) == first
        proxy.refuse()
        proxy.cut()
        reading = asyncio.create_task(taken(stream, 1))
        second = await write(session, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reading), 0.5)
        await proxy.accept()
        assert await reading == second


async def test_a_connection_that_went_silent_is_replaced(
    memory: hivemem.Client, through: hivemem.Client, proxy: Proxy
) -> None:
    session = await memory.session("s")
    first = await write(session, 1)
    async with through.subscribe(heartbeat=1.0) as stream:
        assert await taken(stream, 1) == first
        proxy.pause()
        second = await write(session, 1)
        assert await taken(stream, 1) == second
        assert (await through.get_session("s")).session_id == "s"


async def test_calls_survive_a_cut_and_store_nothing_twice(
    memory: hivemem.Client, through: hivemem.Client, proxy: Proxy
) -> None:
    await memory.session("s")
    agent = (await through.get_session("s")).agent("a")

    async def trouble() -> None:
        while True:
            await asyncio.sleep(0.05)
            proxy.cut()

    cutting = asyncio.create_task(trouble())
    done = [await agent.append(summary=f"{number}") for number in range(100)]
    cutting.cancel()
    there = [episode.episode_id async for episode in memory.episodes()]
    assert there == [one.episode_id for one in done]


async def test_a_call_that_finds_nobody_names_the_address(proxy: Proxy) -> None:
    proxy.refuse()
    async with hivemem.Client(proxy.address, timeout=0.5) as client:
        with pytest.raises(hivemem.ConnectionFailed, match=proxy.address):
            await client.stats()
