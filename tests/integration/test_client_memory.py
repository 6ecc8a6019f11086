from __future__ import annotations

from datetime import UTC, datetime, timedelta

import hivemem
import pytest


async def test_a_session_is_made_once_and_found_again(memory: hivemem.Client) -> None:
    made = await memory.session("s", user_id="u", goal="find prices", labels={"team": "a"})
    again = await memory.session("s", user_id="u", goal="another goal")
    found = await memory.get_session("s")
    assert [made.created, again.created, found.created] == [True, False, False]
    assert made.info == again.info == found.info
    assert (made.info.user_id, made.info.goal, made.info.labels) == ("u", "find prices", {"team": "a"})
    assert (made.info.state, made.info.namespace) == (hivemem.SessionState.OPEN, memory.namespace)


async def test_a_session_of_another_user_is_refused_and_an_unknown_one_not_found(memory: hivemem.Client) -> None:
    await memory.session("s", user_id="u")
    with pytest.raises(hivemem.SessionExists):
        await memory.session("s", user_id="v")
    with pytest.raises(hivemem.SessionNotFound) as caught:
        await memory.get_session("nowhere")
    assert caught.value.reason == "SESSION_NOT_FOUND"
    assert caught.value.metadata["session_id"] == "nowhere"


async def test_a_session_can_be_changed_and_closed(memory: hivemem.Client) -> None:
    session = await memory.session("s", goal="old", labels={"a": "1"})
    assert (await session.update(goal="new")).labels == {"a": "1"}
    assert (await session.update(labels={})).goal == "new"
    assert (await session.close()).state is hivemem.SessionState.CLOSED
    assert (await session.close()).close_time == session.info.close_time
    assert (await (await memory.get_session("s")).refresh()) == session.info
    with pytest.raises(hivemem.SessionClosed):
        await session.agent("a").append(summary="too late")


async def test_sessions_are_listed_newest_first_over_pages(memory: hivemem.Client) -> None:
    for number in range(105):
        await memory.session(f"s-{number}", user_id="even" if number % 2 == 0 else "odd")
    listed = [session.session_id async for session in memory.sessions()]
    assert listed == [f"s-{number}" for number in reversed(range(105))]
    odd = [session.user_id async for session in memory.sessions(user_id="odd")]
    assert odd == ["odd"] * 52


