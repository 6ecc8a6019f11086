"""Subscriptions: catch-up then live, in one order, without gap or repeat."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import hivemem
import pytest
from fix_server import address, settings
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import namespace_service_pb2
from hivemem.v1 import types_pb2 as types
from hivemem_server.bootstrap import running_server

WAIT = 20.0


async def messages(stubs: Stubs, **fields: object) -> AsyncIterator[pb.SubscribeEpisodesResponse]:
    """The messages of a subscription, for at most WAIT seconds."""
    call = stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(**fields), timeout=WAIT)  # type: ignore[arg-type]
    try:
        async for message in call:
            yield message
    finally:
        call.cancel()


async def until(kind: str, stream: AsyncIterator[pb.SubscribeEpisodesResponse]) -> list[pb.SubscribeEpisodesResponse]:
    """Messages up to the first of a kind."""
    seen = []
    async for message in stream:
        seen.append(message)
        if message.WhichOneof("event") == kind:
            return seen
    raise AssertionError(f"the stream ended before {kind}: {seen}")


def positions(seen: list[pb.SubscribeEpisodesResponse]) -> list[int]:
    return [record.position for message in seen for record in message.batch.records]


def kinds(seen: list[pb.SubscribeEpisodesResponse]) -> list[str]:
    return [str(message.WhichOneof("event")) for message in seen]


async def test_what_is_there_comes_in_batches_then_the_stream_says_that_it_is_live(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(5)))
    seen = await until("caught_up", messages(stubs, max_batch_size=2))
    assert kinds(seen) == ["started", "batch", "batch", "batch", "caught_up"]
    assert positions(seen) == [1, 2, 3, 4, 5]


async def test_what_is_appended_later_is_pushed(stubs: Stubs) -> None:
    await stubs.session()
    stream = messages(stubs)
    await until("caught_up", stream)
    await stubs.append(new_episode())
    assert positions(await until("batch", stream)) == [1]


async def test_every_message_has_a_cursor_that_resumes_right_after_it(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(7)))
    seen = await until("caught_up", messages(stubs, max_batch_size=2))
    read = 0
    for message in seen:
        read += len(message.batch.records)
        cursor = getattr(message, str(message.WhichOneof("event"))).cursor
        again = await until("caught_up", messages(stubs, start=types.StartPoint(cursor=cursor)))
        assert positions(again) == list(range(read + 1, 8))


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (types.StartPoint(), [1, 2, 3]),
        (types.StartPoint(beginning=types.StartPoint.Beginning()), [1, 2, 3]),
        (types.StartPoint(now=types.StartPoint.Now()), []),
        (types.StartPoint(position=2), [3]),
        (types.StartPoint(position=3), []),
    ],
)
async def test_a_start_is_exclusive(stubs: Stubs, start: types.StartPoint, expected: list[int]) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(3)))
    assert positions(await until("caught_up", messages(stubs, start=start))) == expected


async def test_a_start_by_time_begins_after_what_was_stored_then(stubs: Stubs) -> None:
    await stubs.session()
    answers = [await stubs.append(new_episode()) for _ in range(4)]
    for index, answer in enumerate(answers, 1):
        start = types.StartPoint(time=answer.episodes[0].commit_time)
        seen = await until("caught_up", messages(stubs, start=start))
        assert positions(seen) == list(range(index + 1, 5))


async def test_a_start_ahead_of_the_head_waits_until_the_log_gets_there(stubs: Stubs) -> None:
    await stubs.session()
    stream = messages(stubs, start=types.StartPoint(position=2))
    await until("started", stream)
    for _ in range(3):
        await stubs.append(new_episode())
    assert positions(await until("batch", stream)) == [3]


FILTERS = [
    (types.Filter(session_ids=["one"]), [1, 2, 5]),
    (types.Filter(agent_ids=["b"]), [2, 4]),
    (types.Filter(exclude_agent_ids=["b"]), [1, 3, 5]),
    (types.Filter(user_ids=["u2"]), [3, 4]),
    (types.Filter(kinds=["finding"]), [3]),
    (types.Filter(any_tags=["x", "y"]), [1, 4]),
    (types.Filter(all_tags=["x", "z"]), [1]),
    (types.Filter(to_agents=["c"]), [5]),
    (types.Filter(positions=types.PositionRange(after=1, through=3)), [2, 3]),
    (types.Filter(session_ids=["one"], agent_ids=["a"], any_tags=["x"]), [1]),
    (types.Filter(session_ids=["none"]), []),
]


@pytest.mark.parametrize(("wanted", "expected"), FILTERS)
async def test_a_filter_means_the_same_to_a_subscription_and_to_a_list(
    stubs: Stubs, wanted: types.Filter, expected: list[int]
) -> None:
    await stubs.session("one", user_id="u1")
    await stubs.session("two", user_id="u2")
    await stubs.append(new_episode(tags=["x", "z"]), session_id="one", agent_id="a")
    await stubs.append(new_episode(), session_id="one", agent_id="b")
    await stubs.append(new_episode(kind="finding"), session_id="two", agent_id="a")
    await stubs.append(new_episode(tags=["y"]), session_id="two", agent_id="b")
    await stubs.append(new_episode(to_agents=["c", "d"]), session_id="one", agent_id="a")
    assert positions(await until("caught_up", messages(stubs, filter=wanted, max_batch_size=2))) == expected
    listed = await stubs.episodes.ListEpisodes(pb.ListEpisodesRequest(filter=wanted))
    assert [episode.position for episode in listed.episodes] == expected


async def test_a_filter_without_matches_still_moves_the_cursor(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(4)))
    stream = messages(stubs, filter=types.Filter(kinds=["none"]))
    assert (await until("caught_up", stream))[-1].caught_up.position == 4


async def test_silence_is_broken_by_progress_that_covers_what_did_not_match(stubs: Stubs) -> None:
    await stubs.session()
    wanted = types.Filter(kinds=["none"])
    request = pb.SubscribeEpisodesRequest(filter=wanted)
    request.heartbeat_interval.FromSeconds(1)
    call: Any = stubs.episodes.SubscribeEpisodes(request, timeout=WAIT)
    assert (await call.read()).started.heartbeat_interval.seconds == 1
    assert (await call.read()).WhichOneof("event") == "caught_up"
    await stubs.append(new_episode())
    progress = (await call.read()).progress
    assert (progress.position, progress.head_position) == (1, 1)
    call.cancel()


async def test_thread_events_come_to_those_who_ask_for_them(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(new_episode(open_threads=[types.NewThread(thread_id="t", text="t")]))
    await stubs.append(new_episode(resolves=[types.ThreadReference(thread_id="t")]), agent_id="b")
    assert positions(await until("caught_up", messages(stubs))) == [1, 2]
    wanted = [types.RECORD_KIND_EPISODE, types.RECORD_KIND_THREAD_EVENT]
    seen = await until("caught_up", messages(stubs, record_kinds=wanted))
    event = seen[1].batch.records[2].thread_event
    assert (event.thread_id, event.type, event.agent_id) == ("t", types.THREAD_EVENT_TYPE_RESOLVED, "b")
    assert positions(seen) == [1, 2, 3]


async def test_wishes_are_clamped_and_told(stubs: Stubs) -> None:
    request = pb.SubscribeEpisodesRequest(max_batch_size=100_000)
    request.heartbeat_interval.FromMilliseconds(1)
    request.stall_timeout.FromSeconds(100_000)
    call: Any = stubs.episodes.SubscribeEpisodes(request, timeout=WAIT)
    started = (await call.read()).started
    call.cancel()
    assert started.max_batch_size == 1_000
    assert started.heartbeat_interval.ToMilliseconds() == 1_000
    assert started.stall_timeout.ToSeconds() == 600


async def test_a_cursor_of_another_namespace_or_altered_is_refused(stubs: Stubs) -> None:
    await stubs.namespaces.CreateNamespace(namespace_service_pb2.CreateNamespaceRequest(namespace="other"))
    cursor = (await until("started", messages(stubs)))[0].started.cursor
    altered = bytes([*cursor[:-9], cursor[-9] ^ 1, *cursor[-8:]])
    for start, namespace, reason in [
        (cursor, "other", "CURSOR_FOREIGN"), (altered, "", "CURSOR_MALFORMED"), (cursor[:-1], "", "CURSOR_MALFORMED"),
        (b"x", "", "CURSOR_MALFORMED"),
    ]:  # fmt: skip
        request = pb.SubscribeEpisodesRequest(namespace=namespace, start=types.StartPoint(cursor=start))
        refused = await refusal(stubs.episodes.SubscribeEpisodes(request, timeout=WAIT).read())
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)


async def test_two_servers_on_one_database_deliver_each_others_appends(database_url: str) -> None:
    async with (
        running_server(settings(database_url), lambda _: None) as one,
        running_server(settings(database_url), lambda _: None) as two,
        hivemem.Client(address(one)) as writing,
        hivemem.Client(address(two)) as reading,
    ):
        session = await writing.session("s")
        agent = session.agent("a")
        followed = reading.subscribe()
        seen: list[int] = []

        async def follow() -> None:
            async with followed as stream:
                async for episode in stream:
                    seen.append(episode.position)
                    if len(seen) == 30:
                        return

        following = asyncio.create_task(follow())
        for number in range(30):
            await agent.append(summary=f"number {number}")
        async with asyncio.timeout(WAIT):
            await following
        assert seen == list(range(1, 31))


async def test_a_server_that_stops_sends_its_readers_away_with_a_cursor(database_url: str) -> None:
    async with contextlib.AsyncExitStack() as server:
        running = await server.enter_async_context(running_server(settings(database_url), lambda _: None))
        async with grpc.aio.insecure_channel(address(running)) as channel:
            stubs = Stubs(channel)
            await stubs.session()
            await stubs.append(new_episode())
            stream = messages(stubs)
            await until("caught_up", stream)
            ending = asyncio.create_task(until("going_away", stream))
            await asyncio.sleep(0)
            await server.aclose()
            away = (await ending)[-1].going_away
    assert away.position == 1
    assert away.cursor


async def test_a_stream_that_is_old_is_asked_to_come_again_at_once_and_goes_on_where_it_was(database_url: str) -> None:
    aged = settings(database_url, subscription_age_seconds=1.0)
    async with running_server(aged, lambda _: None) as running, grpc.aio.insecure_channel(address(running)) as channel:
        stubs = Stubs(channel)
        await stubs.session()
        await stubs.append(new_episode())
        away = (await until("going_away", messages(stubs)))[-1].going_away
        assert away.position == 1
        assert not away.HasField("retry_delay")
        await stubs.append(new_episode())
        again = await until("batch", messages(stubs, start={"cursor": away.cursor}))
        assert [record.position for record in again[-1].batch.records] == [2]
