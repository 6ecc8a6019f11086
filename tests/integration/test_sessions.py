"""Namespaces, sessions, threads and reading episodes, over the wire."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from fix_stubs import Stubs, new_episode, refusal
from google.protobuf.field_mask_pb2 import FieldMask
from hivemem.v1 import admin_service_pb2, namespace_service_pb2, thread_service_pb2
from hivemem.v1 import episode_service_pb2 as episodes
from hivemem.v1 import session_service_pb2 as pb
from hivemem.v1 import types_pb2 as types

Create = pb.CreateSessionRequest


async def test_a_session_is_made_once_and_then_found(stubs: Stubs) -> None:
    request = Create(session_id="s", user_id="u", goal="g", labels={"team": "blue"})
    first = await stubs.sessions.CreateSession(request)
    again = await stubs.sessions.CreateSession(Create(session_id="s", user_id="u", goal="another"))
    assert (first.created, again.created) == (True, False)
    assert again.session == first.session
    assert (first.session.goal, dict(first.session.labels)) == ("g", {"team": "blue"})


async def test_a_session_of_another_user_is_not_handed_out(stubs: Stubs) -> None:
    await stubs.session("s", user_id="u")
    refused = await refusal(stubs.sessions.CreateSession(Create(session_id="s", user_id="v")))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "SESSION_EXISTS")


async def test_an_agent_that_names_no_user_finds_the_session_of_any(stubs: Stubs) -> None:
    await stubs.session("s", user_id="u")
    found = await stubs.sessions.CreateSession(Create(session_id="s"))
    assert (found.created, found.session.user_id) == (False, "u")


async def test_a_session_continues_only_one_that_is_there(stubs: Stubs) -> None:
    refused = await refusal(stubs.sessions.CreateSession(Create(session_id="s", continues_session_id="none")))
    assert refused.reason == "SESSION_NOT_FOUND"
    assert (await refusal(stubs.sessions.GetSession(pb.GetSessionRequest(session_id="s")))).reason == refused.reason


async def test_sessions_are_listed_newest_first_in_pages_that_nothing_disturbs(stubs: Stubs) -> None:
    for number in range(5):
        await stubs.session(f"s{number}", user_id=f"u{number % 2}")
    request = pb.ListSessionsRequest(page_size=2)
    seen: list[str] = []
    while True:
        page = await stubs.sessions.ListSessions(request)
        seen += [session.session_id for session in page.sessions]
        await stubs.session(f"later-{len(seen)}")
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == ["s4", "s3", "s2", "s1", "s0"]
    mine = await stubs.sessions.ListSessions(pb.ListSessionsRequest(user_ids=["u1"]))
    assert [session.session_id for session in mine.sessions] == ["s3", "s1"]


async def test_sessions_are_found_by_state_and_labels(stubs: Stubs) -> None:
    await stubs.session("a", labels={"k": "v", "m": "n"})
    await stubs.session("b", labels={"k": "w"})
    await stubs.sessions.CloseSession(pb.CloseSessionRequest(session_id="b"))
    closed = await stubs.sessions.ListSessions(pb.ListSessionsRequest(state=pb.SESSION_STATE_CLOSED))
    labelled = await stubs.sessions.ListSessions(pb.ListSessionsRequest(labels={"k": "v"}))
    assert [session.session_id for session in closed.sessions] == ["b"]
    assert [session.session_id for session in labelled.sessions] == ["a"]


async def test_an_update_changes_what_its_mask_names(stubs: Stubs) -> None:
    await stubs.session("s", goal="old", labels={"k": "v"})
    request = pb.UpdateSessionRequest(session_id="s", goal="new")
    updated = (await stubs.sessions.UpdateSession(request)).session
    assert (updated.goal, dict(updated.labels)) == ("new", {"k": "v"})
    request = pb.UpdateSessionRequest(session_id="s", update_mask=FieldMask(paths=["labels"]))
    updated = (await stubs.sessions.UpdateSession(request)).session
    assert (updated.goal, dict(updated.labels)) == ("new", {})
    request.update_mask.paths.append("user_id")
    assert (await refusal(stubs.sessions.UpdateSession(request))).fields == ["update_mask.paths[1]"]


async def test_a_session_knows_its_newest_episode(stubs: Stubs) -> None:
    await stubs.session("s")
    await stubs.session("t")
    answer = await stubs.append(new_episode(), new_episode())
    await stubs.append(new_episode(), session_id="t")
    session = (await stubs.sessions.GetSession(pb.GetSessionRequest(session_id="s"))).session
    assert session.last_position == 2
    assert session.last_episode_time == answer.episodes[1].commit_time


async def test_closing_twice_changes_nothing(stubs: Stubs) -> None:
    await stubs.session("s")
    first = await stubs.sessions.CloseSession(pb.CloseSessionRequest(session_id="s"))
    again = await stubs.sessions.CloseSession(pb.CloseSessionRequest(session_id="s"))
    assert first.session == again.session
    assert first.session.state == pb.SESSION_STATE_CLOSED


async def test_namespaces_are_logs_of_their_own(stubs: Stubs) -> None:
    create = namespace_service_pb2.CreateNamespaceRequest(namespace="team/a")
    assert (await stubs.namespaces.CreateNamespace(create)).created
    assert not (await stubs.namespaces.CreateNamespace(create)).created
    for namespace in ("", "team/a"):
        await stubs.session("s", namespace=namespace)
        answer = await stubs.append(new_episode(), namespace=namespace)
        assert answer.episodes[0].position == 1
    listed = await stubs.namespaces.ListNamespaces(namespace_service_pb2.ListNamespacesRequest())
    assert [(n.name, n.head_position) for n in listed.namespaces] == [("default", 1), ("team/a", 1)]


async def test_a_namespace_that_is_deleted_is_gone_and_may_be_made_again(stubs: Stubs) -> None:
    pb_ = namespace_service_pb2
    await stubs.namespaces.CreateNamespace(pb_.CreateNamespaceRequest(namespace="n"))
    await stubs.session("s", namespace="n")
    new = new_episode(open_threads=[types.NewThread(text="t")], decisions=[types.NewDecision(text="d")])
    await stubs.append(new, namespace="n")
    operation = (await stubs.namespaces.DeleteNamespace(pb_.DeleteNamespaceRequest(namespace="n"))).operation
    assert (operation.state, operation.done_count) == (types.OPERATION_STATE_SUCCEEDED, 1)
    assert (await refusal(stubs.append(new, namespace="n"))).reason == "NAMESPACE_NOT_FOUND"
    await stubs.namespaces.CreateNamespace(pb_.CreateNamespaceRequest(namespace="n"))
    await stubs.session("s", namespace="n")
    assert not (await stubs.append(new, namespace="n")).deduplicated


async def test_settings_of_a_namespace_are_kept_and_checked(stubs: Stubs) -> None:
    pb_ = namespace_service_pb2
    rules = pb_.RedactionSettings(enabled=True, kinds=["email"], patterns=["project-[0-9]+"])
    german = pb_.NamespaceSettings(description="d", text_language="german", labels={"k": "v"}, redaction=rules)
    await stubs.namespaces.CreateNamespace(pb_.CreateNamespaceRequest(namespace="n", settings=german))
    got = (await stubs.namespaces.GetNamespace(pb_.GetNamespaceRequest(namespace="n"))).namespace
    assert got.settings == german
    other = pb_.CreateNamespaceRequest(namespace="n", settings=pb_.NamespaceSettings(description="x"))
    assert (await refusal(stubs.namespaces.CreateNamespace(other))).reason == "NAMESPACE_EXISTS"
    update = pb_.UpdateNamespaceRequest(namespace="n", settings=pb_.NamespaceSettings(text_language="klingon"))
    assert (await refusal(stubs.namespaces.UpdateNamespace(update))).reason == "INVALID_FIELD"
    update.settings.text_language = "simple"
    updated = (await stubs.namespaces.UpdateNamespace(update)).namespace
    assert (updated.settings.text_language, updated.settings.description) == ("simple", "d")


async def test_pages_of_episodes_neither_repeat_nor_miss(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(7)))
    for order, expected in [
        (episodes.LIST_ORDER_OLDEST_FIRST, [1, 2, 3, 4, 5, 6, 7]),
        (episodes.LIST_ORDER_NEWEST_FIRST, [7, 6, 5, 4, 3, 2, 1]),
    ]:
        request = episodes.ListEpisodesRequest(order=order, page_size=3, filter=types.Filter(session_ids=["s"]))
        seen: list[int] = []
        while True:
            page = await stubs.episodes.ListEpisodes(request)
            seen += [episode.position for episode in page.episodes]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
            request.page_size = 2
        assert seen == expected


async def test_a_page_holds_what_a_message_can_carry(stubs: Stubs) -> None:
    await stubs.session()
    for _ in range(3):
        await stubs.append(*(new_episode("x" * 32_000) for _ in range(100)))
    request = episodes.ListEpisodesRequest(page_size=1_000)
    seen: list[int] = []
    while True:
        page = await stubs.episodes.ListEpisodes(request)
        assert page.ByteSize() < 5 * 1024 * 1024
        seen += [episode.position for episode in page.episodes]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == list(range(1, 301))


async def test_an_episode_comes_with_its_neighbours_in_the_session_or_stream(stubs: Stubs) -> None:
    await stubs.session("s")
    await stubs.session("t")
    for session_id, agent_id in [("s", "a"), ("s", "b"), ("t", "a"), ("s", "a"), ("s", "b"), ("s", "a")]:
        await stubs.append(new_episode(), session_id=session_id, agent_id=agent_id)
    request = episodes.GetEpisodeRequest(position=4, before=5, after=1)
    got = await stubs.episodes.GetEpisode(request)
    assert [episode.position for episode in (*got.before, got.episode, *got.after)] == [1, 2, 4, 5]
    request.neighbour_scope = episodes.NEIGHBOUR_SCOPE_STREAM
    got = await stubs.episodes.GetEpisode(request)
    assert [episode.position for episode in (*got.before, got.episode, *got.after)] == [1, 4, 6]


@pytest.mark.parametrize("position", [3, 99])
async def test_a_position_without_an_episode_is_not_found(stubs: Stubs, position: int) -> None:
    await stubs.session()
    await stubs.append(new_episode(open_threads=[types.NewThread(thread_id="t", text="t")]))
    await stubs.append(new_episode(resolves=[types.ThreadReference(thread_id="t")]))
    refused = await refusal(stubs.episodes.GetEpisode(episodes.GetEpisodeRequest(position=position)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "EPISODE_NOT_FOUND")


async def test_threads_are_listed_by_filter_in_their_order_and_in_pages(stubs: Stubs) -> None:
    await stubs.session("s", user_id="u")
    await stubs.session("t", user_id="v")
    thread = types.NewThread
    await stubs.append(
        new_episode(open_threads=[thread(thread_id="low", text="x"), thread(thread_id="top", text="x", priority=9)])
    )
    await stubs.append(new_episode(open_threads=[thread(thread_id="tag", text="x", tags=["y"])]), session_id="t")
    await stubs.append(new_episode(resolves=[types.ThreadReference(thread_id="low")]))

    async def listed(order: int = 0, **wanted: object) -> list[str]:
        request = thread_service_pb2.ListThreadsRequest(
            filter=thread_service_pb2.ThreadFilter(**wanted),  # type: ignore[arg-type]
            order=order,  # type: ignore[arg-type]
            page_size=1,
        )
        seen = []
        while True:
            page = await stubs.threads.ListThreads(request)
            seen += [thread.thread_id for thread in page.threads]
            if not page.next_page_token:
                return seen
            request.page_token = page.next_page_token

    assert await listed() == ["low", "top", "tag"]
    assert await listed(thread_service_pb2.THREAD_ORDER_NEWEST_FIRST) == ["tag", "top", "low"]
    assert await listed(thread_service_pb2.THREAD_ORDER_PRIORITY) == ["top", "low", "tag"]
    assert await listed(states=[thread_service_pb2.THREAD_STATE_OPEN]) == ["top", "tag"]
    assert await listed(states=[thread_service_pb2.THREAD_STATE_RESOLVED]) == ["low"]
    assert await listed(user_ids=["v"]) == ["tag"]
    assert await listed(any_tags=["y", "z"]) == ["tag"]
    assert await listed(session_ids=["s"], agent_ids=["none"]) == []


async def test_stats_count_what_is_there(stubs: Stubs) -> None:
    await stubs.session("s")
    await stubs.append(new_episode(open_threads=[types.NewThread(text="t")]), new_episode())
    stats = await stubs.admin.GetStats(admin_service_pb2.GetStatsRequest())
    counts = (
        stats.session_count,
        stats.open_session_count,
        stats.agent_count,
        stats.episode_count,
        stats.open_thread_count,
    )
    assert counts == (1, 1, 1, 2, 1)
    assert stats.namespace.head_position == 2
    assert stats.server.database_version


async def test_neighbours_are_cut_to_what_a_message_can_carry(stubs: Stubs) -> None:
    await stubs.session()
    for number in range(41):
        decisions = [types.NewDecision(text="d" * 4096)] * (60 if number == 20 else 30)
        await stubs.append(new_episode("x" * 32_768, decisions=decisions))
    got = await stubs.episodes.GetEpisode(episodes.GetEpisodeRequest(position=21, before=20, after=20))
    assert got.ByteSize() < 4 * 1024 * 1024
    assert [episode.position for episode in (*got.before, got.episode, *got.after)] == [18, 19, 20, 21, 22, 23, 24]


async def test_episodes_of_one_and_of_many_sessions_and_agents_are_listed_in_log_order(stubs: Stubs) -> None:
    for session_id in ("s", "t"):
        await stubs.session(session_id)
    for session_id, agent_id in [("s", "a"), ("t", "a"), ("s", "b"), ("t", "b"), ("s", "a"), ("t", "c")]:
        await stubs.append(new_episode(), session_id=session_id, agent_id=agent_id)

    async def listed(**wanted: list[str]) -> list[int]:
        request = episodes.ListEpisodesRequest(filter=types.Filter(**wanted))  # type: ignore[arg-type]
        return [episode.position for episode in (await stubs.episodes.ListEpisodes(request)).episodes]

    assert await listed(session_ids=["s"], agent_ids=["a"]) == [1, 5]
    assert await listed(session_ids=["s", "t"], agent_ids=["a"]) == [1, 2, 5]
    assert await listed(session_ids=["t"], agent_ids=["b", "c"]) == [4, 6]
    assert await listed(session_ids=["none"], agent_ids=["a"]) == []
    assert await listed(agent_ids=["b"]) == [3, 4]


LIST = types.ATTRIBUTE_OPERATOR_IN


def value(given: object) -> types.AttributeValue:
    match given:
        case bool():
            return types.AttributeValue(bool_value=given)
        case int():
            return types.AttributeValue(int_value=given)
        case float():
            return types.AttributeValue(double_value=given)
    return types.AttributeValue(string_value=str(given))


async def test_an_attribute_is_found_among_values_of_many_types(stubs: Stubs) -> None:
    await stubs.session()
    for given in (1, 1.5, True, "1", "true", 10**18, -0.0, 1e300):
        await stubs.append(new_episode(attributes={"k": value(given)}))

    async def listed(operator: types.AttributeOperator.ValueType, *values: object) -> list[int]:
        predicate = types.AttributePredicate(key="k", operator=operator, values=map(value, values))
        request = episodes.ListEpisodesRequest(filter=types.Filter(attributes=[predicate]))
        return [episode.position for episode in (await stubs.episodes.ListEpisodes(request)).episodes]

    assert await listed(LIST, 1.0, "true") == [1, 5]
    assert await listed(LIST, 1.5, True, "1", 10**18) == [2, 3, 4, 6]
    assert await listed(LIST, 0, 1e300, "none") == [7, 8]
    assert await listed(LIST, False) == []
    assert await listed(types.ATTRIBUTE_OPERATOR_EQUAL, 1) == [1]
    assert await listed(types.ATTRIBUTE_OPERATOR_NOT_EQUAL, 1.0) == [2, 3, 4, 5, 6, 7, 8]
    assert await listed(types.ATTRIBUTE_OPERATOR_GREATER, 1) == [2, 6, 8]
    assert await listed(types.ATTRIBUTE_OPERATOR_LESS, "2") == [4]
    assert await listed(types.ATTRIBUTE_OPERATOR_LESS_OR_EQUAL, True) == []


@pytest.mark.timeout(60)
async def test_a_filter_at_its_limits_is_answered(stubs: Stubs) -> None:
    kinds: list[Callable[[int], object]] = [int, lambda n: n + 0.5, str, lambda n: bool(n % 2)]
    predicates = [
        types.AttributePredicate(
            key=f"k{n}", operator=LIST, values=[value(kinds[(number + n) % 4](number)) for number in range(256)]
        )
        for n in range(64)
    ]
    wanted = types.Filter(attributes=predicates)
    await stubs.session()
    matching = {f"k{n}": predicates[n].values[n] for n in range(64)}
    await stubs.append(new_episode(attributes=matching), new_episode(attributes={**matching, "k63": value("none")}))
    page = await stubs.episodes.ListEpisodes(episodes.ListEpisodesRequest(filter=wanted))
    assert [episode.position for episode in page.episodes] == [1]
    conditions = [episodes.AppendCondition(filter=wanted)] * 2
    refused = await refusal(stubs.append(new_episode(), conditions=conditions))
    assert refused.metadata == {"conditions[0]": "1", "conditions[1]": "1"}
