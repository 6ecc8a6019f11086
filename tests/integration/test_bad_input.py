"""Bad input gets one clear error that lists every violation, and nothing is written."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from fix_stubs import Stubs, new_episode, refusal
from google.protobuf.timestamp_pb2 import Timestamp
from hivemem.v1 import admin_service_pb2, agent_service_pb2, knowledge_service_pb2, search_service_pb2
from hivemem.v1 import episode_service_pb2 as episodes
from hivemem.v1 import namespace_service_pb2 as namespaces
from hivemem.v1 import session_service_pb2 as sessions
from hivemem.v1 import thread_service_pb2 as threads
from hivemem.v1 import types_pb2 as types

KIB = 1024
LONG_ID = "x" * 129
UNKNOWN: Any = [99]


def with_time(seconds: int) -> types.NewEpisode:
    return new_episode(event_time=Timestamp(seconds=seconds))


EPISODES: list[tuple[str, types.NewEpisode, str]] = [
    ("an empty summary", new_episode(""), "summary"),
    ("a blank summary", new_episode(" \n\t "), "summary"),
    ("a summary over 32 KiB", new_episode("x" * (32 * KIB + 1)), "summary"),
    ("a summary over 32 KiB in bytes", new_episode("é" * (16 * KIB + 1)), "summary"),
    ("a summary with NUL", new_episode("a\0b"), "summary"),
    ("an id that is no UUID", new_episode(episode_id="one"), "episode_id"),
    ("no id", new_episode(episode_id=""), "episode_id"),
    ("the nil id", new_episode(episode_id="00000000-0000-0000-0000-000000000000"), "episode_id"),
    ("a negative turn", new_episode(turn=-1), "turn"),
    ("a kind with spaces", new_episode(kind="a b"), "kind"),
    ("65 tags", new_episode(tags=[str(n) for n in range(65)]), "tags"),
    ("an empty tag", new_episode(tags=[""]), "tags[0]"),
    ("a tag over 128 bytes", new_episode(tags=["é" * 65]), "tags[0]"),
    ("a tag with NUL", new_episode(tags=["\0"]), "tags[0]"),
    ("65 decisions", new_episode(decisions=[types.NewDecision(text="d")] * 65), "decisions"),
    ("an empty decision", new_episode(decisions=[types.NewDecision()]), "decisions[0].text"),
    ("a decision over 4 KiB", new_episode(decisions=[types.NewDecision(text="d" * 4097)]), "decisions[0].text"),
    ("65 threads", new_episode(open_threads=[types.NewThread(text="t")] * 65), "open_threads"),
    ("a thread id with spaces", new_episode(open_threads=[types.NewThread(text="t", thread_id="a b")]), "thread_id"),
    ("a step without a plan", new_episode(open_threads=[types.NewThread(text="t", step=1)]), "step"),
    ("a negative step", new_episode(open_threads=[types.NewThread(text="t", plan_id="p", step=-1)]), "step"),
    ("a huge priority", new_episode(open_threads=[types.NewThread(text="t", priority=1001)]), "priority"),
    (
        "65 attributes",
        new_episode(attributes={str(n): types.AttributeValue(int_value=n) for n in range(65)}),
        "attributes",
    ),
    (
        "attributes over 16 KiB",
        new_episode(attributes={"a": types.AttributeValue(string_value="x" * 16384)}),
        "attributes",
    ),
    (
        "a number that is none",
        new_episode(attributes={"a": types.AttributeValue(double_value=float("nan"))}),
        "attributes",
    ),
    (
        "an attribute without a value",
        new_episode(attributes={"a": types.AttributeValue()}),
        "episodes[1].attributes['a']",
    ),
    ("an attribute with NUL", new_episode(attributes={"a": types.AttributeValue(string_value="\0")}), "attributes"),
    (
        "a reference with a negative fence",
        new_episode(resolves=[types.ThreadReference(thread_id="t", fence=-1)]),
        "fence",
    ),
    ("a thread ended twice", new_episode(resolves=[types.ThreadReference(thread_id="t")] * 2), "resolves"),
    ("a time before the year 1", with_time(-62_135_596_801), "event_time"),
    ("a time after the year 9999", with_time(253_402_300_800), "event_time"),
    ("65 addressees", new_episode(to_agents=[f"a{n}" for n in range(65)]), "to_agents"),
]


@pytest.mark.parametrize(("what", "bad", "field"), EPISODES, ids=[what for what, _, _ in EPISODES])
async def test_an_episode_is_refused_with(stubs: Stubs, what: str, bad: types.NewEpisode, field: str) -> None:
    await stubs.session()
    refused = await refusal(stubs.append(new_episode(), bad))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"), what
    assert any(field in path for path in refused.fields), refused.fields
    assert await stubs.positions() == []


TAKEN = [types.NewDecision(text="fine"), types.NewDecision(decision_id="d", text="taken")]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (new_episode(tags=["fine", ""]), "episodes[3].tags[1]"),
        (new_episode(decisions=TAKEN), "episodes[3].decisions[1].decision_id"),
    ],
    ids=["by its fields", "by what is stored"],
)
async def test_a_bad_item_among_good_ones_is_named_and_none_is_written(
    stubs: Stubs, bad: types.NewEpisode, field: str
) -> None:
    await stubs.session()
    await stubs.append(new_episode(decisions=TAKEN[1:]), agent_id="b")
    good = [new_episode() for _ in range(5)]
    refused = await refusal(stubs.append(*good[:3], bad, *good[3:]))
    assert (refused.reason, refused.fields) == ("INVALID_FIELD", [field])
    assert await stubs.positions() == [1]
    answer = await stubs.append(*good)
    assert (answer.deduplicated, [each.position for each in answer.episodes]) == (False, [2, 3, 4, 5, 6])


@pytest.mark.parametrize("bad", ["", "a b", "ä", LONG_ID, "a\0", "a\n"])
@pytest.mark.parametrize("name", ["session_id", "agent_id", "namespace"])
async def test_an_id_outside_the_allowed_characters_is_refused(stubs: Stubs, name: str, bad: str) -> None:
    await stubs.session()
    if name == "namespace" and not bad:
        return  # unset means default
    refused = await refusal(stubs.append(new_episode(), **{name: bad}))
    assert (refused.reason, refused.fields) == ("INVALID_FIELD", [name])


async def test_every_violation_of_a_call_is_listed(stubs: Stubs) -> None:
    bad = new_episode("", turn=-1, kind="a b", tags=[""])
    refused = await refusal(stubs.append(bad, session_id="a b", agent_id=""))
    assert set(refused.fields) == {
        "session_id", "agent_id", "episodes[0].summary", "episodes[0].turn", "episodes[0].kind", "episodes[0].tags[0]",
    }  # fmt: skip
    assert refused.metadata["violation_count"] == "6"


async def test_an_error_with_very_many_violations_stays_small_enough_for_trailers(stubs: Stubs) -> None:
    await stubs.session()
    refused = await refusal(stubs.append(*(new_episode("", kind="ä" * 100) for _ in range(500))))
    assert refused.reason == "INVALID_FIELD"
    assert refused.metadata["violation_count"] == "1000"
    assert refused.fields[0] == "episodes[0].summary"
    assert refused.fields[-1] == "*"


async def test_too_many_of_a_kind_are_one_violation_with_their_number(stubs: Stubs) -> None:
    await stubs.session()
    condition = episodes.AppendCondition(filter=types.Filter(kinds=["x"]))
    refused = await refusal(stubs.append(*(new_episode() for _ in range(600)), conditions=[condition] * 30))
    assert refused.fields == ["episodes", "conditions"]
    assert "has 600 entries" in refused.message
    assert refused.metadata["violation_count"] == "2"


ABSENT: list[tuple[str, Any]] = [
    ("SESSION_NOT_FOUND", lambda s: s.append(new_episode(), session_id="none")),
    ("NAMESPACE_NOT_FOUND", lambda s: s.append(new_episode(), namespace="none")),
    ("SESSION_NOT_FOUND", lambda s: s.sessions.GetSession(sessions.GetSessionRequest(session_id="none"))),
    ("SESSION_NOT_FOUND", lambda s: s.sessions.CloseSession(sessions.CloseSessionRequest(session_id="none"))),
    (
        "SESSION_NOT_FOUND",
        lambda s: s.sessions.UpdateSession(sessions.UpdateSessionRequest(session_id="none", goal="g")),
    ),
    ("SESSION_NOT_FOUND", lambda s: s.sessions.ResumeSession(sessions.ResumeSessionRequest(session_id="none"))),
    (
        "EPISODE_NOT_FOUND",
        lambda s: s.episodes.GetEpisode(episodes.GetEpisodeRequest(episode_id=new_episode().episode_id)),
    ),
    ("NAMESPACE_NOT_FOUND", lambda s: s.admin.GetStats(admin_service_pb2.GetStatsRequest(namespace="none"))),
]


@pytest.mark.parametrize(("reason", "call"), ABSENT)
async def test_what_is_not_there_is_not_found(stubs: Stubs, reason: str, call: Any) -> None:
    refused = await refusal(call(stubs))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, reason)


REQUESTS: list[tuple[str, Any]] = [
    ("page_size", lambda s: s.episodes.ListEpisodes(episodes.ListEpisodesRequest(page_size=-1))),
    ("page_size", lambda s: s.sessions.ListSessions(sessions.ListSessionsRequest(page_size=-1))),
    ("page_size", lambda s: s.threads.ListThreads(threads.ListThreadsRequest(page_size=-1))),
    ("page_size", lambda s: s.namespaces.ListNamespaces(namespaces.ListNamespacesRequest(page_size=-1))),
    ("filter.agent_ids", lambda s: s.episodes.ListEpisodes(
        episodes.ListEpisodesRequest(filter=types.Filter(agent_ids=[f"a{n}" for n in range(257)])))),
    ("filter.kinds[0]", lambda s: s.episodes.ListEpisodes(
        episodes.ListEpisodesRequest(filter=types.Filter(kinds=["a b"])))),
    ("filter.commit_time.start_time", lambda s: s.episodes.ListEpisodes(episodes.ListEpisodesRequest(
        filter=types.Filter(commit_time=types.TimeRange(start_time=Timestamp(seconds=10**12)))))),
    ("filter.attributes[0].operator", lambda s: s.episodes.ListEpisodes(episodes.ListEpisodesRequest(
        filter=types.Filter(attributes=[types.AttributePredicate(key="a")])))),
    ("filter.attributes[0].values", lambda s: s.episodes.ListEpisodes(episodes.ListEpisodesRequest(
        filter=types.Filter(attributes=[types.AttributePredicate(key="a", operator=types.ATTRIBUTE_OPERATOR_LESS)])))),
    ("filter.positions.after", lambda s: s.episodes.ListEpisodes(
        episodes.ListEpisodesRequest(filter=types.Filter(positions=types.PositionRange(after=-1))))),
    ("filter.states[0]", lambda s: s.threads.ListThreads(
        threads.ListThreadsRequest(filter=threads.ThreadFilter(states=UNKNOWN)))),
    ("before", lambda s: s.episodes.GetEpisode(episodes.GetEpisodeRequest(position=1, before=21))),
    ("key", lambda s: s.episodes.GetEpisode(episodes.GetEpisodeRequest())),
    ("query", lambda s: s.search.SearchEpisodes(search_service_pb2.SearchEpisodesRequest())),
    ("text", lambda s: s.search.SearchEpisodes(search_service_pb2.SearchEpisodesRequest(text="x" * 8193))),
    ("limit", lambda s: s.search.SearchEpisodes(search_service_pb2.SearchEpisodesRequest(text="x", limit=101))),
    ("min_score", lambda s: s.search.SearchEpisodes(search_service_pb2.SearchEpisodesRequest(text="x", min_score=2))),
    ("target", lambda s: s.sessions.ResumeSession(sessions.ResumeSessionRequest())),
    ("max_tokens", lambda s: s.sessions.ResumeSession(sessions.ResumeSessionRequest(user_id="u", max_tokens=5))),
    ("max_tokens", lambda s: s.sessions.ResumeSession(sessions.ResumeSessionRequest(user_id="u", max_tokens=100_001))),
    ("max_batch_size", lambda s: s.episodes.SubscribeEpisodes(
        episodes.SubscribeEpisodesRequest(max_batch_size=-1), timeout=10).read()),
    ("goal", lambda s: s.sessions.CreateSession(sessions.CreateSessionRequest(session_id="s", goal="x" * 4097))),
    ("labels", lambda s: s.sessions.CreateSession(
        sessions.CreateSessionRequest(session_id="s", labels={str(n): "" for n in range(65)}))),
    ("namespace", lambda s: s.namespaces.DeleteNamespace(namespaces.DeleteNamespaceRequest(namespace="default"))),
    ("start.position", lambda s: s.episodes.SubscribeEpisodes(
        episodes.SubscribeEpisodesRequest(start=types.StartPoint(position=-1)), timeout=10).read()),
    ("record_kinds[0]", lambda s: s.episodes.SubscribeEpisodes(
        episodes.SubscribeEpisodesRequest(record_kinds=UNKNOWN), timeout=10).read()),
]  # fmt: skip


@pytest.mark.parametrize(("field", "call"), REQUESTS)
async def test_a_request_is_refused_by_its_field(stubs: Stubs, field: str, call: Any) -> None:
    refused = await refusal(call(stubs))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert field in refused.fields


async def test_a_page_token_serves_its_own_request_only(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(3)))
    request = episodes.ListEpisodesRequest(page_size=1)
    token = (await stubs.episodes.ListEpisodes(request)).next_page_token
    altered = ("A" if token[0] != "A" else "B") + token[1:]
    for bad, wanted in [(altered, types.Filter()), ("?", types.Filter()), (token, types.Filter(agent_ids=["a"]))]:
        request = episodes.ListEpisodesRequest(page_size=1, page_token=bad, filter=wanted)
        assert (await refusal(stubs.episodes.ListEpisodes(request))).reason == "PAGE_TOKEN_MALFORMED"


async def test_a_page_size_above_the_maximum_is_lowered_to_it(stubs: Stubs) -> None:
    await stubs.session()
    for _ in range(3):
        await stubs.append(*(new_episode() for _ in range(400)))
    page = await stubs.episodes.ListEpisodes(episodes.ListEpisodesRequest(page_size=2**31 - 1))
    assert len(page.episodes) == 1_000


async def test_bytes_that_are_no_message_are_an_invalid_field(stubs: Stubs) -> None:
    call: Any = stubs.channel.unary_unary("/hivemem.v1.EpisodeService/AppendEpisodes")
    text_that_is_no_utf8 = b"\x12\x02\xff\xfe"
    for data in (text_that_is_no_utf8, b"\xff\xff\xff"):
        refused = await refusal(call(data))
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")


async def test_a_message_over_the_limit_is_refused_and_the_connection_lives_on(stubs: Stubs) -> None:
    await stubs.session()
    over_the_append_limit = [new_episode("x" * 32_000) for _ in range(140)]
    refused = await refusal(stubs.append(*over_the_append_limit))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_LARGE")
    over_the_message_limit = [new_episode("x" * 32_000) for _ in range(300)]
    refused = await refusal(stubs.append(*over_the_message_limit))
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stubs.append(new_episode())).episodes[0].position == 1


UNBUILT: list[Any] = [
    lambda s: s.agents.RegisterAgent(agent_service_pb2.RegisterAgentRequest()),
    lambda s: s.knowledge.PutFacts(knowledge_service_pb2.PutFactsRequest()),
    lambda s: s.threads.ClaimThread(threads.ClaimThreadRequest()),
    lambda s: s.admin.VerifyLog(admin_service_pb2.VerifyLogRequest()),
    lambda s: s.append(new_episode(), writer_fence=1),
    lambda s: s.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(
        namespace="n", settings=namespaces.NamespaceSettings(quota=namespaces.QuotaSettings(max_episodes=1)))),
]  # fmt: skip


@pytest.mark.parametrize("call", UNBUILT)
async def test_what_is_not_built_says_so_in_a_sentence(stubs: Stubs, call: Any) -> None:
    refused = await refusal(call(stubs))
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED")
    assert refused.message.startswith("this server")
