"""Ranking: the same hits whatever the order of candidates, and neither words nor meaning can be shut out."""

from __future__ import annotations

import datetime as dt
import random
import uuid

import pytest
from hivemem_server.domain.ranking import Candidate, Weights, rank
from hivemem_server.domain.values import Episode
from hypothesis import given
from hypothesis import strategies as st

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def candidate(
    position: int, lexical: float | None = None, similarity: float | None = None, *, superseded: bool = False
) -> Candidate:
    episode = Episode(
        episode_id=uuid.uuid4(), summary="x", position=position, session_id="s", agent_id="a", revision=position,
        commit_time=START + dt.timedelta(days=position),
    )  # fmt: skip
    return Candidate(episode=episode, lexical=lexical, similarity=similarity, superseded=superseded)


candidates = st.lists(
    st.tuples(st.none() | st.floats(0, 100), st.none() | st.floats(-1, 1), st.booleans()), max_size=30
).map(lambda rows: [candidate(n, lex, sim, superseded=s) for n, (lex, sim, s) in enumerate(rows, 1)])

weights = st.builds(
    Weights,
    lexical=st.floats(0, 10),
    vector=st.floats(0, 10),
    recency=st.floats(0, 10),
    demote_superseded=st.booleans(),
)


@given(candidates, weights, st.integers(1, 40), st.randoms())
def test_hits_are_the_same_whatever_the_order_of_candidates(
    found: list[Candidate], weighing: Weights, limit: int, chance: random.Random
) -> None:
    shuffled = list(found)
    chance.shuffle(shuffled)
    assert rank(found, weighing, limit=limit) == rank(shuffled, weighing, limit=limit)


@given(candidates, weights)
def test_scores_are_between_zero_and_one_and_fall(found: list[Candidate], weighing: Weights) -> None:
    scores = [hit.parts.total for hit in rank(found, weighing, limit=100)]
    assert all(-1e-9 <= score <= 1 + 1e-9 for score in scores)
    assert scores == sorted(scores, reverse=True)


@given(candidates, weights, st.floats(0, 1))
def test_no_hit_is_below_the_lowest_score(found: list[Candidate], weighing: Weights, lowest: float) -> None:
    assert all(hit.parts.total >= lowest for hit in rank(found, weighing, limit=100, min_score=lowest))


def test_a_lone_weak_match_looks_weak() -> None:
    hits = rank([candidate(1, lexical=0.1, similarity=0.25)], Weights(), limit=1, full_lexical=1.0)
    assert hits[0].parts.total < 0.2


def test_a_hit_by_words_alone_can_win() -> None:
    hits = rank(
        [candidate(1, similarity=0.4), candidate(2, lexical=0.9), candidate(3, similarity=0.3)], Weights(), limit=3
    )
    assert hits[0].candidate.episode.position == 2


def test_a_hit_by_meaning_alone_can_win() -> None:
    found = [candidate(1, lexical=0.01, similarity=0.1), candidate(2, similarity=0.9), candidate(3, lexical=0.02)]
    assert rank(found, Weights(lexical=0.4, vector=0.6), limit=1)[0].candidate.episode.position == 2


def test_what_was_superseded_ranks_below_its_equal() -> None:
    hits = rank([candidate(1, lexical=1.0), candidate(2, lexical=1.0, superseded=True)], Weights(), limit=2)
    assert [hit.candidate.episode.position for hit in hits] == [1, 2]


def test_recency_prefers_the_new_by_its_half_life() -> None:
    weighing = Weights(lexical=0, vector=0, recency=1, half_life=dt.timedelta(days=1))
    hits = rank([candidate(1, lexical=1), candidate(2, lexical=1)], weighing, limit=2)
    assert [hit.candidate.episode.position for hit in hits] == [2, 1]
    assert hits[1].parts.recency == pytest.approx(hits[0].parts.recency / 2)
