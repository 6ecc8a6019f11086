"""Ranking: from candidates to hits. Pure functions over what the database found.

Words and meaning are fused by a weighted sum of scores that are each brought to 0…1. A candidate found by one means
only gets nothing from the other, so a hit by words alone can still win. The best candidate does not get 1 for being the
best: words are scaled by what a text made of the query would get, similarity up to what close paraphrases have, unless
a candidate has more; so a lone weak match looks weak. Superseded episodes rank lower.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from hivemem_server.domain.values import Episode

SUPERSEDED_PENALTY = 0.3
UNRELATED, CLOSE = 0.2, 0.6  # similarity of texts that have nothing in common, and of paraphrases


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An episode that may be a hit. `lexical` is any non-negative score, `similarity` a cosine; None: not found so."""

    episode: Episode
    lexical: float | None
    similarity: float | None
    superseded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How parts of the score weigh, 0 switching one off."""

    lexical: float = 0.6
    vector: float = 0.4
    recency: float = 0.0
    half_life: dt.timedelta = dt.timedelta(days=7)
    demote_superseded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreParts:
    """The parts of a score; they add up to it."""

    lexical: float = 0.0
    vector: float = 0.0
    recency: float = 0.0
    superseded: float = 0.0

    @property
    def total(self) -> float:
        """The score, 0 to 1."""
        return self.lexical + self.vector + self.recency + self.superseded


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A candidate with its score."""

    candidate: Candidate
    parts: ScoreParts


def rank(
    candidates: Sequence[Candidate], weights: Weights, *, limit: int, min_score: float = 0.0, full_lexical: float = 0.0
) -> list[Hit]:
    """The best hits, best first, equal scores by falling position; the same whatever the order of candidates.

    `full_lexical` is the lexical score of a text made of the query's own words.
    """
    if not candidates:
        return []
    scorer = _Scorer(candidates, weights, full_lexical)
    hits = [Hit(candidate=candidate, parts=scorer.parts(candidate)) for candidate in candidates]
    wanted = [hit for hit in hits if hit.parts.total >= min_score]
    return sorted(wanted, key=lambda hit: (-hit.parts.total, -hit.candidate.episode.position))[:limit]


class _Scorer:
    """The scales of one search."""

    def __init__(self, candidates: Sequence[Candidate], weights: Weights, full_lexical: float) -> None:
        self._weights = weights
        words = [c.lexical for c in candidates if c.lexical is not None]
        nearness = [c.similarity for c in candidates if c.similarity is not None]
        self._full_lexical = max([*words, full_lexical])
        self._nearness = (min(nearness, default=0.0), max([*nearness, CLOSE]))
        self._newest = max(c.episode.commit_time for c in candidates)
        lexical = weights.lexical if words else 0.0
        vector = weights.vector if nearness else 0.0
        self._sum = (lexical + vector + weights.recency) or 1.0

    def parts(self, candidate: Candidate) -> ScoreParts:
        weights = self._weights
        lexical = weights.lexical * self._lexical(candidate) / self._sum
        vector = weights.vector * self._vector(candidate) / self._sum
        recency = weights.recency * self._recency(candidate) / self._sum
        demoted = candidate.superseded and weights.demote_superseded
        penalty = -SUPERSEDED_PENALTY * (lexical + vector + recency) if demoted else 0.0
        return ScoreParts(lexical=lexical, vector=vector, recency=recency, superseded=penalty)

    def _lexical(self, candidate: Candidate) -> float:
        return (candidate.lexical or 0.0) / self._full_lexical if self._full_lexical > 0 else 0.0

    def _vector(self, candidate: Candidate) -> float:
        if candidate.similarity is None:
            return 0.0
        low, high = self._nearness
        floor = min(low, UNRELATED)
        return max(0.0, (candidate.similarity - floor) / (high - floor))

    def _recency(self, candidate: Candidate) -> float:
        age = self._newest - candidate.episode.commit_time
        return float(0.5 ** (age / self._weights.half_life))
