"""Appending: one order, all or nothing, once in effect."""

from __future__ import annotations

import asyncio
import uuid

import grpc
import psycopg
import pytest
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import namespace_service_pb2, session_service_pb2, thread_service_pb2
from hivemem.v1 import types_pb2 as types
from psycopg.sql import SQL, Identifier


async def test_positions_are_dense_in_the_namespace_and_revisions_in_the_stream(stubs: Stubs) -> None:
    await stubs.session("one")
    await stubs.session("two")
    for session_id, agent_id in [("one", "a"), ("one", "b"), ("two", "a"), ("one", "a"), ("two", "a")]:
        await stubs.append(new_episode(), session_id=session_id, agent_id=agent_id)
    listed = (await stubs.episodes.ListEpisodes(pb.ListEpisodesRequest())).episodes
    assert [episode.position for episode in listed] == [1, 2, 3, 4, 5]
    assert [(e.session_id, e.agent_id, e.revision) for e in listed] == [
        ("one", "a", 1), ("one", "b", 1), ("two", "a", 1), ("one", "a", 2), ("two", "a", 2),
    ]  # fmt: skip


async def test_everything_that_is_sent_comes_back(stubs: Stubs) -> None:
    await stubs.session()
    sent = new_episode(
        "résumé of “pricing” \U0001f41d", turn=7, kind="finding", tags=["a b", 'quo"te', "back\\slash", "{,}"],
        to_agents=["writer"],
        decisions=[types.NewDecision(text="use list prices"), types.NewDecision(decision_id="d-2", text="skip taxes")],
        open_threads=[types.NewThread(text="check Q3", priority=5, tags=["x"], plan_id="plan", step=2)],
    )  # fmt: skip
    sent.event_time.FromJsonString("2024-02-29T12:00:00.123456Z")
    for key, value in {
        "text": types.AttributeValue(string_value="x"), "whole": types.AttributeValue(int_value=2**60 + 1),
        "huge": types.AttributeValue(double_value=1e300), "tiny": types.AttributeValue(double_value=5e-324),
        "round": types.AttributeValue(double_value=3.0), "no": types.AttributeValue(bool_value=False),
        "empty": types.AttributeValue(string_value=""),
    }.items():  # fmt: skip
        sent.attributes[key].CopyFrom(value)
    await stubs.append(sent)
    stored = (await stubs.episodes.GetEpisode(pb.GetEpisodeRequest(episode_id=sent.episode_id))).episode
    for name in ("episode_id", "turn", "summary", "kind", "tags", "attributes", "event_time", "to_agents"):
        assert getattr(stored, name) == getattr(sent, name), name
    assert [d.decision_id for d in stored.decisions] == [f"{sent.episode_id}/d1", "d-2"]
    opened = stored.open_threads[0]
    assert (opened.text, opened.priority, opened.plan_id, opened.step) == ("check Q3", 5, "plan", 2)


async def test_a_resend_returns_the_first_outcome_whatever_it_expects(stubs: Stubs) -> None:
    await stubs.session()
    new = new_episode()
    first = await stubs.append(new)
    again = await stubs.append(new, expectation=pb.Expectation(no_stream=pb.Expectation.NoStream()))
    assert again.deduplicated
    assert not first.deduplicated
    assert list(again.episodes) == list(first.episodes)
    assert await stubs.positions() == [1]


async def test_a_resend_succeeds_after_the_session_was_closed(stubs: Stubs) -> None:
    await stubs.session()
    new = new_episode()
    await stubs.append(new)
    await stubs.sessions.CloseSession(session_service_pb2.CloseSessionRequest(session_id="s"))
    assert (await stubs.append(new)).deduplicated
    refused = await refusal(stubs.append(new_episode()))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SESSION_CLOSED")


@pytest.mark.parametrize("change", ["summary", "agent", "session"])
async def test_an_id_is_not_reused_for_other_content(stubs: Stubs, change: str) -> None:
    await stubs.session()
    await stubs.session("other")
    new = new_episode()
    await stubs.append(new)
    other = new_episode("something else", episode_id=new.episode_id) if change == "summary" else new
    stream = {"agent": {"agent_id": "b"}, "session": {"session_id": "other"}}.get(change, {})
    refused = await refusal(stubs.append(other, **stream))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "EPISODE_ID_REUSED")
    assert refused.metadata["episode_id"] == new.episode_id


async def test_an_id_of_one_namespace_is_a_new_one_in_another(stubs: Stubs) -> None:
    await stubs.namespaces.CreateNamespace(namespace_service_pb2.CreateNamespaceRequest(namespace="other"))
    await stubs.session()
    await stubs.session(namespace="other")
    new = new_episode()
    await stubs.append(new_episode())
    await stubs.append(new)
    other = new_episode("something else", episode_id=new.episode_id)
    answer = await stubs.append(other, namespace="other")
    assert (answer.deduplicated, answer.episodes[0].position) == (False, 1)
    assert (await refusal(stubs.append(new, namespace="other"))).reason == "EPISODE_ID_REUSED"
    for again, position in ((stubs.append(new), 2), (stubs.append(other, namespace="other"), 1)):
        answer = await again
        assert (answer.deduplicated, answer.episodes[0].position) == (True, position)


