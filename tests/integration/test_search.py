"""Search: by words and by meaning together, filters inside, honest about what it could not do."""

from __future__ import annotations

import datetime as dt

import grpc
import hivemem
import pytest
from fix_server import address, settings
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import search_service_pb2 as pb
from hivemem.v1 import types_pb2 as types
from hivemem_server.bootstrap import running_server
from hivemem_server.settings import EmbedderKind

Request = pb.SearchEpisodesRequest

TOPICS = {
    "price": "The cheapest plan of the rival costs nine dollars a month.",
    "weather": "It rained all afternoon and the wind came from the north.",
    "code": "The parser failed with ERR_5XX-7 in module tokens.py.",
}


async def indexed(memory: hivemem.Client) -> dict[str, int]:
    """Positions of one episode a topic, by two agents in two sessions; all indexed."""
    where = {}
    for number, (topic, text) in enumerate(TOPICS.items()):
        session = await memory.session(f"s{number % 2}", user_id=f"u{number % 2}")
        done = await session.agent(f"agent{number % 2}").append(summary=text, tags=[topic], kind="finding")
        where[topic] = done.position
    await memory.search("anything", wait_for_position=max(where.values()))
    return where


async def test_meaning_finds_what_words_do_not(searching_memory: hivemem.Client) -> None:
    where = await indexed(searching_memory)
    result = await searching_memory.search("how much does the competition charge", limit=1)
    assert [hit.episode.position for hit in result] == [where["price"]]
    assert result.model


