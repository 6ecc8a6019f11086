"""Resuming: everything that an agent needs to go on, from what is stored."""

from __future__ import annotations

import hivemem
from fix_stubs import Stubs, new_episode
from hivemem.v1 import session_service_pb2 as pb
from hivemem.v1 import types_pb2 as types

MARK = "[RESUMED_SESSION] Last active:"


async def test_a_user_without_history_gets_an_empty_well_formed_answer(memory: hivemem.Client) -> None:
    resumed = await memory.resume(user_id="nobody")
    assert resumed.session is None
    assert (list(resumed.messages), list(resumed.episodes), list(resumed.open_threads)) == ([], [], [])
    assert resumed.cursor


async def test_a_session_is_resumed_with_its_last_word_goal_and_open_threads(memory: hivemem.Client) -> None:
    session = await memory.session("s", user_id="u", goal="Find out what competitors charge.")
    await session.agent("researcher").append(
        summary="Read two price lists.", open_threads=["Read the third price list."]
    )
    await session.agent("writer").append(summary="Drafted the first page.", decisions=["Prices are monthly."])
    for resumed in (await memory.resume(session_id="s"), await memory.resume(user_id="u")):
        system, goal, confirmation = resumed.messages
        assert system.content.startswith(f"{MARK} Drafted the first page.")
        assert "Prices are monthly." in system.content
        assert goal.content.startswith("Goal: Find out what competitors charge.")
        assert "Read the third price list." in goal.content
        assert confirmation.content == "Resuming from where we left off: Drafted the first page."
        assert [episode.agent_id for episode in resumed.episodes] == ["researcher", "writer"]
        assert [message.role.name for message in resumed.messages] == ["SYSTEM", "USER", "ASSISTANT"]


