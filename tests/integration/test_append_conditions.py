"""Append conditions: an append fails if the log has news that its writer has not seen."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from fix_stubs import Stubs, new_episode, refusal
from google.protobuf.timestamp_pb2 import Timestamp
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2 as types

Condition = pb.AppendCondition

WANTED = [
    types.Filter(session_ids=["s"]),
    types.Filter(agent_ids=["a", "x"]),
    types.Filter(exclude_agent_ids=["b"]),
    types.Filter(user_ids=["u"]),
    types.Filter(kinds=["finding"]),
    types.Filter(any_tags=["red", "it's \"quoted\" \\ {,}"]),
    types.Filter(all_tags=["red", "green"]),
    types.Filter(to_agents=["writer"]),
    types.Filter(commit_time=types.TimeRange(start_time=Timestamp(seconds=1))),
    types.Filter(event_time=types.TimeRange(end_time=Timestamp(seconds=2_000_000_000))),
    types.Filter(positions=types.PositionRange(through=3)),
    types.Filter(attributes=[types.AttributePredicate(key="price", operator=types.ATTRIBUTE_OPERATOR_GREATER,
                                                      values=[types.AttributeValue(double_value=8.5)])]),
    types.Filter(attributes=[types.AttributePredicate(key="name", operator=types.ATTRIBUTE_OPERATOR_IN,
                                                      values=[types.AttributeValue(string_value="x"),
                                                              types.AttributeValue(string_value="rival")])]),
    types.Filter(attributes=[types.AttributePredicate(key="sure", operator=types.ATTRIBUTE_OPERATOR_EQUAL,
                                                      values=[types.AttributeValue(bool_value=True)])]),
    types.Filter(attributes=[types.AttributePredicate(key="none", operator=types.ATTRIBUTE_OPERATOR_MISSING)]),
]  # fmt: skip


async def three_episodes(stubs: Stubs) -> None:
    """The third matches every filter of WANTED, the first two do not matter: they come before what was seen."""
    await stubs.session("s", user_id="u")
    await stubs.session("t", user_id="v")
    await stubs.append(new_episode(), session_id="t", agent_id="b")
    await stubs.append(new_episode(), session_id="t", agent_id="b")
    news = new_episode(
        kind="finding", tags=["red", "green", "it's \"quoted\" \\ {,}"], to_agents=["writer"],
        event_time=Timestamp(seconds=1_000_000_000),
        attributes={"price": types.AttributeValue(int_value=9), "name": types.AttributeValue(string_value="rival"),
                    "sure": types.AttributeValue(bool_value=True)},
    )  # fmt: skip
    await stubs.append(news, session_id="s", agent_id="a")


@pytest.mark.parametrize("wanted", WANTED, ids=str)
async def test_news_that_matches_any_filter_fails_the_append(stubs: Stubs, wanted: types.Filter) -> None:
    await three_episodes(stubs)
    seen_two = Condition(filter=wanted, after_position=2)
    refused = await refusal(stubs.append(new_episode(), conditions=[seen_two]))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ABORTED, "CONDITION_FAILED")
    assert refused.metadata == {"conditions[0]": "3"}
    seen_all = Condition(filter=wanted, after_position=3)
    assert (await stubs.append(new_episode(), conditions=[seen_all])).episodes[0].position == 4


async def test_every_condition_that_fails_is_named_and_an_expectation_with_them(stubs: Stubs) -> None:
    await three_episodes(stubs)
    conditions = [
        Condition(filter=types.Filter(kinds=["none"])),
        Condition(filter=types.Filter(agent_ids=["b"])),
        Condition(filter=types.Filter(agent_ids=["b"]), after_position=1),
    ]
    refused = await refusal(stubs.append(new_episode(), conditions=conditions))
    assert refused.metadata == {"conditions[1]": "1", "conditions[2]": "2"}
    expected = pb.Expectation(revision=7)
    refused = await refusal(stubs.append(new_episode(), conditions=conditions, expectation=expected))
    assert refused.reason == "REVISION_CONFLICT"
    assert refused.metadata == {"expected": "7", "actual": "1", "conditions[1]": "1", "conditions[2]": "2"}


async def test_one_of_many_agents_that_saw_the_same_log_wins(stubs: Stubs) -> None:
    await stubs.session()
    condition = Condition(filter=types.Filter(kinds=["election"]))
    calls = [
        stubs.append(new_episode(kind="election"), agent_id=f"agent-{number}", conditions=[condition])
        for number in range(20)
    ]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    assert await stubs.positions() == [1]


async def test_a_resend_succeeds_whatever_its_conditions(stubs: Stubs) -> None:
    await stubs.session()
    new = new_episode()
    condition = Condition(filter=types.Filter(session_ids=["s"]))
    await stubs.append(new, conditions=[condition])
    assert (await stubs.append(new, conditions=[condition])).deduplicated


async def test_a_condition_is_checked_like_any_filter(stubs: Stubs) -> None:
    await stubs.session()
    bad = [
        Condition(),
        Condition(filter=types.Filter(kinds=["a b"])),
        Condition(filter=types.Filter(kinds=["x"]), after_position=-1),
    ]
    refused = await refusal(stubs.append(new_episode(), conditions=bad))
    assert refused.fields == ["conditions[0].filter", "conditions[1].filter.kinds[0]", "conditions[2].after_position"]
    many = [Condition(filter=types.Filter(kinds=["x"]))] * 17
    assert (await refusal(stubs.append(new_episode(), conditions=many))).fields == ["conditions"]