async def test_a_call_that_is_partly_known_stores_nothing(stubs: Stubs) -> None:
    await stubs.session()
    known = new_episode()
    await stubs.append(known)
    refused = await refusal(stubs.append(known, new_episode()))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "PARTIAL_DUPLICATE")
    assert await stubs.positions() == [1]


async def test_the_same_episode_sent_by_many_at_once_is_stored_once(stubs: Stubs) -> None:
    await stubs.session()
    new = new_episode()
    answers = await asyncio.gather(*(stubs.append(new) for _ in range(40)))
    assert {answer.episodes[0].position for answer in answers} == {1}
    assert sum(not answer.deduplicated for answer in answers) == 1


EXPECTATIONS = {
    "no stream": pb.Expectation(no_stream=pb.Expectation.NoStream()),
    "exists": pb.Expectation(stream_exists=pb.Expectation.StreamExists()),
    "revision 2": pb.Expectation(revision=2),
    "any": pb.Expectation(any=pb.Expectation.Any()),
}


@pytest.mark.parametrize(
    ("written", "expected", "accepted"),
    [
        (0, "no stream", True), (1, "no stream", False), (0, "exists", False), (1, "exists", True),
        (2, "revision 2", True), (1, "revision 2", False), (3, "revision 2", False), (0, "revision 2", False),
        (0, "any", True), (3, "any", True),
    ],
)  # fmt: skip
async def test_an_expectation_holds_or_the_append_is_refused(
    stubs: Stubs, written: int, expected: str, accepted: bool
) -> None:
    await stubs.session()
    for _ in range(written):
        await stubs.append(new_episode())
    call = stubs.append(new_episode(), expectation=EXPECTATIONS[expected])
    if accepted:
        assert (await call).episodes[0].revision == written + 1
    else:
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.ABORTED, "REVISION_CONFLICT")
        assert refused.metadata["actual"] == str(written)


async def test_one_of_many_that_expect_the_same_revision_wins(stubs: Stubs) -> None:
    await stubs.session()
    calls = [stubs.append(new_episode(), expectation=EXPECTATIONS["no stream"]) for _ in range(20)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    assert await stubs.positions() == [1]


async def test_an_episode_ends_threads_and_each_ending_is_a_record(stubs: Stubs) -> None:
    await stubs.session()
    threads = [types.NewThread(thread_id=name, text=name) for name in ("t1", "t2", "t3", "t4")]
    await stubs.append(new_episode(open_threads=threads))
    ref = types.ThreadReference
    ending = new_episode(
        resolves=[ref(thread_id="t1")], drops=[ref(thread_id="t2")], supersedes_threads=[ref(thread_id="t3")]
    )
    answer = await stubs.append(ending, new_episode(), agent_id="b")
    assert [episode.position for episode in answer.episodes] == [2, 6]
    listed = (await stubs.threads.ListThreads(thread_service_pb2.ListThreadsRequest())).threads
    assert [(t.thread_id, t.state, t.superseded) for t in listed] == [
        ("t1", thread_service_pb2.THREAD_STATE_RESOLVED, False),
        ("t2", thread_service_pb2.THREAD_STATE_DROPPED, False),
        ("t3", thread_service_pb2.THREAD_STATE_DROPPED, True),
        ("t4", thread_service_pb2.THREAD_STATE_OPEN, False),
    ]
    assert listed[0].ended_by_agent_id == "b"
    assert listed[0].ended_by_episode_id == ending.episode_id


async def test_an_episode_may_end_a_thread_that_the_same_call_opened_before(stubs: Stubs) -> None:
    await stubs.session()
    opening = new_episode(open_threads=[types.NewThread(thread_id="t", text="t")])
    ending = new_episode(resolves=[types.ThreadReference(thread_id="t")])
    await stubs.append(opening, ending)
    listed = (await stubs.threads.ListThreads(thread_service_pb2.ListThreadsRequest())).threads
    assert [thread.state for thread in listed] == [thread_service_pb2.THREAD_STATE_RESOLVED]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"resolves": [types.ThreadReference(thread_id="none")]}, "THREAD_NOT_FOUND"),
        ({"resolves": [types.ThreadReference(thread_id="done")]}, "THREAD_STATE"),
        ({"drops": [types.ThreadReference(thread_id="open", fence=3)]}, "FENCE_STALE"),
        ({"open_threads": [types.NewThread(thread_id="open", text="again")]}, "THREAD_STATE"),
        ({"decisions": [types.NewDecision(decision_id="d", text="again")]}, "INVALID_FIELD"),
        ({"decisions": [types.NewDecision(text="x", supersedes=["none"])]}, "INVALID_FIELD"),
    ],
)
async def test_a_refused_episode_takes_its_whole_call_with_it(stubs: Stubs, fields: dict, reason: str) -> None:  # type: ignore[type-arg]
    await stubs.session()
    await stubs.append(
        new_episode(
            open_threads=[types.NewThread(thread_id=name, text=name) for name in ("open", "done")],
            decisions=[types.NewDecision(decision_id="d", text="d")],
        ),
        new_episode(resolves=[types.ThreadReference(thread_id="done")]),
    )
    refused = await refusal(stubs.append(new_episode("good"), new_episode("bad", **fields), new_episode("good")))
    assert refused.reason == reason
    assert await stubs.positions() == [1, 2]