async def test_every_open_thread_is_there_not_only_the_last_episodes(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    agent = session.agent("a")
    first = await agent.append(summary="first", open_threads=["left long ago", "done since"])
    for number in range(30):
        await agent.append(summary=f"work {number}")
    await agent.append(summary="did it", resolves=[f"{first.episode_id}/t2"])
    resumed = await session.resume()
    assert [thread.text for thread in resumed.open_threads] == ["left long ago"]
    assert len(resumed.episodes) == 10


async def test_superseded_decisions_do_not_stand(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    agent = session.agent("a")
    await agent.append(summary="x", decisions=[hivemem.NewDecision(decision_id="d1", text="Use euros.")])
    await agent.append(
        summary="y", decisions=[hivemem.NewDecision(text="Use dollars.", supersedes=("d1",)), "Round up."]
    )
    resumed = await session.resume()
    assert [standing.decision.text for standing in resumed.decisions] == ["Use dollars.", "Round up."]


async def test_a_plan_says_at_which_step_it_is(memory: hivemem.Client) -> None:
    session = await memory.session("s", goal="Migrate.")
    steps = [
        hivemem.NewThread(thread_id=f"step-{n}", text=f"Do part {n}.", plan_id="move", step=n) for n in range(1, 7)
    ]
    await session.agent("a").append(summary="planned", open_threads=steps)
    await session.agent("a").append(summary="three are done", resolves=["step-1", "step-2", "step-3"])
    resumed = await session.resume()
    plan = resumed.plans[0]
    assert (plan.current_step, plan.total_steps, plan.resolved_steps) == (4, 6, 3)
    assert "Plan move: at step 4 of 6" in resumed.messages[1].content
    assert [thread.step for thread in resumed.open_threads] == [4, 5, 6]


async def test_a_session_that_continues_another_brings_what_that_left(memory: hivemem.Client) -> None:
    first = await memory.session("monday", user_id="u", goal="Migrate.")
    await first.agent("a").append(summary="stopped at six", decisions=["Keep ids."], open_threads=["Move table four."])
    await first.close()
    second = await memory.session("tuesday", user_id="u", goal="Go on.", continues="monday")
    resumed = await second.resume()
    assert [session.session_id for session in resumed.continued_sessions] == ["monday"]
    assert [thread.text for thread in resumed.open_threads] == ["Move table four."]
    assert [standing.decision.text for standing in resumed.decisions] == ["Keep ids."]
    assert resumed.episodes[-1].summary == "stopped at six"


async def test_a_user_resumes_the_open_session_with_the_newest_episode(memory: hivemem.Client) -> None:
    old = await memory.session("old", user_id="u")
    new = await memory.session("new", user_id="u")
    await new.agent("a").append(summary="earlier")
    await old.agent("a").append(summary="later")
    resumed = await memory.resume(user_id="u")
    assert resumed.session is not None
    assert resumed.session.session_id == "old"
    assert [summary.session_id for summary in resumed.summaries] == ["new"]
    await old.close()
    resumed = await memory.resume(user_id="u")
    assert resumed.session is not None
    assert resumed.session.session_id == "new"


async def test_the_messages_stay_within_their_budget_and_name_what_did_not_fit(memory: hivemem.Client) -> None:
    session = await memory.session("s", user_id="u", goal="A goal. " * 200)
    agent = session.agent("a")
    for number in range(20):
        await agent.append(
            summary=f"episode {number} " + "with many words " * 30, open_threads=[f"thread {number} " * 20]
        )
    for budget in (100, 200, 500, 1_000, 5_000):
        resumed = await memory.resume(session_id="s", max_tokens=budget)
        assert 0 < resumed.token_count <= budget
        assert any(omission.what == "open_threads" for omission in resumed.omitted) == (budget < 5_000)
        assert len(resumed.messages) == 3


async def test_what_happened_since_a_cursor_is_counted(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await session.agent("a").append(summary="before", open_threads=["t"])
    cursor = (await session.resume()).cursor
    first = await session.agent("b").append(summary="while away", open_threads=["u", "v"])
    await session.agent("b").append(summary="again", resolves=[f"{first.episode_id}/t1"])
    away = (await memory.resume(session_id="s", since=cursor)).away
    assert away is not None
    assert dict(away.episode_counts) == {"b": 2}
    assert (away.opened_thread_count, away.ended_thread_count) == (2, 1)


async def test_the_cursor_of_a_resume_misses_nothing_and_repeats_nothing(memory: hivemem.Client) -> None:
    session = await memory.session("s")
    await session.agent("a").append(summary="before")
    resumed = await session.resume()
    await session.agent("a").append(summary="after")
    async with session.subscribe(after=resumed.cursor) as stream:
        async for episode in stream:
            assert episode.summary == "after"
            break


async def big_session(stubs: Stubs) -> None:
    """Everything at its limits or beyond: 105 episodes of 32 KiB, 1,088 threads and decisions of 4 KiB."""
    labels = {f"{n:0128}": "v" * 128 for n in range(64)}
    before = ""
    for number in range(30):
        await stubs.session(
            f"before-{number}", user_id="u", goal="g" * 4096, labels=labels, continues_session_id=before
        )
        before = f"before-{number}"
    await stubs.session("s", user_id="u", goal="g" * 4096, labels=labels, continues_session_id=before)
    for number in range(30):
        await stubs.session(f"other-{number}", user_id="u", goal="g" * 4096)
        await stubs.append(new_episode("o" * 32_768), session_id=f"other-{number}")
    for number in range(17):
        threads = [
            types.NewThread(thread_id=f"{number}/{n}", text="t" * 4096, plan_id=f"plan-{n}/{number}", step=1)
            for n in range(64)
        ]
        decisions = [types.NewDecision(text="d" * 4096)] * 64
        await stubs.append(new_episode("e" * 32_768, open_threads=threads, decisions=decisions))
    await stubs.append(*(new_episode("e" * 32_768) for _ in range(100)), agent_id="b")


async def test_what_is_resumed_at_all_its_limits_fits_into_a_message_and_says_what_it_lacks(stubs: Stubs) -> None:
    await big_session(stubs)
    cursor = (await stubs.sessions.ResumeSession(pb.ResumeSessionRequest(user_id="nobody"))).cursor
    start = await stubs.sessions.ResumeSession(pb.ResumeSessionRequest(session_id="s"))
    assert start.cursor == cursor
    request = pb.ResumeSessionRequest(
        session_id="s", max_episodes=100, max_summaries=100, max_injected_summaries=100, max_tokens=100_000
    )
    resumed = await stubs.sessions.ResumeSession(request)
    assert resumed.ByteSize() < 4 * 1024 * 1024
    assert resumed.token_count <= 100_000
    omitted = {one.what: one.count for one in resumed.omitted}
    stored = {
        "episodes": 100, "decisions": 17 * 64, "open_threads": 17 * 64, "plans": 17 * 64, "summaries": 30,
        "continued_sessions": 30,
    }  # fmt: skip
    for name, count in stored.items():
        assert len(getattr(resumed, name)) + omitted.get(f"listed_{name}", 0) == count, name
    assert omitted["listed_plans"] == 88
    goal = resumed.messages[1].content
    assert goal.count("\n- ") + omitted["open_threads"] == 17 * 64
    assert goal.count("\nPlan ") + omitted.get("plans", 0) == 17 * 64
    assert resumed.messages[0].content.count("\n- d") + omitted["decisions"] == 17 * 64


async def test_agents_of_a_session_come_with_their_newest_episodes(stubs: Stubs) -> None:
    await stubs.session("old")
    await stubs.session("s", continues_session_id="old")
    await stubs.session("other")
    for session_id, agent_id in [("old", "a"), ("old", "c"), ("s", "a"), ("s", "b"), ("other", "d"), ("s", "a")]:
        await stubs.append(new_episode(), session_id=session_id, agent_id=agent_id)
    resumed = await stubs.sessions.ResumeSession(pb.ResumeSessionRequest(session_id="s"))
    assert [(agent.agent_id, agent.last_position) for agent in resumed.agents] == [("a", 6), ("b", 4), ("c", 2)]