async def test_an_episode_comes_back_as_it_went(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    noon = datetime(2026, 5, 4, 12, 0, 0, 123_456, tzinfo=UTC)
    new = hivemem.NewEpisode(
        summary="Acme lowered its price – 9 €",
        turn=7,
        kind="finding",
        tags=["price", "acme"],
        attributes={"text": "x", "whole": 2**60, "part": 0.25, "yes": True},
        event_time=noon,
        decisions=[hivemem.NewDecision(text="we stay at 12", decision_id="d-1")],
        open_threads=[hivemem.NewThread(text="ask Initech", priority=3, tags=["ask"], plan_id="p", step=1)],
        to_agents=["writer"],
    )
    (done,) = await session.agent("researcher").append_all([new])
    episode = (await session.episode(done.episode_id)).episode
    assert (episode.episode_id, episode.position, episode.revision) == (new.episode_id, done.position, done.revision)
    assert (episode.session_id, episode.agent_id, episode.commit_time) == ("s", "researcher", done.commit_time)
    assert (episode.summary, episode.turn, episode.kind, episode.event_time) == (new.summary, 7, "finding", noon)
    assert (episode.tags, episode.attributes, episode.to_agents) == (("price", "acme"), new.attributes, ("writer",))
    assert episode.decisions == (hivemem.Decision(decision_id="d-1", text="we stay at 12"),)
    assert episode.open_threads == (
        hivemem.OpenThread(
            thread_id=done.thread_ids[0], text="ask Initech", priority=3, tags=("ask",), plan_id="p", step=1
        ),
    )


async def test_appending_again_stores_nothing(memory: hivemem.Client) -> None:
    agent = (await memory.session("s")).agent("a")
    first = await agent.append(summary="once", open_threads=["t"], expect=hivemem.NoStream())
    again = await agent.append(
        summary="once", open_threads=["t"], episode_id=first.episode_id, expect=hivemem.NoStream()
    )
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert (again.position, again.thread_ids) == (first.position, first.thread_ids)
    with pytest.raises(hivemem.EpisodeIdReused):
        await agent.append(summary="something else", episode_id=first.episode_id)


async def test_a_wrong_belief_about_the_stream_is_a_conflict(memory: hivemem.Client) -> None:
    agent = (await memory.session("s")).agent("a")
    with pytest.raises(hivemem.RevisionConflict):
        await agent.append(summary="x", expect=hivemem.StreamExists())
    await agent.append_all([hivemem.NewEpisode(summary=f"{number}") for number in range(3)])
    with pytest.raises(hivemem.RevisionConflict) as caught:
        await agent.append(summary="x", expect=hivemem.Revision(2))
    assert caught.value.actual == 3
    assert (await agent.append(summary="x", expect=hivemem.Revision(3))).revision == 4


async def test_all_violations_of_a_call_are_listed_and_nothing_is_written(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    with pytest.raises(hivemem.InvalidField) as caught:
        await session.agent("not an id").append_all(
            [hivemem.NewEpisode(summary=""), hivemem.NewEpisode(summary="ok", turn=-1)]
        )
    fields = {violation.field for violation in caught.value.violations}
    assert {"agent_id", "episodes[0].summary", "episodes[1].turn"} <= fields
    assert [episode async for episode in session.episodes()] == []


async def test_episodes_are_listed_both_ways_over_pages(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    for agent in ("a", "b"):
        episodes = [hivemem.NewEpisode(summary=f"{number}", tags=[f"t{number % 2}"]) for number in range(120)]
        await session.agent(agent).append_all(episodes)
    forwards = [episode.position async for episode in session.episodes()]
    backwards = [episode.position async for episode in session.episodes(newest_first=True)]
    assert len(forwards) == 240
    assert forwards == sorted(forwards) == backwards[::-1]
    odd = [episode async for episode in session.episodes(agents=["b"], tags=["t1"])]
    assert [episode.summary for episode in odd] == [f"{number}" for number in range(1, 120, 2)]
    assert {episode.agent_id for episode in odd} == {"b"}


async def test_a_filter_goes_together_with_the_short_words(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    done = await session.agent("a").append_all([hivemem.NewEpisode(summary=f"{number}") for number in range(4)])
    await session.agent("b").append(summary="4")
    positions = hivemem.PositionRange(after=done[1].position)
    found = [one.summary async for one in memory.episodes(filter=hivemem.Filter(positions=positions), agents=["a"])]
    assert found == ["2", "3"]


async def test_an_episode_comes_with_its_neighbours(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    for number in range(6):
        await session.agent("a" if number % 2 == 0 else "b").append(summary=f"{number}")
    middle = [episode async for episode in session.episodes()][2]
    found = await memory.episode(middle.position, before=1, after=2)
    assert [one.summary for one in (*found.before, found.episode, *found.after)] == ["1", "2", "3", "4"]
    stream = await memory.episode(middle.episode_id, before=1, after=2, of_stream=True)
    assert [one.summary for one in (*stream.before, stream.episode, *stream.after)] == ["0", "2", "4"]
    with pytest.raises(hivemem.EpisodeNotFound):
        await memory.episode(str(hivemem.uuid7()))


async def test_threads_open_and_are_resolved_by_episodes(memory: hivemem.Client) -> None:
    session = await memory.session("s", user_id="u")
    opened = await session.agent("a").append(summary="x", open_threads=["one", "two"])
    done = await session.agent("b").append(summary="y", resolves=[opened.thread_ids[0]])
    threads = [thread async for thread in session.threads()]
    assert [(thread.text, thread.state) for thread in threads] == [("one", "resolved"), ("two", "open")]
    assert (threads[0].ended_by_agent_id, threads[0].ended_by_episode_id) == ("b", done.episode_id)
    assert (threads[1].session_id, threads[1].user_id, threads[1].agent_id) == ("s", "u", "a")
    still_open = [thread.text async for thread in memory.threads(states=["open"], users=["u"])]
    assert still_open == ["two"]
    with pytest.raises(hivemem.ThreadNotFound):
        await session.agent("b").append(summary="z", resolves=["nothing"])


async def test_words_are_found_at_once(memory: hivemem.Client) -> None:
    session = await memory.session("s", user_id="u")
    done = await session.agent("researcher").append(summary="Initech charges forty euros for a seat")
    await session.agent("writer").append(summary="The brief has three chapters about penguins")
    hits = await session.search("Initech", limit=1)
    assert [hit.episode.position for hit in hits] == [done.position]
    assert "«Initech»" in hits[0].snippet
    assert hits.head_position == 2
    assert len(await session.search("Initech", agents=["writer"])) == 0
    relevant = await memory.relevant("how much is a seat?", user_id="u")
    assert [hit.episode.position for hit in relevant] == [done.position]
    assert len(await memory.relevant("how much is a seat?", user_id="v")) == 0


async def test_meaning_is_found_when_it_is_indexed(searching_memory: hivemem.Client) -> None:
    session = await searching_memory.session("s")
    await session.agent("writer").append(summary="The brief has three chapters about penguins")
    done = await session.agent("researcher").append(summary="Initech charges forty euros for a seat")
    hits = await session.search("what does it cost?", wait_for_position=done.position, limit=1, explain=True)
    assert [hit.episode.position for hit in hits] == [done.position]
    assert hits.indexed_position >= done.position
    assert hits[0].explanation is not None
    assert hits[0].explanation.vector > 0


async def test_resume_gives_what_is_needed_to_go_on(memory: hivemem.Client) -> None:
    session = await memory.session("first", user_id="u", goal="a pricing study")
    done = await session.agent("a").append(
        summary="read two price lists", decisions=["use euros"], open_threads=["ask"]
    )
    for resumed in (await memory.resume(user_id="u"), await session.resume(agent_id="a")):
        assert resumed.session is not None
        assert resumed.session.session_id == "first"
        assert [episode.episode_id for episode in resumed.episodes] == [done.episode_id]
        assert [standing.decision.text for standing in resumed.decisions] == ["use euros"]
        assert [thread.text for thread in resumed.open_threads] == ["ask"]
        system, user, assistant = (message.as_dict() for message in resumed.messages)
        assert system["content"].startswith("[RESUMED_SESSION] Last active: read two price lists")
        assert "a pricing study" in user["content"]
        assert assistant == {"role": "assistant", "content": "Resuming from where we left off: read two price lists"}
        assert resumed.position >= done.position


async def test_a_user_without_history_gets_an_empty_answer(memory: hivemem.Client) -> None:
    resumed = await memory.resume(user_id="nobody")
    assert (resumed.session, resumed.messages, resumed.episodes) == (None, (), ())
    with pytest.raises(hivemem.SessionNotFound):
        await memory.resume(session_id="nowhere")
    with pytest.raises(TypeError, match="either"):
        await memory.resume()


async def test_what_is_appended_after_a_resume_is_followed_from_its_cursor(memory: hivemem.Client) -> None:
    session = await memory.session("s", user_id="u")
    await session.agent("a").append(summary="before")
    resumed = await memory.resume(user_id="u")
    await session.agent("a").append(summary="after")
    async with session.subscribe(after=resumed.cursor) as stream:
        assert (await anext(stream)).summary == "after"


async def test_a_session_goes_on_from_an_earlier_one(memory: hivemem.Client) -> None:
    first = await memory.session("first", user_id="u")
    await first.agent("a").append(summary="begun", open_threads=["unfinished"])
    second = await memory.session("second", user_id="u", continues=first)
    assert second.info.continues_session_id == "first"
    resumed = await second.resume()
    assert [session.session_id for session in resumed.continued_sessions] == ["first"]
    assert [thread.text for thread in resumed.open_threads] == ["unfinished"]


async def test_namespaces_are_made_listed_and_apart(memory: hivemem.Client) -> None:
    made = await memory.create_namespace("another", hivemem.NamespaceSettings(description="for a test"))
    assert made == await memory.create_namespace("another", hivemem.NamespaceSettings(description="for a test"))
    with pytest.raises(hivemem.NamespaceExists):
        await memory.create_namespace("another", hivemem.NamespaceSettings(description="for another test"))
    assert {memory.namespace, "another"} <= {found.name async for found in memory.namespaces()}
    await memory.session("s")
    async with hivemem.Client(memory.address, namespace="another") as other:
        with pytest.raises(hivemem.SessionNotFound):
            await other.get_session("s")
    async with hivemem.Client(memory.address, namespace="nowhere") as other:
        with pytest.raises(hivemem.NamespaceNotFound):
            await other.connect()


async def test_stats_count_what_is_there(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await session.agent("a").append(summary="x", open_threads=["t"])
    stats = await memory.stats()
    assert (stats.session_count, stats.open_session_count, stats.agent_count) == (1, 1, 1)
    assert (stats.episode_count, stats.open_thread_count) == (1, 1)
    assert (stats.namespace.name, stats.namespace.head_position) == (memory.namespace, 1)
    assert stats.server.start_time is not None
    assert datetime.now(UTC) - stats.server.start_time < timedelta(days=1)


async def test_an_unknown_word_is_a_mistake_of_the_caller(memory: hivemem.Client) -> None:
    with pytest.raises(TypeError, match="unknown keywords: agent"):
        await memory.search("x", agent=["a"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="agent_ids takes a list"):
        await memory.search("x", agents="researcher")
