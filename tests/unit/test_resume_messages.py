"""Resume messages: never over their budget, deterministic, and honest about what was left out."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

from hivemem_server.domain.resume import MARK, PlanProgress, ResumeMaterial, SessionSummary, build_messages
from hivemem_server.domain.tokens import MESSAGE_OVERHEAD, cut_to_tokens, estimated_tokens
from hivemem_server.domain.values import (
    Decision,
    Episode,
    OpenThread,
    Point,
    Session,
    SessionState,
    StandingDecision,
    Thread,
    ThreadState,
)
from hypothesis import given
from hypothesis import strategies as st

NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=300)


def session(goal: str) -> Session:
    return Session(
        session_id="s", user_id="u", goal=goal, labels={}, state=SessionState.OPEN, continues_session_id="",
        create_time=NOW, update_time=NOW, close_time=None, last_position=1, last_episode_time=NOW,
    )  # fmt: skip


def episode(position: int, summary: str) -> Episode:
    return Episode(
        episode_id=uuid.UUID(int=position), summary=summary, position=position, session_id="s", agent_id="a",
        revision=position, commit_time=NOW,
    )  # fmt: skip


def thread(number: int, text: str) -> Thread:
    return Thread(
        opened=OpenThread(thread_id=f"t{number}", text=text), state=ThreadState.OPEN, session_id="s", user_id="u",
        agent_id="a", episode_id=uuid.UUID(int=1), position=1, open_time=NOW,
    )  # fmt: skip


def decision(number: int, text: str) -> StandingDecision:
    return StandingDecision(
        decision=Decision(decision_id=f"d{number}", text=text), agent_id="a", session_id="s", position=number,
        episode_id=uuid.UUID(int=number), time=NOW,
    )  # fmt: skip


def summary(number: int, text: str) -> SessionSummary:
    return SessionSummary(session_id=f"old-{number}", goal="", summary=text, position=number, time=NOW)


def plan(number: int, text: str) -> PlanProgress:
    return PlanProgress(plan_id=f"{number}-{text}", current_step=number, total_steps=number + 5, resolved_steps=1)


@st.composite
def materials(draw: st.DrawFn) -> ResumeMaterial:
    def numbered(make: Callable[[int, str], Any], most: int) -> list[Any]:
        return [make(number, text) for number, text in enumerate(draw(st.lists(words, max_size=most)), 1)]

    return ResumeMaterial(
        session=session(draw(words)), episodes=numbered(episode, 10), decisions=numbered(decision, 10),
        open_threads=numbered(thread, 10), plans=numbered(plan, 30), summaries=numbered(summary, 10), left_out={},
        head=Point(position=1, record_id=uuid.UUID(int=1)),
    )  # fmt: skip


@given(materials(), st.integers(100, 3_000))
def test_messages_are_never_over_their_budget(material: ResumeMaterial, budget: int) -> None:
    built = build_messages(material, max_tokens=budget, injected=3)
    spent = sum(estimated_tokens(message.content) + MESSAGE_OVERHEAD for message in built.messages)
    assert spent == built.token_count <= budget


@given(materials(), st.integers(100, 3_000))
def test_messages_are_the_same_each_time(material: ResumeMaterial, budget: int) -> None:
    first, second = (build_messages(material, max_tokens=budget, injected=3) for _ in range(2))
    assert first == second


@given(materials(), st.integers(100, 1_500))
def test_what_did_not_fit_is_counted(material: ResumeMaterial, budget: int) -> None:
    built = build_messages(material, max_tokens=budget, injected=100)
    goal = built.messages[1].content
    assert goal.count("\n- ") >= len(material.open_threads) - built.omitted.get("open_threads", 0)
    assert goal.count("\nPlan ") >= len(material.plans) - built.omitted.get("plans", 0)


def test_the_first_message_begins_with_the_mark_and_the_last_word() -> None:
    material = ResumeMaterial(
        session=session("goal"), episodes=[episode(1, "old"), episode(2, "new")], left_out={},
        head=Point(position=2, record_id=uuid.UUID(int=2)),
    )  # fmt: skip
    built = build_messages(material, max_tokens=500, injected=3)
    assert built.messages[0].content.startswith(f"{MARK} new")
    assert "a: old" in built.messages[0].content


@given(st.text(max_size=400), st.integers(0, 200))
def test_a_cut_text_has_at_most_its_tokens(text: str, most: int) -> None:
    cut = cut_to_tokens(text, most)
    assert cut == text or estimated_tokens(cut) <= max(most, 1)


def test_many_plans_neither_burst_the_budget_nor_push_out_open_threads() -> None:
    material = ResumeMaterial(
        session=session("goal"), episodes=[episode(1, "word")], plans=[plan(n, "p" * 40) for n in range(1, 201)],
        open_threads=[thread(1, "to do")], left_out={"plans": 7, "open_threads": 3},
        head=Point(position=2, record_id=uuid.UUID(int=2)),
    )  # fmt: skip
    built = build_messages(material, max_tokens=300, injected=3)
    assert built.token_count <= 300
    goal = built.messages[1].content
    assert "to do" in goal
    assert built.omitted == {"plans": 207 - goal.count("\nPlan "), "open_threads": 3}
    assert goal.count("\nPlan ") > 0
