"""Standing queries: told of what is close in meaning, once it is indexed, in log order, with its score."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from fix_server import address, settings
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem_server.bootstrap import running_server
from hivemem_server.log import standing

WAIT = 60.0
PRICES = ["The subscription price rises to 12 euros a month", "Competitors charge less for their premium plan"]
OTHER = ["The cat sleeps on the warm windowsill", "It rained in the mountains all night"]


@pytest_asyncio.fixture(loop_scope="session")
async def indexed(database_url: str) -> AsyncIterator[Stubs]:
    """Stubs of a server with the local model."""
    async with (
        running_server(settings(database_url, embedder="local"), lambda _: None) as running,
        grpc.aio.insecure_channel(address(running)) as channel,
    ):
        stubs = Stubs(channel)
        await stubs.session()
        yield stubs


def about(text: str, **relevance: Any) -> dict[str, Any]:
    return {"relevance": pb.RelevanceQuery(relevant_to=text, **relevance)}


def subscribed(stubs: Stubs, **fields: Any) -> Any:
    request = pb.SubscribeEpisodesRequest(**fields)
    request.heartbeat_interval.FromSeconds(1)
    return stubs.episodes.SubscribeEpisodes(request, timeout=WAIT)


async def until(kind: str, call: Any) -> list[Any]:
    """Reads up to the first message of a kind; returns the records that came, and then the message."""
    records: list[Any] = []
    while True:
        message = await call.read()
        assert message is not grpc.aio.EOF, f"the stream ended before {kind}"
        records += message.batch.records
        if message.WhichOneof("event") == kind:
            return [*records, getattr(message, kind)]


async def test_only_what_is_close_is_delivered_in_log_order_with_its_score(indexed: Stubs) -> None:
    told = [OTHER[0], PRICES[0], OTHER[1], PRICES[1]]
    await indexed.append(*map(new_episode, told))
    call = subscribed(indexed, **about("what does it cost", min_score=0.2))
    *records, caught_up = await until("caught_up", call)
    assert [record.position for record in records] == [2, 4]
    assert caught_up.position == 4
    assert all(0.2 <= record.score <= 1 for record in records)
    await indexed.append(new_episode(OTHER[0]), new_episode("They lowered the price of the plan by a third"))
    (record, *_) = await until("batch", call)
    assert (record.position, record.episode.summary[:4]) == (6, "They")
    call.cancel()


async def test_everything_indexed_is_close_enough_for_a_score_of_nought_and_nothing_for_one(indexed: Stubs) -> None:
    await indexed.append(*map(new_episode, OTHER))
    everything = subscribed(indexed, **about("pricing", min_score=0.0))
    assert [record.position for record in (await until("caught_up", everything))[:-1]] == [1, 2]
    nothing = subscribed(indexed, **about("pricing", min_score=1.0))
    assert (await until("caught_up", nothing))[:-1] == []
    everything.cancel()
    nothing.cancel()


async def test_a_filter_and_a_cursor_go_with_a_standing_query(indexed: Stubs) -> None:
    await indexed.append(new_episode(PRICES[0]), agent_id="a")
    await indexed.append(new_episode(PRICES[1]), agent_id="b")
    fields = about("price", min_score=0.1) | {"filter": {"agent_ids": ["b"]}}
    call = subscribed(indexed, **fields)
    *records, caught_up = await until("caught_up", call)
    assert [record.position for record in records] == [2]
    call.cancel()
    await indexed.append(new_episode(PRICES[0]), agent_id="b")
    resumed = subscribed(indexed, start={"cursor": caught_up.cursor}, **fields)
    assert [record.position for record in (await until("caught_up", resumed))[:-1]] == [3]
    resumed.cancel()


async def test_a_long_poll_waits_for_what_is_close(indexed: Stubs) -> None:
    await indexed.append(*map(new_episode, [OTHER[0], PRICES[0]]))
    waited = await indexed.episodes.WaitEpisodes(pb.WaitEpisodesRequest(**about("price", min_score=0.2)), timeout=WAIT)
    assert [record.position for record in waited.records] == [2]


async def test_a_standing_query_without_an_embedder_is_refused_with_the_cure(stubs: Stubs) -> None:
    await stubs.session()
    call = subscribed(stubs, **about("pricing"))
    refused = await refusal(call.read())
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "EMBEDDER_UNAVAILABLE")
    assert "--embedder" in refused.message


async def test_an_index_that_stands_still_is_told_and_so_is_its_end(
    indexed: Stubs, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "STILL_SECONDS", 0.2)
    await indexed.append(new_episode(PRICES[0]))
    call = subscribed(indexed, **about("price", min_score=0.1))
    await until("caught_up", call)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        # Another replica holds the lease, and does nothing with it.
        await connection.execute(
            "UPDATE index_progress SET holder = gen_random_uuid(), lease_until = now() + interval '1 hour'"
        )
        await indexed.append(new_episode(PRICES[1]))
        (fell_behind,) = await until("fell_behind", call)
        assert (fell_behind.position, fell_behind.head_position) == (1, 2)
        await connection.execute("UPDATE index_progress SET lease_until = now()")
    record, _ = await until("caught_up", call)
    assert record.position == 2
    call.cancel()


async def test_one_append_after_a_long_silence_is_no_falling_behind(
    indexed: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "STILL_SECONDS", 0.5)
    await indexed.append(new_episode(PRICES[0]))
    call = subscribed(indexed, **about("price", min_score=0.1))
    await until("caught_up", call)
    for _ in range(2):
        await until("progress", call)  # a heartbeat each, of a second
    await indexed.append(new_episode(PRICES[1]))
    assert (await call.read()).WhichOneof("event") == "batch"
    call.cancel()


@pytest.mark.parametrize(
    ("relevance", "field"),
    [
        ({"relevant_to": ""}, "relevance.relevant_to"),
        ({"relevant_to": "x" * 8_193}, "relevance.relevant_to"),
        ({"relevant_to": "x", "min_score": 1.01}, "relevance.min_score"),
        ({"relevant_to": "x", "min_score": float("nan")}, "relevance.min_score"),
    ],
    ids=str,
)
async def test_a_bad_standing_query_is_refused_by_its_field(
    stubs: Stubs, relevance: dict[str, Any], field: str
) -> None:
    await stubs.session()
    refused = await refusal(subscribed(stubs, relevance=pb.RelevanceQuery(**relevance)).read())
    assert refused.reason == "INVALID_FIELD"
    assert field in refused.message