async def test_words_find_what_was_written_a_moment_ago(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    done = await session.agent("a").append(summary=TOPICS["code"])
    result = await session.search("parser failure")
    assert [hit.episode.position for hit in result] == [done.position]


async def test_any_word_is_enough(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await session.agent("a").append(summary=TOPICS["price"])
    assert len(await session.search("rival elephants in Antarctica")) == 1
    assert len(await session.search("elephants")) == 0


async def test_filters_are_applied_inside_the_search(searching_memory: hivemem.Client) -> None:
    where = await indexed(searching_memory)
    found = {
        "agent": await searching_memory.search("dollars", agents=["agent1"]),
        "tag": await searching_memory.search("dollars", tags=["code"]),
        "kind": await searching_memory.search("dollars", kinds=["none"]),
        "user": await searching_memory.relevant("dollars", user_id="u1"),
    }
    assert [hit.episode.position for hit in found["agent"]] == [where["weather"]]
    assert [hit.episode.position for hit in found["tag"]] == [where["code"]]
    assert list(found["kind"]) == []
    assert [hit.episode.position for hit in found["user"]] == [where["weather"]]
    assert found["agent"].shortfalls


async def test_a_time_range_restricts_a_search(stubs: Stubs) -> None:
    await stubs.session()
    early = new_episode("a price")
    early.event_time.FromDatetime(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    late = new_episode("a price")
    late.event_time.FromDatetime(dt.datetime(2024, 1, 1, tzinfo=dt.UTC))
    await stubs.append(early, late)
    span = types.TimeRange()
    span.start_time.FromDatetime(dt.datetime(2022, 1, 1, tzinfo=dt.UTC))
    answer = await stubs.search.SearchEpisodes(Request(text="price", filter=types.Filter(event_time=span)))
    assert [hit.episode.position for hit in answer.hits] == [2]


async def test_numbers_are_compared_as_numbers(stubs: Stubs) -> None:
    await stubs.session()
    for number, value in enumerate([9, 10.5, 100], 1):
        given = (
            types.AttributeValue(int_value=value)
            if isinstance(value, int)
            else types.AttributeValue(double_value=value)
        )
        await stubs.append(new_episode(f"price {number}", attributes={"dollars": given}))
    above = types.AttributePredicate(
        key="dollars", operator=types.ATTRIBUTE_OPERATOR_GREATER, values=[types.AttributeValue(int_value=9)]
    )
    answer = await stubs.search.SearchEpisodes(Request(text="price", filter=types.Filter(attributes=[above])))
    assert sorted(hit.episode.position for hit in answer.hits) == [2, 3]


async def test_what_was_superseded_comes_after_what_replaced_it(memory: hivemem.Client) -> None:
    agent = (await memory.session("s")).agent("a")
    await agent.append(
        summary="The price is in euros.", decisions=[hivemem.NewDecision(decision_id="d", text="Euros.")]
    )
    await agent.append(
        summary="The price is in dollars.", decisions=[hivemem.NewDecision(text="Dollars.", supersedes=("d",))]
    )
    hits = list(await memory.search("price"))
    assert [(hit.episode.position, hit.superseded) for hit in hits] == [(2, False), (1, True)]


async def test_the_parts_of_a_score_add_up(searching_stubs: Stubs, searching_memory: hivemem.Client) -> None:
    await indexed(searching_memory)
    answer = await searching_stubs.search.SearchEpisodes(Request(text="rival plan", explain=True))
    for hit in answer.hits:
        parts = hit.explanation
        assert 0 <= hit.score <= 1
        assert sum(getattr(parts, field.name) for field in parts.DESCRIPTOR.fields) == pytest.approx(hit.score)


async def test_hits_below_the_lowest_score_are_left_out_and_it_says_so(
    searching_stubs: Stubs, searching_memory: hivemem.Client
) -> None:
    await indexed(searching_memory)
    answer = await searching_stubs.search.SearchEpisodes(Request(text="rival plan", min_score=0.9))
    assert all(hit.score >= 0.9 for hit in answer.hits)
    assert pb.SHORTFALL_MIN_SCORE in answer.shortfalls


async def test_the_log_can_be_searched_as_it_was(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(new_episode("one price"), new_episode("two price"), new_episode("three price"))
    answer = await stubs.search.SearchEpisodes(Request(text="price", as_of_position=2))
    assert sorted(hit.episode.position for hit in answer.hits) == [1, 2]


async def test_what_was_superseded_later_stood_at_the_time(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(new_episode("one price", decisions=[types.NewDecision(decision_id="d", text="Euros.")]))
    await stubs.append(new_episode("two"))
    await stubs.append(new_episode("three", decisions=[types.NewDecision(text="Dollars.", supersedes=["d"])]))
    for as_of, superseded in [(1, False), (2, False), (3, True), (0, True)]:
        answer = await stubs.search.SearchEpisodes(Request(text="price", as_of_position=as_of))
        assert [(hit.episode.position, hit.superseded) for hit in answer.hits] == [(1, superseded)]


async def test_a_search_with_a_vector_of_the_callers_own(
    searching_stubs: Stubs, searching_memory: hivemem.Client
) -> None:
    where = await indexed(searching_memory)
    model = (await searching_stubs.search.SearchEpisodes(Request(text="x"))).model
    vector = types.Vector(values=[0.05] * 384, model=model)
    answer = await searching_stubs.search.SearchEpisodes(Request(vector=vector))
    assert {hit.episode.position for hit in answer.hits} == set(where.values())
    for number in (1e6, -3e38, 1e-44):
        huge = types.Vector(values=[number] * 384, model=model)
        hits = (await searching_stubs.search.SearchEpisodes(Request(vector=huge))).hits
        assert {hit.episode.position for hit in hits} == set(where.values())
    for values in ([0.1] * 3, [0.0] * 384, [float("nan")] * 384):
        bad = Request(vector=types.Vector(values=values, model=model))
        assert (await refusal(searching_stubs.search.SearchEpisodes(bad))).reason == "VECTOR_INVALID"
    other = Request(vector=types.Vector(values=[0.1] * 384, model="other"))
    assert (await refusal(searching_stubs.search.SearchEpisodes(other))).reason == "MODEL_UNKNOWN"


async def test_a_wait_for_indexing_that_runs_out_says_so_before_the_caller_gives_up(searching_stubs: Stubs) -> None:
    """The log's next position is never indexed while nothing is appended."""
    call = searching_stubs.search.SearchEpisodes(Request(text="x", wait_for_position=1), timeout=2)
    refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "INDEX_BEHIND")
    assert refused.metadata == {"position": "1", "indexed_position": "0"}


async def test_without_an_embedder_words_decide_and_the_answer_says_so(database_url: str) -> None:
    dead = settings(database_url, embedder=EmbedderKind.OPENAI, embedding_url="http://127.0.0.1:9/v1")
    async with running_server(dead, lambda _: None) as running, hivemem.Client(address(running)) as memory:
        session = await memory.session("s")
        await session.agent("a").append(summary=TOPICS["price"])
        result = await session.search("rival plan")
        assert len(result) == 1
        assert hivemem.Shortfall.EMBEDDER_UNAVAILABLE in result.shortfalls
        async with grpc.aio.insecure_channel(address(running)) as channel:
            waiting = Stubs(channel).search.SearchEpisodes(Request(text="rival plan", wait_for_position=1), timeout=20)
            refused = await refusal(waiting)
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "EMBEDDER_UNAVAILABLE")
