"""Opening the embedder, now or when it answers, and indexing with it."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from hivemem_server.domain.embedder import Embedder, EmbedderRejected, EmbedderSlot, EmbeddingModel
from hivemem_server.domain.errors import DatabaseUnavailable, EmbedderUnavailable
from hivemem_server.duties import Duties
from hivemem_server.embedding.indexer import Indexer
from hivemem_server.embedding.local import LocalEmbedder
from hivemem_server.postgres.search import ModelMismatch, PostgresSearch
from hivemem_server.settings import EmbedderKind, Settings

_log = structlog.get_logger()

REOPEN_SECONDS = (1.0, 30.0)  # first and longest pause between tries


class Indexing:
    """The embedder of the settings, in its slot while it is open, and the indexer that uses it."""

    def __init__(self, settings: Settings, store: PostgresSearch, slot: EmbedderSlot, indexer: Indexer) -> None:
        self._settings = settings
        self._store = store
        self._slot = slot
        self._indexer = indexer

    async def begin(self, stack: contextlib.AsyncExitStack, duties: Duties) -> str:
        """Opens the embedder and begins to index, later if it does not answer; returns what to tell people.

        Raises EmbedderRejected for an endpoint that refuses what is asked of it, ModelMismatch.
        """
        if not self._slot.configured:
            return "none: episodes are found by their words only"
        try:
            model = await self._open(stack)
        except EmbedderUnavailable as error:
            duties.begin("embedder", self._open_later)
            return f"{self._settings.embedding_model}, which does not answer yet ({error.message})"
        duties.begin("indexer", self._indexer.run)
        return f"{model.name}, {model.dimension} dimensions"

    async def _open(self, stack: contextlib.AsyncExitStack) -> EmbeddingModel:
        opening = _embedder(self._settings)
        embedder: Embedder = await stack.enter_async_context(opening)
        await self._store.register_model(embedder.model)
        self._slot.embedder = embedder
        return embedder.model

    async def _open_later(self) -> None:
        pause, longest = REOPEN_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
            async with contextlib.AsyncExitStack() as stack:
                if await self._opens(stack):
                    try:
                        await self._indexer.run()
                    finally:
                        self._slot.embedder = None  # it is closed with the stack

    async def _opens(self, stack: contextlib.AsyncExitStack) -> bool:
        try:
            model = await self._open(stack)
        except (EmbedderUnavailable, DatabaseUnavailable):
            return False
        except (EmbedderRejected, ModelMismatch) as error:
            _log.error("the embedding model cannot be used", reason=str(error))
            return False
        _log.info("the embedding model answers", model=model.name)
        return True


def _embedder(settings: Settings) -> contextlib.AbstractAsyncContextManager[Embedder]:
    if settings.embedder is EmbedderKind.LOCAL:
        return LocalEmbedder()
    from hivemem_server.embedding.openai_compatible import OpenAIEmbedder  # slow to import, and rarely needed

    return OpenAIEmbedder(
        model=settings.embedding_model,
        base_url=settings.embedding_url,
        api_key=settings.embedding_key,
        dimensions=settings.embedding_dimensions,
    )
