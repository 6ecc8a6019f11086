"""Subscriptions that are durable by name, long polls and named cursors through the client."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hivemem
import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fix_proxy import Proxy

WAIT = 60.0
READER = Path(__file__).parent / "durable_reader.py"


async def write(session: hivemem.Session, count: int, agent: str = "a") -> list[int]:
    done = await session.agent(agent).append_all([hivemem.NewEpisode(summary=f"{number}") for number in range(count)])
    return [one.position for one in done]


async def taken(stream: hivemem.Subscription, count: int) -> list[int]:
    return [(await anext(stream)).position for _ in range(count)]


async def stored(memory: hivemem.Client, position: int, name: str = "writer") -> None:
    """Returns when the cursor of that name is at the position."""
    async with asyncio.timeout(WAIT):
        while (await committed(memory, name)) != position:
            pass


async def committed(memory: hivemem.Client, name: str = "writer") -> int | None:
    try:
        return (await memory.cursor(name)).position
    except hivemem.CursorNotFound:
        return None


@contextlib.asynccontextmanager
async def reader(
    memory: hivemem.Client, *, batch_size: int, stuck_at: int = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that reads durably, killed at the end."""
    arguments = [memory.address, "writer", str(batch_size), str(stuck_at)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(READER), *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def lines(process: asyncio.subprocess.Process, count: int) -> list[int]:
    assert process.stdout is not None
    async with asyncio.timeout(WAIT):
        return [int(await process.stdout.readline()) for _ in range(count)]


async def test_a_batch_is_committed_when_the_next_is_asked_for_and_never_before(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 5)
    async with asyncio.timeout(WAIT):
        stream = session.subscribe(durable="writer", max_batch_size=2)
        for position, before in [(1, 0), (2, 0), (3, 2), (4, 2), (5, 4)]:
            assert await taken(stream, 1) == [position]
            assert await committed(memory) == before
        asking = asyncio.create_task(taken(stream, 1))
        await stored(memory, 5)
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await asking


async def test_the_next_reader_of_a_name_goes_on_whatever_start_it_names(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 3)
    async with asyncio.timeout(WAIT):
        async with session.subscribe(durable="writer", after=1) as stream:
            assert await taken(stream, 2) == [2, 3]
        assert await committed(memory) == 3
        await write(session, 2)
        for after in (hivemem.Start.BEGINNING, hivemem.Start.NOW, 1):
            stream = session.subscribe(durable="writer", after=after)
            assert await taken(stream, 1) == [4]
            await stream.aclose()


async def test_the_place_of_a_reader_that_begins_now_is_kept_from_the_beginning(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 3)
    async with asyncio.timeout(WAIT):
        first = session.subscribe(durable="writer", after=hivemem.Start.NOW)
        reading = asyncio.create_task(taken(first, 1))
        await stored(memory, 3)
        reading.cancel()
        await first.aclose()
        await write(session, 1)
        async with session.subscribe(durable="writer", after=hivemem.Start.NOW) as second:
            assert await taken(second, 1) == [4]


async def test_a_clean_exit_commits_what_was_given_out_in_full_and_an_exception_does_not(
    memory: hivemem.Client,
) -> None:
    session = await memory.session("s")
    await write(session, 6)
    async with asyncio.timeout(WAIT):
        with contextlib.suppress(ZeroDivisionError):
            async with session.subscribe(durable="writer", max_batch_size=2) as stream:
                await taken(stream, 2)
                raise ZeroDivisionError
        assert await committed(memory) == 0
        async with session.subscribe(durable="writer", max_batch_size=2) as stream:
            assert await taken(stream, 2) == [1, 2]
        assert await committed(memory) == 2
        async with session.subscribe(durable="writer", max_batch_size=2) as stream:
            assert await taken(stream, 3) == [3, 4, 5]
        assert await committed(memory) == 4


async def test_a_script_that_reads_durably_commits_as_others_do(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 5)

    def read(count: int) -> list[int]:
        with hivemem.follow(memory.address, session="s", durable="writer", max_batch_size=2, timeout=WAIT) as episodes:
            return [next(episodes).position for _ in range(count)]

    def read_all() -> list[int]:
        with hivemem.follow(memory.address, durable="writer", until_caught_up=True, timeout=WAIT) as episodes:
            return [episode.position for episode in episodes]

    assert await asyncio.to_thread(read, 3) == [1, 2, 3]
    assert await committed(memory) == 2
    assert await asyncio.to_thread(read_all) == [3, 4, 5]
    assert await committed(memory) == 5
    assert await asyncio.to_thread(read_all) == []


async def test_a_cancelled_read_loses_no_commit(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 1)
    async with asyncio.timeout(WAIT), session.subscribe(durable="writer") as stream:
        await taken(stream, 1)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(stream)
        asking = asyncio.create_task(taken(stream, 1))
        await stored(memory, 1)
        assert await write(session, 1) == await asking


async def test_of_two_readers_of_one_name_the_slower_is_told(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 4)
    async with asyncio.timeout(WAIT):
        slow = session.subscribe(durable="writer", max_batch_size=2)
        assert await taken(slow, 2) == [1, 2]
        async with session.subscribe(durable="writer", max_batch_size=4) as fast:
            assert await taken(fast, 4) == [1, 2, 3, 4]
        with pytest.raises(
            hivemem.CursorConflict, match=r"under the name 'writer'.*position 4, this one to 2"
        ) as caught:
            await anext(slow)
        assert (caught.value.position, caught.value.actual) == (2, 4)
        with pytest.raises(StopAsyncIteration):
            await anext(slow)
        assert await committed(memory) == 4


async def test_a_reader_killed_between_two_batches_goes_on_exactly_where_it_stopped(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 10)
    async with reader(memory, batch_size=3) as first:
        assert await lines(first, 10) == list(range(1, 11))
        await stored(memory, 10)
        first.kill()
        await first.wait()
    await write(session, 5)
    async with reader(memory, batch_size=3) as second:
        assert await lines(second, 5) == list(range(11, 16))


async def test_a_reader_killed_in_the_middle_gets_its_batch_again_and_nothing_before_it(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 10)
    async with reader(memory, batch_size=4, stuck_at=6) as first:
        assert await lines(first, 6) == [1, 2, 3, 4, 5, 6]
        first.kill()
        await first.wait()
    async with reader(memory, batch_size=4) as second:
        assert await lines(second, 6) == [5, 6, 7, 8, 9, 10]


async def test_a_connection_that_is_cut_again_and_again_neither_loses_nor_repeats(
    memory: hivemem.Client, proxy: Proxy
) -> None:
    session = await memory.session("s")
    await write(session, 60)
    seen: list[int] = []
    async with (
        asyncio.timeout(WAIT),
        hivemem.Client(proxy.address) as through,
        through.subscribe(durable="writer", max_batch_size=7) as stream,
    ):
        for _ in range(6):
            seen += await taken(stream, 10)
            proxy.refuse()
            proxy.cut()
            await proxy.accept()
    assert seen == list(range(1, 61))
    assert await committed(memory) == 60


async def test_a_name_whose_history_is_gone_is_set_anew_and_read_on(memory: hivemem.Client, database_url: str) -> None:
    session = await memory.session("s")
    await write(session, 5)
    async with asyncio.timeout(WAIT), session.subscribe(durable="writer") as stream:
        await taken(stream, 5)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("DELETE FROM log WHERE position > 2")
    await write(session, 2, "b")
    with pytest.raises(hivemem.CursorDiverged):
        await anext(session.subscribe(durable="writer"))
    beginning = await memory.wait(timeout=0, max_batch_size=1)
    assert await memory.commit_cursor("writer", beginning.cursor) == 1
    async with asyncio.timeout(WAIT), session.subscribe(durable="writer") as stream:
        assert await taken(stream, 3) == [2, 3, 4]


async def test_a_cursor_is_committed_by_hand_forwards_and_by_what_is_expected(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await write(session, 3)
    first = await memory.wait(max_batch_size=1)
    second = await memory.wait(after=first.cursor, max_batch_size=1)
    assert await memory.commit_cursor("mine", first.cursor, expected=b"") == 1
    with pytest.raises(hivemem.CursorConflict) as caught:
        await memory.commit_cursor("mine", second.cursor, expected=second.cursor)
    assert (caught.value.expected, caught.value.actual, caught.value.position) == (2, 1, 2)
    assert await memory.commit_cursor("mine", second.cursor, expected=first.cursor) == 2
    found = await memory.cursor("mine")
    assert (found.name, found.cursor, found.position) == ("mine", second.cursor, 2)
    assert found.commit_time.tzinfo is not None
    with pytest.raises(hivemem.CursorNotFound):
        await memory.cursor("other")


async def test_a_wait_returns_episodes_and_where_to_go_on(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    other = await memory.session("other")
    await write(session, 2)
    await write(other, 1)
    batch = await session.wait()
    assert ([episode.position for episode in batch], len(batch), batch.head_position) == ([1, 2], 2, 3)
    waiting = asyncio.create_task(session.wait(after=batch.cursor))
    assert await write(session, 1) == [episode.position for episode in await waiting]
    empty = await session.wait(after=4, timeout=0)
    assert (list(empty), empty.records, empty.position) == ([], (), 4)


async def test_a_wait_returns_other_records_if_they_are_asked_for(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    opened = await session.agent("a").append(summary="x", open_threads=["t"])
    await session.agent("b").append(summary="y", resolves=[opened.thread_ids[0]])
    batch = await memory.wait(record_kinds=["episode", "thread_event"])
    assert sorted(record.kind for record in batch.records) == ["episode", "episode", "thread_event"]
    assert batch.episodes == tuple(batch)
    assert len(batch) == 2


async def test_an_unknown_word_of_a_wait_is_a_mistake_of_the_caller(memory: hivemem.Client) -> None:
    with pytest.raises(TypeError, match="heartbeat"):
        await memory.wait(heartbeat=1.0)  # type: ignore[call-arg]