async def test_five_hundred_episodes_are_one_call_and_501_are_refused(stubs: Stubs) -> None:
    await stubs.session()
    answer = await stubs.append(*(new_episode(str(number)) for number in range(500)))
    assert [episode.revision for episode in answer.episodes] == list(range(1, 501))
    refused = await refusal(stubs.append(*(new_episode() for _ in range(501))))
    assert refused.reason == "INVALID_FIELD"
    assert len(await stubs.positions()) == 500


async def test_a_caller_that_goes_away_does_not_take_others_with_it(stubs: Stubs) -> None:
    await stubs.session()
    news = [new_episode() for _ in range(60)]
    calls = [asyncio.ensure_future(stubs.append(new)) for new in news]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    again = await asyncio.gather(*(stubs.append(new) for new in news))
    positions = sorted(answer.episodes[0].position for answer in again)
    assert positions == list(range(1, 61))


async def test_nothing_of_an_episode_id_says_where_it_is_ordered(stubs: Stubs) -> None:
    await stubs.session()
    late, early = uuid.UUID(int=(7 << 76) | (1 << 120)), uuid.UUID(int=(7 << 76) | 1)
    for number in (late, early):
        await stubs.append(new_episode(episode_id=str(number)))
    listed = (await stubs.episodes.ListEpisodes(pb.ListEpisodesRequest())).episodes
    assert [episode.episode_id for episode in listed] == [str(late), str(early)]


async def test_clocks_that_are_wrong_are_accepted_and_order_nothing(stubs: Stubs) -> None:
    await stubs.session()
    sent: list[types.NewEpisode] = []
    for milliseconds in (4_102_444_800_000, 0, (1 << 48) - 1, 1_700_000_000_000, 1):
        version_7 = uuid.UUID(int=(milliseconds << 80) | (7 << 76) | (2 << 62) | len(sent))
        sent.append(new_episode(episode_id=str(version_7)))
        sent[-1].event_time.FromMilliseconds(min(milliseconds, 4_102_444_800_000))
        assert (await stubs.append(sent[-1])).episodes[0].position == len(sent)
    listed = (await stubs.episodes.ListEpisodes(pb.ListEpisodesRequest())).episodes
    assert [episode.episode_id for episode in listed] == [new.episode_id for new in sent]
    assert [episode.event_time for episode in listed] == [new.event_time for new in sent]
    times = [episode.commit_time.ToNanoseconds() for episode in listed]
    assert times == sorted(times)
    for new in sent:
        assert (await stubs.append(new)).deduplicated


async def test_times_never_go_back_though_the_databases_clock_does(stubs: Stubs, database_url: str) -> None:
    await stubs.session()
    await stubs.append(new_episode())
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        await connection.execute("UPDATE log SET time = clock_timestamp() + interval '1 hour'")
    await stubs.append(new_episode())
    await stubs.append(new_episode(), expectation=pb.Expectation(revision=2))
    listed = (await stubs.episodes.ListEpisodes(pb.ListEpisodesRequest())).episodes
    times = [episode.commit_time.ToNanoseconds() for episode in listed]
    assert len(times) == 3
    assert times == sorted(times)


async def test_an_append_updates_no_row_that_others_append_beside(stubs: Stubs, database_url: str) -> None:
    versions = "SELECT ctid::text FROM {}"
    await stubs.session()
    await stubs.append(new_episode())
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:

        async def seen() -> list[object]:
            tables = ("namespaces", "sessions", "agents")
            return [await (await connection.execute(SQL(versions).format(Identifier(t)))).fetchall() for t in tables]

        before = await seen()
        await stubs.append(new_episode())
        await stubs.append(*(new_episode(kind="vote") for _ in range(3)), expectation=pb.Expectation(revision=2))
        await stubs.append(new_episode(open_threads=[types.NewThread(text="t")]))
        assert await seen() == before
