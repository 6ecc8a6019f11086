"""The indexer: follows the logs and gives every episode its vector. It is one more reader and never holds up an append.

No database connection is held while the model works. Texts that the model refuses are found by halving, set aside with
the reason, and never block those behind them. A model that does not answer is asked again with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Sequence
from uuid import UUID

import structlog

from hivemem_server.domain.embedder import Embedder, EmbedderRejected, EmbedderSlot, EmbeddingModel
from hivemem_server.domain.errors import EmbedderUnavailable, HivememError, StorageFull, Unavailable
from hivemem_server.domain.ports import IndexStore, IndexWork, SearchStore
from hivemem_server.domain.values import Namespace

_log = structlog.get_logger()

BATCH = 64
LEASE = dt.timedelta(seconds=30)  # taken anew for each batch
IDLE_SECONDS = 1.0  # how often other replicas' appends are looked for
LONGEST_PAUSE = 30.0


class Indexer:
    """Implements IndexWatch; `run` is its work."""

    def __init__(self, store: IndexStore, search: SearchStore, slot: EmbedderSlot, replica: UUID) -> None:
        self._store = store
        self._search = search
        self._slot = slot
        self._replica = replica
        self._appended = asyncio.Event()
        self._moved: dict[int, asyncio.Event] = {}  # by namespace, while somebody waits
        self._pause = 0.0

    def wake(self) -> None:
        """Tells that something was appended."""
        self._appended.set()

    async def reaches(self, namespace: Namespace, model: EmbeddingModel, position: int, seconds: float) -> bool:
        """See IndexWatch."""
        deadline = asyncio.get_running_loop().time() + seconds
        while await self._search.indexed_position(namespace, model) < position:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            # Another replica may be the one that indexes: its progress shows in the database only.
            await self.news(namespace, min(left, 0.1))
        return True

    async def news(self, namespace: Namespace, seconds: float) -> None:
        """See IndexWatch."""
        await _wait(self._moved.setdefault(namespace.key, asyncio.Event()), seconds)

    async def run(self) -> None:
        """Indexes for ever; to be begun when the slot holds an embedder. Gives its leases back when it is ended."""
        embedder = self._slot.embedder
        assert embedder is not None
        try:
            while True:
                await self._step(embedder)
        finally:
            with contextlib.suppress(HivememError):
                await self._store.release(self._replica)

    async def _step(self, embedder: Embedder) -> None:
        try:
            work = await self._store.take(embedder.model, self._replica, LEASE, BATCH)
            if work is None:
                await _wait(self._appended, IDLE_SECONDS)
                self._appended.clear()
                return
            await self._index(embedder, work)
            self._pause = 0.0
        except EmbedderUnavailable as error:
            await self._rest(error.message, error.retry_after)
        except EmbedderRejected as error:
            await self._rest(error.message, None)
        except (Unavailable, StorageFull):  # of the database, which has logged it
            await asyncio.sleep(IDLE_SECONDS)

    async def _index(self, embedder: Embedder, work: IndexWork) -> None:
        refusals: list[str] = []
        vectors = await _embed(embedder, work.passages, refusals)
        await self._store.put(work, embedder.model, vectors, "; ".join(refusals)[:500])
        if moved := self._moved.pop(work.namespace_key, None):
            moved.set()

    async def _rest(self, reason: str, asked: float | None) -> None:
        if not self._pause:
            _log.warning("the embedding model does not answer; episodes are found by their words", reason=reason)
        self._pause = min(LONGEST_PAUSE, max(self._pause * 2, asked or 0.0, 0.5))
        await asyncio.sleep(self._pause)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def _embed(embedder: Embedder, passages: Sequence[str], refusals: list[str]) -> list[Sequence[float] | None]:
    """A vector for each passage; None for those that the model refuses."""
    if not passages:
        return []
    try:
        return list(await embedder.embed_passages(passages))
    except EmbedderRejected as error:
        if not error.texts_refused:
            raise
        if len(passages) == 1:
            _log.warning("the embedding model refuses an episode; set aside", reason=error.message)
            refusals.append(error.message)
            return [None]
        half = len(passages) // 2
        return [*await _embed(embedder, passages[:half], refusals), *await _embed(embedder, passages[half:], refusals)]
