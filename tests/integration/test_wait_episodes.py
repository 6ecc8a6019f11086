"""Long polls: at most one batch, at once if there is one, and always a cursor to go on from."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from fix_server import address, settings
from fix_stubs import Stubs, new_episode, refusal
from google.protobuf.duration_pb2 import Duration
from hivemem.v1 import admin_service_pb2 as admin
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2 as types
from hivemem_server.bootstrap import running_server

WAIT = 30.0
NONE = types.Filter(kinds=["none"])


def wait(stubs: Stubs, timeout: float | None = None, within: float | None = WAIT, **fields: Any) -> Any:
    request = pb.WaitEpisodesRequest(**fields)
    if timeout is not None:
        request.timeout.FromNanoseconds(int(timeout * 1e9))
    return stubs.episodes.WaitEpisodes(request, timeout=within)


def positions(response: pb.WaitEpisodesResponse) -> list[int]:
    return [record.position for record in response.records]


async def waiting(stubs: Stubs, count: int = 1) -> None:
    """Returns when so many follow the log."""
    async with asyncio.timeout(WAIT):
        while (await stubs.admin.GetStats(admin.GetStatsRequest())).server.subscription_count < count:
            pass


async def test_what_is_there_comes_at_once_and_the_cursor_goes_on(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(5)))
    first = await wait(stubs, max_batch_size=3)
    assert (positions(first), first.position, first.head_position) == ([1, 2, 3], 3, 5)
    second = await wait(stubs, max_batch_size=3, start=types.StartPoint(cursor=first.cursor))
    assert (positions(second), second.position, second.head_position) == ([4, 5], 5, 5)


async def test_an_append_wakes_it(stubs: Stubs) -> None:
    await stubs.session()
    call = asyncio.ensure_future(wait(stubs))
    await waiting(stubs)
    await stubs.append(new_episode())
    woken = await call
    assert (positions(woken), woken.position, woken.head_position) == ([1], 1, 1)


async def test_an_append_through_another_replica_wakes_it(database_url: str) -> None:
    async with (
        running_server(settings(database_url), lambda _: None) as one,
        running_server(settings(database_url), lambda _: None) as two,
        grpc.aio.insecure_channel(address(one)) as first,
        grpc.aio.insecure_channel(address(two)) as second,
    ):
        await Stubs(first).session()
        call = asyncio.ensure_future(wait(Stubs(second)))
        await waiting(Stubs(second))
        await Stubs(first).append(new_episode())
        assert positions(await call) == [1]


async def test_what_does_not_match_does_not_wake_it_but_moves_the_cursor(stubs: Stubs) -> None:
    await stubs.session()
    call = asyncio.ensure_future(wait(stubs, timeout=1.0, filter=NONE))
    await waiting(stubs)
    await stubs.append(*(new_episode() for _ in range(3)))
    empty = await call
    assert (positions(empty), empty.position, empty.head_position) == ([], 3, 3)
    await stubs.append(new_episode())
    assert positions(await wait(stubs, start=types.StartPoint(cursor=empty.cursor))) == [4]


async def test_a_timeout_of_zero_looks_once_at_everything_that_is_there(stubs: Stubs) -> None:
    empty = await wait(stubs, timeout=0)
    assert (positions(empty), empty.position, empty.head_position) == ([], 0, 0)
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(3)))
    assert positions(await wait(stubs, timeout=0, start=types.StartPoint(cursor=empty.cursor))) == [1, 2, 3]
    empty = await wait(stubs, timeout=0, filter=NONE)
    assert (positions(empty), empty.position) == ([], 3)


async def test_a_timeout_below_zero_is_clamped(stubs: Stubs) -> None:
    assert positions(await stubs.episodes.WaitEpisodes(pb.WaitEpisodesRequest(timeout=Duration(seconds=-5)))) == []


async def test_a_deadline_before_the_timeout_is_met_with_an_answer(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(new_episode())
    empty = await wait(stubs, timeout=60, within=1.5, filter=NONE)
    assert (positions(empty), empty.position) == ([], 1)


async def test_a_server_that_drains_answers_with_the_cursor(database_url: str) -> None:
    async with contextlib.AsyncExitStack() as server:
        changed = settings(database_url, drain_seconds=5.0)
        running = await server.enter_async_context(running_server(changed, lambda _: None))
        async with grpc.aio.insecure_channel(address(running)) as channel:
            stubs = Stubs(channel)
            await stubs.session()
            await stubs.append(new_episode())
            call = asyncio.ensure_future(wait(stubs, timeout=60, filter=NONE))
            await waiting(stubs)
            await server.aclose()
            away = await call
    assert (positions(away), away.position) == ([], 1)
    assert away.cursor


async def test_many_waits_cost_no_database_connection_each(stubs: Stubs) -> None:
    await stubs.session()
    calls = [asyncio.ensure_future(wait(stubs)) for _ in range(100)]
    await waiting(stubs, 100)
    await stubs.append(new_episode())
    assert [positions(woken) for woken in await asyncio.gather(*calls)] == [[1]] * 100


async def test_a_caller_that_goes_away_leaves_nothing_behind(stubs: Stubs) -> None:
    call = wait(stubs)
    await waiting(stubs)
    call.cancel()
    async with asyncio.timeout(WAIT):
        while (await stubs.admin.GetStats(admin.GetStatsRequest())).server.subscription_count:
            pass


async def test_large_records_come_in_messages_of_bounded_size_without_gap_or_repeat(stubs: Stubs) -> None:
    await stubs.session()
    for _ in range(3):
        await stubs.append(*(new_episode("ü" * 16_000) for _ in range(60)))
    seen: list[int] = []
    start = types.StartPoint()
    while len(seen) < 180:
        response = await wait(stubs, start=start, max_batch_size=1_000)
        assert response.ByteSize() <= 3 << 20
        seen += positions(response)
        assert response.position == seen[-1]
        start = types.StartPoint(cursor=response.cursor)
    assert seen == list(range(1, 181))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_batch_size": -1}, "INVALID_FIELD"),
    ({"filter": types.Filter(session_ids=map(str, range(257)))}, "INVALID_FIELD"),
    ({"start": types.StartPoint(position=-1)}, "INVALID_FIELD"),
    ({"start": types.StartPoint(cursor=b"x")}, "CURSOR_MALFORMED"),
    ({"start": types.StartPoint(cursor_name="nobody")}, "CURSOR_NOT_FOUND"),
    ({"namespace": "nowhere"}, "NAMESPACE_NOT_FOUND"),
    ({"relevance": pb.RelevanceQuery(relevant_to="x")}, "EMBEDDER_UNAVAILABLE"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
async def test_it_refuses_what_a_subscription_refuses(stubs: Stubs, fields: dict[str, Any], reason: str) -> None:
    assert (await refusal(wait(stubs, **fields))).reason == reason
    subscribing: Any = stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(**fields), timeout=WAIT)
    assert (await refusal(subscribing.read())).reason == reason
