"""Named cursors: kept for whoever goes on, by any replica, forwards only."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import hivemem
import psycopg
import pytest
from fix_server import StartServer, address, settings
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import namespace_service_pb2 as namespaces
from hivemem.v1 import types_pb2 as types
from hivemem_server.bootstrap import running_server

WAIT = 20.0
ABORTED = (grpc.StatusCode.ABORTED, "CURSOR_CONFLICT")
DIVERGED = (grpc.StatusCode.DATA_LOSS, "CURSOR_DIVERGED")


def commit(stubs: Stubs, cursor: bytes, name: str = "writer", **fields: Any) -> Any:
    return stubs.episodes.CommitCursor(pb.CommitCursorRequest(name=name, cursor=cursor, **fields), timeout=WAIT)


def get(stubs: Stubs, name: str = "writer", **fields: Any) -> Any:
    return stubs.episodes.GetCursor(pb.GetCursorRequest(name=name, **fields), timeout=WAIT)


def subscribed(stubs: Stubs, name: str = "writer") -> Any:
    request = pb.SubscribeEpisodesRequest(start=types.StartPoint(cursor_name=name))
    return stubs.episodes.SubscribeEpisodes(request, timeout=WAIT)


async def cursor_at(stubs: Stubs, position: int) -> bytes:
    """The cursor after a position."""
    start = types.StartPoint(position=position)
    call: Any = stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(start=start), timeout=WAIT)
    started = (await call.read()).started
    call.cancel()
    return bytes(started.cursor)


async def cursors(stubs: Stubs, count: int = 5) -> list[bytes]:
    """Cursors after each of so many new episodes, the one before them first."""
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(count)))
    return [await cursor_at(stubs, position) for position in range(count + 1)]


async def run(database_url: str, *statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        for statement in statements:
            await connection.execute(statement.encode())


async def test_a_committed_cursor_comes_back_with_its_position_and_time(stubs: Stubs) -> None:
    after = await cursors(stubs)
    assert (await commit(stubs, after[3])).position == 3
    stored = await get(stubs)
    assert (stored.cursor, stored.position) == (after[3], 3)
    assert stored.HasField("commit_time")


async def test_reading_starts_after_the_named_cursor(stubs: Stubs) -> None:
    after = await cursors(stubs)
    await commit(stubs, after[3])
    call = subscribed(stubs)
    assert (await call.read()).started.position == 3
    assert [record.position for record in (await call.read()).batch.records] == [4, 5]
    call.cancel()
    waited = await stubs.episodes.WaitEpisodes(pb.WaitEpisodesRequest(start=types.StartPoint(cursor_name="writer")))
    assert [record.position for record in waited.records] == [4, 5]


async def test_a_name_without_a_cursor_is_not_found(stubs: Stubs) -> None:
    for call in (get(stubs), subscribed(stubs).read()):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "CURSOR_NOT_FOUND")
        assert refused.metadata["name"] == "writer"


@pytest.mark.parametrize("name", ["", "two words", "x" * 129])
async def test_a_name_is_an_identifier(stubs: Stubs, name: str) -> None:
    refused = [await refusal(commit(stubs, b"", name)), await refusal(get(stubs, name))]
    assert [one.reason for one in refused] == ["INVALID_FIELD"] * 2
    assert [one.fields for one in refused] == [["name", "cursor"], ["name"]]


async def test_a_start_with_a_bad_name_is_refused(stubs: Stubs) -> None:
    refused = await refusal(subscribed(stubs, "two words").read())
    assert (refused.reason, refused.fields) == ("INVALID_FIELD", ["start.cursor_name"])


async def test_a_cursor_moves_forwards_only_and_says_both_places(stubs: Stubs) -> None:
    after = await cursors(stubs)
    await commit(stubs, after[3])
    refused = await refusal(commit(stubs, after[2]))
    assert (refused.code, refused.reason) == ABORTED
    assert refused.metadata == {"name": "writer", "position": "2", "actual": "3"}
    assert (await commit(stubs, after[3])).position == 3
    assert (await get(stubs)).position == 3
    assert (await commit(stubs, after[5])).position == 5


async def test_an_expected_cursor_has_to_be_the_stored_one(stubs: Stubs) -> None:
    after = await cursors(stubs)
    await commit(stubs, after[2])
    refused = await refusal(commit(stubs, after[4], expected_cursor=after[1]))
    assert (refused.code, refused.reason) == ABORTED
    assert refused.metadata == {"name": "writer", "position": "4", "expected": "1", "actual": "2"}
    assert (await commit(stubs, after[4], expected_cursor=after[2])).position == 4
    refused = await refusal(commit(stubs, after[3], expected_cursor=after[4]))
    assert (refused.code, refused.reason) == ABORTED
    assert (await get(stubs)).position == 4


async def test_a_commit_that_is_sent_again_succeeds_whatever_it_expects(stubs: Stubs) -> None:
    after = await cursors(stubs)
    await commit(stubs, after[1])
    for _ in range(2):
        assert (await commit(stubs, after[4], expected_cursor=after[1])).position == 4


async def test_nothing_stored_can_be_expected_and_is_told(stubs: Stubs) -> None:
    after = await cursors(stubs)
    refused = await refusal(commit(stubs, after[2], expected_cursor=after[1]))
    assert (refused.code, refused.reason) == ABORTED
    assert "actual" not in refused.metadata
    assert (await commit(stubs, after[2], expected_cursor=b"")).position == 2
    refused = await refusal(commit(stubs, after[3], expected_cursor=b""))
    assert (refused.code, refused.reason, refused.metadata["actual"]) == (*ABORTED, "2")


async def test_a_foreign_or_altered_cursor_is_refused_and_nothing_is_stored(stubs: Stubs) -> None:
    await stubs.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace="other"))
    cursor = (await cursors(stubs))[1]
    altered = bytes([*cursor[:-9], cursor[-9] ^ 1, *cursor[-8:]])
    for fields, reason in [
        ({"cursor": cursor, "namespace": "other"}, "CURSOR_FOREIGN"),
        ({"cursor": altered}, "CURSOR_MALFORMED"),
        ({"cursor": cursor[:-1]}, "CURSOR_MALFORMED"),
        ({"cursor": cursor, "expected_cursor": altered}, "CURSOR_MALFORMED"),
    ]:
        refused = await refusal(stubs.episodes.CommitCursor(pb.CommitCursorRequest(name="writer", **fields)))  # type: ignore[arg-type]
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    for namespace in ("", "other"):
        assert (await refusal(get(stubs, namespace=namespace))).reason == "CURSOR_NOT_FOUND"


async def test_names_of_namespaces_are_apart_and_go_with_them(stubs: Stubs, database_url: str) -> None:
    await stubs.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace="other"))
    await commit(stubs, await cursor_at(stubs, 0))
    refused = await refusal(get(stubs, namespace="other"))
    assert refused.reason == "CURSOR_NOT_FOUND"
    request = pb.SubscribeEpisodesRequest(namespace="other")
    call: Any = stubs.episodes.SubscribeEpisodes(request, timeout=WAIT)
    await commit(stubs, (await call.read()).started.cursor, namespace="other")
    call.cancel()
    await stubs.namespaces.DeleteNamespace(namespaces.DeleteNamespaceRequest(namespace="other"))
    assert (await refusal(get(stubs, namespace="other"))).reason == "NAMESPACE_NOT_FOUND"
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        rows = await (await connection.execute("SELECT name, position FROM cursors")).fetchall()
    assert rows == [("writer", 0)]


async def test_nothing_is_stored_for_a_namespace_that_is_being_deleted(stubs: Stubs, database_url: str) -> None:
    await stubs.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace="other"))
    call: Any = stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(namespace="other"), timeout=WAIT)
    cursor = (await call.read()).started.cursor
    call.cancel()
    async with await psycopg.AsyncConnection.connect(database_url) as deleting:
        await deleting.execute("SELECT FROM namespaces WHERE name = 'other' FOR UPDATE")
        committing = asyncio.ensure_future(refusal(commit(stubs, cursor, namespace="other")))
        await waits_for_a_lock(database_url)
        await deleting.execute("UPDATE namespaces SET name = NULL WHERE name = 'other'")
        await deleting.commit()
    assert (await committing).reason == "NAMESPACE_NOT_FOUND"


async def waits_for_a_lock(database_url: str) -> None:
    """Returns when some statement does."""
    question = b"SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with (
        asyncio.timeout(WAIT),
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection,
    ):
        while not await (await connection.execute(question)).fetchall():
            pass


async def test_a_cursor_below_the_logs_beginning_can_be_kept_and_tells_when_it_is_used(
    stubs: Stubs, database_url: str
) -> None:
    after = await cursors(stubs)
    await run(database_url, "DELETE FROM log WHERE position <= 3", "UPDATE namespaces SET floor = 3")
    assert (await commit(stubs, after[2])).position == 2
    assert (await refusal(subscribed(stubs).read())).reason == "CURSOR_EXPIRED"
    assert (await commit(stubs, after[4])).position == 4


async def test_a_cursor_of_another_history_is_refused_and_one_that_is_stored_makes_room(
    stubs: Stubs, database_url: str
) -> None:
    after = await cursors(stubs)
    await commit(stubs, after[4])
    await run(database_url, "DELETE FROM log WHERE position > 2")
    await stubs.append(*(new_episode("another history") for _ in range(3)), agent_id="b")
    refused = await refusal(commit(stubs, after[5]))
    assert (refused.code, refused.reason) == DIVERGED
    refused = await refusal(subscribed(stubs).read())
    assert (refused.code, refused.reason) == DIVERGED
    assert (await get(stubs)).cursor == after[4]
    assert (await commit(stubs, after[1])).position == 1
    assert (await get(stubs)).cursor == after[1]


async def test_a_cursor_of_an_older_epoch_comes_back_as_it_was_and_makes_room(stubs: Stubs, database_url: str) -> None:
    after = await cursors(stubs)
    await commit(stubs, after[4])
    await run(database_url, "UPDATE namespaces SET epoch = gen_random_uuid()")
    async with (
        running_server(settings(database_url), lambda _: None) as running,  # it has not seen the old epoch
        grpc.aio.insecure_channel(address(running)) as channel,
    ):
        fresh = Stubs(channel)
        assert (await get(fresh)).cursor == after[4]
        assert (await refusal(subscribed(fresh).read())).reason == "CURSOR_DIVERGED"
        new = await cursor_at(fresh, 1)
        assert (await commit(fresh, new)).position == 1
        assert (await get(fresh)).cursor == new


async def test_of_many_who_commit_at_once_through_two_replicas_the_farthest_stays(database_url: str) -> None:
    count = 40
    async with (
        running_server(settings(database_url), lambda _: None) as one,
        running_server(settings(database_url), lambda _: None) as two,
        grpc.aio.insecure_channel(address(one)) as first,
        grpc.aio.insecure_channel(address(two)) as second,
    ):
        replicas = [Stubs(first), Stubs(second)]
        after = await cursors(replicas[0], count)
        for name in ("one", "two", "three", "four", "five"):
            calls = [commit(replicas[number % 2], cursor, name) for number, cursor in enumerate(after)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [one.position for one in outcomes if isinstance(one, pb.CommitCursorResponse)][-1] == count
            refused = [one for one in outcomes if isinstance(one, grpc.aio.AioRpcError)]
            assert {one.code() for one in refused} <= {grpc.StatusCode.ABORTED}
            assert (await get(replicas[1], name)).position == count


async def test_of_two_who_expect_the_same_one_wins(database_url: str) -> None:
    async with (
        running_server(settings(database_url), lambda _: None) as one,
        running_server(settings(database_url), lambda _: None) as two,
        grpc.aio.insecure_channel(address(one)) as first,
        grpc.aio.insecure_channel(address(two)) as second,
    ):
        replicas = [Stubs(first), Stubs(second)]
        after = await cursors(replicas[0], 20)
        await commit(replicas[0], after[0])
        for position in range(0, 18, 2):
            expected = bytes((await get(replicas[0])).cursor)
            calls = [
                commit(replica, after[position + 1 + number], expected_cursor=expected)
                for number, replica in enumerate(replicas)
            ]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            won = [one for one in outcomes if isinstance(one, pb.CommitCursorResponse)]
            assert len(won) == 1
            assert (await get(replicas[1])).position == won[0].position


async def test_a_cursor_outlives_the_server_that_stored_it(start_server: StartServer, database_url: str) -> None:
    options = ("--database-url", database_url, "--embedder", "none")
    server = await start_server(*options)
    async with hivemem.Client(server.address) as memory:
        done = await (await memory.session("s")).agent("a").append(summary="x")
        cursor = (await memory.resume(session_id="s")).cursor
        await memory.commit_cursor("writer", cursor)
    server.kill()
    await server.ended()
    server = await start_server(*options)
    async with hivemem.Client(server.address) as memory:
        found = await memory.cursor("writer")
        assert (found.cursor, found.position) == (cursor, done.position)
