"""Snippets: the sentence that fits, its words marked, of bounded length."""

from __future__ import annotations

import datetime as dt
import uuid

from hivemem_server.domain.snippets import LONGEST, snippet
from hivemem_server.domain.values import Decision, Episode
from hypothesis import given
from hypothesis import strategies as st


def episode(summary: str, *decisions: str) -> Episode:
    return Episode(
        episode_id=uuid.uuid4(), summary=summary, position=1, session_id="s", agent_id="a", revision=1,
        commit_time=dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        decisions=tuple(Decision(decision_id=str(n), text=text) for n, text in enumerate(decisions)),
    )  # fmt: skip


def test_the_sentence_with_most_of_the_words_is_shown() -> None:
    shown = snippet(episode("It rained. The rival raised its prices in May. We left."), "pricing of the rival")
    assert shown == "The «rival» raised its «prices» in May."


def test_a_decision_may_fit_best() -> None:
    assert snippet(episode("It rained.", "Use list prices."), "price") == "Use list «prices»."


@given(st.text(max_size=2_000), st.text(max_size=50))
def test_a_snippet_is_short(summary: str, query: str) -> None:
    assert len(snippet(episode(summary), query).replace("«", "").replace("»", "")) <= LONGEST + 2
