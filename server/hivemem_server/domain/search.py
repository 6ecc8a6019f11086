"""Searching by relevance: the query's vector, the candidates, their ranking, and what the answer cannot promise."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hivemem_server.domain.embedder import Embedder, EmbedderRejected, EmbedderSlot, EmbeddingModel
from hivemem_server.domain.errors import EmbedderUnavailable, IndexBehind, VectorInvalid
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import Candidates, IndexWatch, SearchStore
from hivemem_server.domain.ranking import Hit, Weights, rank
from hivemem_server.domain.values import Namespace

EMBED_SECONDS = 4.0  # a hung model must not cost the caller the answer that words can give
CANDIDATES = 200  # of each list; ranking cannot bring up what is not among them


class Shortfall(enum.IntEnum):
    """Why there may be fewer or poorer hits than asked for; the numbers are those of the contract."""

    NO_MORE_MATCHES = 1
    MIN_SCORE = 2
    INDEX_BEHIND = 3
    EMBEDDER_UNAVAILABLE = 4
    RESPONSE_SIZE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What to look for, in words or as a vector of the current model, and where."""

    text: str = ""
    vector: Sequence[float] | None = None
    wanted: Filter
    limit: int
    min_score: float = 0.0
    weights: Weights
    as_of: int = 0
    wait_for: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Hits, best first, and what they were searched in."""

    hits: Sequence[Hit]
    indexed_position: int
    head: int
    model: str
    shortfalls: Sequence[Shortfall]


class Search:
    """Searches episodes."""

    def __init__(self, store: SearchStore, slot: EmbedderSlot, index: IndexWatch) -> None:
        self._store = store
        self._slot = slot
        self._index = index

    async def episodes(self, namespace: Namespace, query: SearchQuery, *, wait_seconds: float) -> SearchResult:
        """The best hits. Without an answer from the embedder words alone decide, and the result says so.

        With `wait_for` it raises IndexBehind if that is not indexed within `wait_seconds`, and EmbedderUnavailable if
        the embedder does not answer.
        """
        embedder, model = self._slot.embedder, self._slot.model
        if query.wait_for and model:
            await self._wait_until_indexed(namespace, model, query.wait_for, wait_seconds)
        elif query.wait_for and self._slot.configured:
            raise EmbedderUnavailable("the embedder does not answer, nothing is being indexed: search without waiting")
        vector = await _vector(query, embedder)
        wanted = _as_of(query.wanted, query.as_of)
        found = await self._store.candidates(
            namespace,
            wanted,
            text=query.text,
            vector=vector,
            model=model if vector is not None else None,
            limit=max(CANDIDATES, query.limit),
        )
        hits = rank(
            found.candidates,
            query.weights,
            limit=query.limit,
            min_score=query.min_score,
            full_lexical=found.full_lexical,
        )
        return SearchResult(
            hits=hits,
            indexed_position=found.indexed_position,
            head=found.head,
            model=model.name if model and vector is not None else "",
            shortfalls=_shortfalls(query, found, hits, by_meaning=vector is not None, expected=self._slot.configured),
        )

    async def _wait_until_indexed(
        self, namespace: Namespace, model: EmbeddingModel, position: int, seconds: float
    ) -> None:
        if not await self._index.reaches(namespace, model, position, seconds):
            indexed = await self._store.indexed_position(namespace, model)
            raise IndexBehind(
                f"position {position} is not indexed yet, the index is at {indexed}: search anyway, words are found",
                position=position,
                indexed_position=indexed,
            )


async def _vector(query: SearchQuery, embedder: Embedder | None) -> Sequence[float] | None:
    if query.vector is not None:
        return _checked(query.vector, embedder)
    if embedder is None or not query.weights.vector:
        return None
    try:
        async with asyncio.timeout(EMBED_SECONDS):
            return await embedder.embed_query(query.text)
    except (EmbedderUnavailable, TimeoutError) as error:
        if query.wait_for:
            raise EmbedderUnavailable("the embedder does not answer: search without waiting") from error
        return None
    except EmbedderRejected:
        return None


def _checked(vector: Sequence[float], embedder: Embedder | None) -> Sequence[float]:
    """The vector at unit length, as the index has them: what is stored with half precision must not overflow."""
    dimension = embedder.model.dimension if embedder else 0
    length = math.hypot(*vector)
    if not 0 < length < math.inf:
        raise VectorInvalid("the vector must have finite numbers that are not all zero")
    if len(vector) != dimension:
        raise VectorInvalid(
            f"the vector has {len(vector)} numbers, the model has {dimension}", given=len(vector), dimension=dimension
        )
    return [number / length for number in vector]


def _as_of(wanted: Filter, position: int) -> Filter:
    if not position:
        return wanted
    return replace(wanted, through=min(position, wanted.through or position))


def _shortfalls(
    query: SearchQuery, found: Candidates, hits: Sequence[Hit], *, by_meaning: bool, expected: bool
) -> list[Shortfall]:
    reasons = []
    short = len(hits) < query.limit
    if short and len(found.candidates) > len(hits):
        reasons.append(Shortfall.MIN_SCORE)
    elif short:
        reasons.append(Shortfall.NO_MORE_MATCHES)
    if by_meaning and found.indexed_position < found.head:
        reasons.append(Shortfall.INDEX_BEHIND)
    if expected and not by_meaning and query.weights.vector:
        reasons.append(Shortfall.EMBEDDER_UNAVAILABLE)
    return reasons
