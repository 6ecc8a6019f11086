"""Standing queries: of what matches a filter, only what is close in meaning to a text, once it is indexed.

The log's order is kept: nothing is delivered before everything below it is indexed, or set aside by the indexer. While
the index stands still though the log goes on, the reader falls behind, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hivemem_server.domain.embedder import EmbedderRejected, EmbedderSlot, EmbeddingModel
from hivemem_server.domain.errors import EmbedderUnavailable, InvalidField
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import IndexWatch, SearchStore
from hivemem_server.domain.values import RecordKind
from hivemem_server.log.events import Batch
from hivemem_server.log.readers import SPAN, BatchSize, Place

STILL_SECONDS = 5.0  # without progress of an index that has work
MIN_SCORE = 0.4  # unless the query says another
EMBED_SECONDS = 4.0
LOOK_SECONDS = 1.0  # how often the progress of another replica's indexer is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingQuery:
    """What to be told about: a vector of unit length, and how close an episode has to be."""

    search: SearchStore
    index: IndexWatch
    model: EmbeddingModel
    vector: Sequence[float]
    min_score: float


class StandingQueries:
    """Makes standing queries of texts."""

    def __init__(self, search: SearchStore, index: IndexWatch, slot: EmbedderSlot) -> None:
        self._search = search
        self._index = index
        self._slot = slot

    async def query(self, text: str, min_score: float | None) -> StandingQuery:
        """The query for what is close to a text. Raises EmbedderUnavailable, InvalidField."""
        embedder = self._slot.embedder
        if embedder is None:
            raise EmbedderUnavailable(
                "the embedder does not answer: subscribe without `relevance`, or try again later"
                if self._slot.configured
                else "this server has no embedder, so nothing has a relevance: start it with --embedder local"
            )
        try:
            async with asyncio.timeout(EMBED_SECONDS):
                vector = await embedder.embed_query(text)
        except TimeoutError as error:
            raise EmbedderUnavailable("the embedder does not answer: try again later") from error
        except EmbedderRejected as error:
            raise InvalidField.at("relevance.relevant_to", f"the embedder refuses it: {error.message}") from error
        return StandingQuery(
            search=self._search,
            index=self._index,
            model=embedder.model,
            vector=vector,
            min_score=MIN_SCORE if min_score is None else min_score,
        )


class StandingReader:
    """Gives the episodes that match a filter and are close to a standing query, with their scores."""

    def __init__(self, place: Place, wanted: Filter, most: int, query: StandingQuery) -> None:
        self._place = place
        self._wanted = replace(wanted, record_kinds=(RecordKind.EPISODE,))
        self._query = query
        self._size = BatchSize(most)
        self._indexed = 0
        self._waits_since: float | None = None  # for an index that has work, and does not move
        self._target: int | None = None  # caught up is who has come so far

    @property
    def more(self) -> bool:
        """Whether there is more to read now."""
        return self._place.point.position < min(self._indexed, self._place.head)

    @property
    def caught_up(self) -> bool:
        """Whether everything was read that was there."""
        return self._target is not None and self._place.point.position >= self._target

    def falls_behind(self) -> bool:
        """Whether the index stands still though it has work; it then has to come to the head of now again."""
        now = asyncio.get_running_loop().time()
        if self._place.point.position >= self._place.head:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since > STILL_SECONDS:
            self._target = self._place.head
            return True
        return False

    async def read(self) -> Batch:
        """What comes next."""
        await self._look()
        span = min(SPAN, max(0, self._indexed - self._place.point.position))
        window = await self._place.window(self._wanted, span, self._size.next)
        self._size.note(window.records)
        if self._target is None:
            self._target = window.head
        scores = await self._scores([record.position for record in window.records])
        close = [
            replace(record, score=score)
            for record in window.records
            if (score := scores.get(record.position, -1.0)) >= self._query.min_score
        ]
        return Batch(records=list(map(self._place.tails.encoded, close)), point=window.end)

    async def _look(self) -> None:
        async with self._place.tails.far_reads:
            indexed = await self._query.search.indexed_position(self._place.namespace, self._query.model)
        if indexed != self._indexed:
            self._waits_since = None
        self._indexed = indexed

    async def _scores(self, positions: Sequence[int]) -> dict[int, float]:
        query = self._query
        async with self._place.tails.far_reads:
            return await query.search.scores(self._place.namespace, query.model, query.vector, positions)

    async def news(self, seconds: float) -> None:
        """Waits until there may be more, at most so long."""
        if self._place.point.position < self._place.head:
            await self._query.index.news(self._place.namespace, min(seconds, LOOK_SECONDS))
        else:
            await self._place.tail.news(seconds)
