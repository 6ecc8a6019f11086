"""AppendEpisodeStream: many appends over one call, in order, each answered in-band."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import error_reason_pb2 as reasons
from hivemem.v1 import types_pb2 as types

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


async def test_a_stream_into_a_namespace_that_is_not_there_ends(stubs: Stubs) -> None:
    refused = await refusal(answers(stubs, [opening(namespace="none"), item(1)]))
    assert refused.reason == "NAMESPACE_NOT_FOUND"
    got = await answers(stubs, [opening(session_id="none"), item(1)])
    assert got[0].failure.reason == reasons.ERROR_REASON_SESSION_NOT_FOUND


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
