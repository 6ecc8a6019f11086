"""AppendEpisodeStream: many appends over one call, in order, each answered in-band."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from fix_server import address, settings
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import error_reason_pb2 as reasons
from hivemem.v1 import types_pb2 as types
from hivemem.v1.namespace_service_pb2 import CreateNamespaceRequest
from hivemem_server.bootstrap import running_server

Request = pb.AppendEpisodeStreamRequest
WAIT = 30.0


def opening(**fields: str) -> pb.AppendEpisodeStreamRequest:
    return Request(open=Request.Open(**({"session_id": "s", "agent_id": "a"} | fields)))  # type: ignore[arg-type]


def item(sequence: int, *episodes: types.NewEpisode, **fields: Any) -> pb.AppendEpisodeStreamRequest:
    return Request(append=Request.Append(sequence=sequence, episodes=episodes or [new_episode()], **fields))


async def answers(stubs: Stubs, requests: Iterable[Request]) -> list[pb.AppendEpisodeStreamResponse]:
    async def sent() -> AsyncIterator[Request]:
        for request in requests:
            yield request

    call = stubs.episodes.AppendEpisodeStream(sent(), timeout=WAIT)
    return [answer async for answer in call]


async def test_appends_are_answered_in_the_order_sent_and_stored_in_it(stubs: Stubs) -> None:
    await stubs.session()
    got = await answers(stubs, [opening(), *(item(number) for number in range(1, 201))])
    assert [answer.sequence for answer in got] == list(range(1, 201))
    assert [answer.appended.episodes[0].position for answer in got] == list(range(1, 201))
    assert [answer.appended.episodes[0].revision for answer in got] == list(range(1, 201))


async def test_a_refused_item_has_its_own_status_and_those_after_it_go_on(stubs: Stubs) -> None:
    await stubs.session()
    known = new_episode("known")
    other = new_episode("other", episode_id=known.episode_id)
    conflict = pb.Expectation(revision=9)
    got = await answers(
        stubs,
        [opening(), item(1, known), item(2, new_episode("")), item(3, other), item(4, known),
         item(5, expectation=conflict), item(6)],
    )  # fmt: skip
    assert [answer.WhichOneof("outcome") for answer in got] == [
        "appended", "failure", "failure", "appended", "failure", "appended",
    ]  # fmt: skip
    assert got[1].failure.reason == reasons.ERROR_REASON_INVALID_FIELD
    assert [violation.field for violation in got[1].failure.violations] == ["episodes[0].summary"]
    assert got[2].failure.reason == reasons.ERROR_REASON_EPISODE_ID_REUSED
    assert got[3].appended.deduplicated
    assert dict(got[4].failure.metadata) == {"expected": "9", "actual": "1"}
    assert await stubs.positions() == [1, 2]


async def test_expectations_are_judged_after_the_items_before_them(stubs: Stubs) -> None:
    await stubs.session()
    chain = [item(number, expectation=pb.Expectation(revision=number - 1)) for number in range(2, 50)]
    got = await answers(stubs, [opening(), item(1), *chain])
    assert all(answer.WhichOneof("outcome") == "appended" for answer in got)


async def test_a_stream_that_is_not_opened_or_goes_backwards_ends_with_an_error(stubs: Stubs) -> None:
    await stubs.session()
    for requests, field in [
        ([], "part"),
        ([item(1)], "part"),
        ([opening(), opening()], "part"),
        ([opening(), item(2), item(2)], "append.sequence"),
        ([opening(), item(0)], "append.sequence"),
    ]:
        refused = await refusal(answers(stubs, requests))
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert refused.fields == [field]


async def test_what_was_sent_before_a_protocol_error_is_answered(stubs: Stubs) -> None:
    await stubs.session()
    call: Any = stubs.episodes.AppendEpisodeStream(timeout=WAIT)
    for request in (opening(), item(1), opening()):
        await call.write(request)
    assert (await call.read()).appended.episodes[0].position == 1
    assert (await refusal(call.read())).reason == "INVALID_FIELD"


async def test_whatever_refuses_an_item_is_said_in_band(stubs: Stubs) -> None:
    await stubs.session()
    for opened, reason in [
        (opening(namespace="none"), reasons.ERROR_REASON_NAMESPACE_NOT_FOUND),
        (opening(namespace="no name"), reasons.ERROR_REASON_INVALID_FIELD),
        (opening(session_id="none"), reasons.ERROR_REASON_SESSION_NOT_FOUND),
        (opening(agent_id=""), reasons.ERROR_REASON_INVALID_FIELD),
        (
            Request(open=Request.Open(session_id="s", agent_id="a", writer_fence=1)),
            reasons.ERROR_REASON_NOT_IMPLEMENTED,
        ),
    ]:
        got = await answers(stubs, [opened, item(1), item(2)])
        assert [(answer.sequence, answer.failure.reason) for answer in got] == [(1, reason), (2, reason)]
    assert await stubs.positions() == []


async def test_a_namespace_that_comes_later_takes_the_items_after_it(stubs: Stubs) -> None:
    call: Any = stubs.episodes.AppendEpisodeStream(timeout=WAIT)
    await call.write(opening(namespace="later"))
    await call.write(item(1))
    assert (await call.read()).failure.reason == reasons.ERROR_REASON_NAMESPACE_NOT_FOUND
    await stubs.namespaces.CreateNamespace(CreateNamespaceRequest(namespace="later"))
    await stubs.session(namespace="later")
    await call.write(item(2))
    assert (await call.read()).appended.episodes[0].position == 1
    call.cancel()


async def test_a_server_that_stops_ends_an_idle_stream_at_once(database_url: str) -> None:
    async with contextlib.AsyncExitStack() as server:
        patient = settings(database_url, drain_seconds=60)  # longer than the test may take
        running = await server.enter_async_context(running_server(patient, lambda _: None))
        async with grpc.aio.insecure_channel(address(running)) as channel:
            stubs = Stubs(channel)
            await stubs.session()
            call: Any = stubs.episodes.AppendEpisodeStream()
            await call.write(opening())
            await call.write(item(1))
            assert (await call.read()).appended.episodes[0].position == 1
            async with asyncio.timeout(WAIT):
                await server.aclose()
                refused = await refusal(call.read())
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert refused.retry_seconds


async def test_a_server_that_stops_answers_what_it_stores(database_url: str) -> None:
    answered: list[int] = []
    async with contextlib.AsyncExitStack() as server:
        running = await server.enter_async_context(running_server(settings(database_url), lambda _: None))
        async with grpc.aio.insecure_channel(address(running)) as channel:
            stubs = Stubs(channel)
            await stubs.session()
            call: Any = stubs.episodes.AppendEpisodeStream()
            await call.write(opening())
            for number in range(1, 201):
                await call.write(item(number))
            stopping = asyncio.create_task(server.aclose())
            with contextlib.suppress(grpc.aio.AioRpcError):
                while True:
                    answered.append((await call.read()).appended.episodes[0].position)
            assert await call.code() == grpc.StatusCode.UNAVAILABLE
            await stopping
    async with (
        running_server(settings(database_url), lambda _: None) as running,
        grpc.aio.insecure_channel(address(running)) as channel,
    ):
        assert await Stubs(channel).positions() == answered


async def test_a_client_that_goes_away_leaves_what_it_sent(stubs: Stubs) -> None:
    await stubs.session()
    call: Any = stubs.episodes.AppendEpisodeStream(timeout=WAIT)
    await call.write(opening())
    for number in range(1, 21):
        await call.write(item(number))
    await call.read()
    call.cancel()
    async with asyncio.timeout(WAIT):
        while (await stubs.positions())[-1:] != [20]:
            await stubs.append(new_episode(), session_id="s", agent_id="other")
            break
    stored = await stubs.positions()
    assert stored == list(range(1, len(stored) + 1))


async def test_many_streams_share_one_log_without_gaps(stubs: Stubs) -> None:
    await stubs.session()
    got = await asyncio.gather(
        *(answers(stubs, [opening(agent_id=f"a{n}"), *(item(k) for k in range(1, 41))]) for n in range(8))
    )
    positions = sorted(answer.appended.episodes[0].position for stream in got for answer in stream)
    assert positions == list(range(1, 321))
    for stream in got:
        mine = [answer.appended.episodes[0].position for answer in stream]
        assert mine == sorted(mine)
