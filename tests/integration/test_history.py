"""What readers and writers are told when the log was cut, restored, erased in part, or claimed by others."""

from __future__ import annotations

from typing import Any

import grpc
import psycopg
import pytest
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import session_service_pb2 as sessions
from hivemem.v1 import types_pb2 as types

WAIT = 20.0


async def run(database_url: str, statement: Any) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute(statement)


async def cursor_after_all(stubs: Stubs) -> bytes:
    """The cursor of the log's end."""
    now = types.StartPoint(now=types.StartPoint.Now())
    call: Any = stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(start=now), timeout=WAIT)
    started = (await call.read()).started
    call.cancel()
    return bytes(started.cursor)


async def ten_episodes(stubs: Stubs) -> bytes:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(10)))
    return await cursor_after_all(stubs)


def subscribed(stubs: Stubs, start: types.StartPoint) -> Any:
    return stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(start=start), timeout=WAIT)


def resumed(stubs: Stubs, cursor: bytes) -> Any:
    return stubs.sessions.ResumeSession(sessions.ResumeSessionRequest(session_id="s", since_cursor=cursor))


async def test_a_cursor_below_the_logs_beginning_is_told_where_to_start(stubs: Stubs, database_url: str) -> None:
    cursor = await ten_episodes(stubs)
    await stubs.append(*(new_episode() for _ in range(10)))
    await run(database_url, "DELETE FROM log WHERE position <= 15")
    await run(database_url, "UPDATE namespaces SET floor = 15")
    for call in (subscribed(stubs, types.StartPoint(cursor=cursor)).read(), resumed(stubs, cursor)):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.OUT_OF_RANGE, "CURSOR_EXPIRED")
        assert refused.metadata["first_position"] == "16"
    started = (await subscribed(stubs, types.StartPoint()).read()).started
    assert (started.position, started.first_position) == (15, 16)
    assert (await stubs.append(new_episode())).episodes[0].position == 21


async def test_positions_go_on_after_the_whole_log_was_cut(stubs: Stubs, database_url: str) -> None:
    await ten_episodes(stubs)
    await run(database_url, "DELETE FROM log")
    await run(database_url, "UPDATE namespaces SET floor = 10")
    assert (await stubs.append(new_episode())).episodes[0].position == 11


@pytest.mark.parametrize("written_since", [0, 1, 5])
async def test_a_cursor_of_another_history_is_data_loss(stubs: Stubs, database_url: str, written_since: int) -> None:
    cursor = await ten_episodes(stubs)
    await run(database_url, "DELETE FROM log WHERE position > 7")
    for _ in range(written_since):
        await stubs.append(new_episode("another history"), agent_id="b")
    for call in (subscribed(stubs, types.StartPoint(cursor=cursor)).read(), resumed(stubs, cursor)):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.DATA_LOSS, "CURSOR_DIVERGED")


async def test_a_live_stream_ends_when_its_history_changes(stubs: Stubs, database_url: str) -> None:
    await ten_episodes(stubs)
    call = subscribed(stubs, types.StartPoint())
    while (await call.read()).WhichOneof("event") != "caught_up":
        pass
    await run(database_url, "DELETE FROM log WHERE position > 7")
    await stubs.append(*(new_episode("another history") for _ in range(5)), agent_id="b")
    refused = await refusal(call.read())
    assert (refused.code, refused.reason) == (grpc.StatusCode.DATA_LOSS, "CURSOR_DIVERGED")


async def test_an_erased_episode_stays_erased(stubs: Stubs, database_url: str) -> None:
    await stubs.session()
    new = new_episode()
    await stubs.append(new)
    await run(database_url, "UPDATE log SET digest = NULL, record_kind = 4, summary = NULL")
    for call in (stubs.append(new), stubs.episodes.GetEpisode(pb.GetEpisodeRequest(position=1))):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "EPISODE_ERASED")


async def test_a_claimed_thread_is_ended_by_its_holder_or_with_its_fence(stubs: Stubs, database_url: str) -> None:
    await stubs.session()
    opened = [types.NewThread(thread_id=name, text=name) for name in ("one", "two", "three")]
    await stubs.append(new_episode(open_threads=opened), agent_id="holder")
    await run(
        database_url,
        "UPDATE threads SET state = 2, claimed_by = 1, fence = 7, lease = '1 hour', claim_time = now(),"
        " expire_time = now() + CASE thread_id WHEN 'three' THEN interval '-1 s' ELSE interval '1 hour' END",
    )

    def ending(thread_id: str, fence: int = 0) -> types.NewEpisode:
        return new_episode(resolves=[types.ThreadReference(thread_id=thread_id, fence=fence)])

    refused = await refusal(stubs.append(ending("one"), agent_id="other"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CLAIM_HELD")
    assert refused.metadata["agent_id"] == "holder"
    refused = await refusal(stubs.append(ending("one", fence=6), agent_id="holder"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ABORTED, "FENCE_STALE")
    assert refused.metadata["current_fence"] == "7"
    await stubs.append(ending("one", fence=7), agent_id="other")
    await stubs.append(ending("two"), agent_id="holder")
    await stubs.append(ending("three"), agent_id="other")


async def test_an_acknowledgement_means_durable_whatever_the_databases_default(
    postgres: str, database_url: str
) -> None:
    from hivemem_server.postgres.database import Database

    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        name = psycopg.sql.Identifier(connection.info.dbname)
        for setting in ("synchronous_commit = off", "default_transaction_isolation = 'repeatable read'"):
            await connection.execute(psycopg.sql.SQL("ALTER DATABASE {} SET ").format(name) + psycopg.sql.SQL(setting))
    async with Database(database_url) as database:
        shown = await database.fetch(
            "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
        )
    assert shown == [("on", "read committed")]
