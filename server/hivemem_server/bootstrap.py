"""Where the server's objects meet: what is opened here is closed here, in the opposite order."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from uuid import uuid4

import structlog

from hivemem_server.domain.embedder import Embedder, EmbedderRejected, EmbedderSlot, EmbeddingModel
from hivemem_server.domain.errors import DatabaseUnavailable, EmbedderUnavailable, NamespaceNotFound
from hivemem_server.domain.search import Search
from hivemem_server.domain.values import Namespace, NamespaceSettings
from hivemem_server.embedding.indexer import Indexer
from hivemem_server.embedding.local import LocalEmbedder
from hivemem_server.log.appender import Appender
from hivemem_server.log.heads import Heads
from hivemem_server.log.tail import Tails
from hivemem_server.postgres import schema
from hivemem_server.postgres.database import Database, DatabaseAddressError, described
from hivemem_server.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError
from hivemem_server.postgres.index import PostgresIndex
from hivemem_server.postgres.log import PostgresLog
from hivemem_server.postgres.namespaces import DEFAULT, PostgresNamespaces
from hivemem_server.postgres.resume import PostgresResume
from hivemem_server.postgres.search import ModelMismatch, PostgresSearch
from hivemem_server.postgres.sessions import PostgresSessions
from hivemem_server.postgres.statistics import keep_fresh
from hivemem_server.postgres.stats import PostgresStats
from hivemem_server.postgres.threads import PostgresThreads
from hivemem_server.rpc import batches
from hivemem_server.rpc.admin import AdminServicer, ServerFacts
from hivemem_server.rpc.episodes import EpisodeServicer
from hivemem_server.rpc.namespaces import NamespaceServicer
from hivemem_server.rpc.search import SearchServicer
from hivemem_server.rpc.server import AddressError, RpcServer, check_address
from hivemem_server.rpc.sessions import SessionServicer
from hivemem_server.rpc.threads import ThreadServicer
from hivemem_server.settings import EmbedderKind, Settings

_log = structlog.get_logger()

Progress = Callable[[str], None]
REOPEN_SECONDS = (1.0, 30.0)  # first and longest pause between tries to open an embedder
RESTART_SECONDS = 1.0
DRAIN_APPENDS_SECONDS = 2.0


class StartError(Exception):
    """The server cannot start; the message is one sentence with the cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that answers."""

    host: str
    port: int
    database: str
    database_url: str
    embedder: str


_CANNOT_START = (
    EmbeddedPostgresError,
    DatabaseAddressError,
    DatabaseUnavailable,
    schema.SchemaError,
    ModelMismatch,
    AddressError,
)


@contextlib.asynccontextmanager
async def running_server(settings: Settings, progress: Progress) -> AsyncIterator[Running]:
    """A server that answers while the context is open, and drains when it is left. Raises StartError."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            running = await _started(settings, progress, stack)
        except _CANNOT_START as error:
            raise StartError(str(error)) from error
        yield running


async def _started(settings: Settings, progress: Progress, stack: contextlib.AsyncExitStack) -> Running:
    check_address(settings.host, settings.port)
    url, where = await _database_url(settings, progress, stack)
    await asyncio.to_thread(schema.upgrade, url)
    database = await stack.enter_async_context(Database(url, size=settings.database_connections))
    server = _Server(settings, database, embedded=settings.database_url is None)
    await server.prepare()
    models = await stack.enter_async_context(contextlib.AsyncExitStack())
    tasks = _Tasks()
    stack.push_async_callback(tasks.end)
    embedder = await server.open_embedder(models, tasks)
    tasks.start("heads", server.heads.run)
    stack.push_async_callback(server.tails.close)
    tasks.start("statistics", lambda: keep_fresh(database))
    port = await server.rpc.start()
    stack.push_async_callback(server.drain)
    return Running(host=settings.host, port=port, database=where, database_url=url, embedder=embedder)


async def _database_url(settings: Settings, progress: Progress, stack: contextlib.AsyncExitStack) -> tuple[str, str]:
    if settings.database_url is not None:
        url = settings.database_url.get_secret_value()
        return url, described(url)
    embedded = await stack.enter_async_context(EmbeddedPostgres(settings.data_dir, progress=progress))
    return embedded.url, f"PostgreSQL {embedded.version}, embedded in {settings.data_dir}"


class _Server:
    """The objects of one server process."""

    def __init__(self, settings: Settings, database: Database, *, embedded: bool) -> None:
        self._settings = settings
        self._replica = uuid4()
        self._log_store = PostgresLog(database)
        self._namespaces = PostgresNamespaces(database)
        self._search_store = PostgresSearch(database)
        self._slot = EmbedderSlot(configured=settings.embedder is not EmbedderKind.NONE)
        self._indexer = Indexer(
            PostgresIndex(database, self._search_store), self._search_store, self._slot, self._replica
        )
        self.heads = Heads(self._log_store, settings.poll_seconds)
        self.tails = Tails(self._log_store, self.heads, batches.encoded)
        self._appender = Appender(self._log_store, self._committed)
        facts = ServerFacts(
            replica=self._replica, start_time=dt.datetime.now(dt.UTC), embedded_database=embedded, slot=self._slot
        )
        search = Search(self._search_store, self._slot, self._indexer)
        log, namespaces = self._log_store, self._namespaces
        self.rpc = RpcServer(
            settings.host,
            settings.port,
            {
                "NamespaceService": NamespaceServicer(namespaces),
                "SessionService": SessionServicer(
                    namespaces, PostgresSessions(database), PostgresResume(database), log
                ),
                "EpisodeService": EpisodeServicer(namespaces, log, self._appender, self.tails),
                "SearchService": SearchServicer(namespaces, search, self._slot),
                "ThreadService": ThreadServicer(namespaces, PostgresThreads(database)),
                "AdminService": AdminServicer(namespaces, PostgresStats(database), facts, self._appender, self.tails),
            },
        )

    def _committed(self, namespace: Namespace, position: int) -> None:
        self.heads.advance(namespace, position)
        self._indexer.wake()

    async def prepare(self) -> None:
        """Makes what always exists."""
        try:
            await self._namespaces.get(DEFAULT)
        except NamespaceNotFound:
            await self._namespaces.create(DEFAULT, NamespaceSettings())

    async def open_embedder(self, stack: contextlib.AsyncExitStack, tasks: _Tasks) -> str:
        """Opens the embedder and begins to index; one that does not answer is opened in the background."""
        if not self._slot.configured:
            return "none: episodes are found by their words only"
        try:
            model = await self._opened(stack)
        except EmbedderUnavailable as error:
            tasks.start("embedder", self._open_later)
            return f"{self._settings.embedding_model}, which does not answer yet ({error.message})"
        except EmbedderRejected as error:
            raise StartError(f"the embedding endpoint refuses: {error.message}") from error
        tasks.start("indexer", self._indexer.run)
        return f"{model.name}, {model.dimension} dimensions"

    async def _opened(self, stack: contextlib.AsyncExitStack) -> EmbeddingModel:
        opening = _embedder(self._settings)
        embedder: Embedder = await stack.enter_async_context(opening)
        await self._search_store.register_model(embedder.model)
        self._slot.embedder = embedder
        return embedder.model

    async def _open_later(self) -> None:
        pause, longest = REOPEN_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
            async with contextlib.AsyncExitStack() as stack:
                if await self._opens_now(stack):
                    try:
                        await self._indexer.run()
                    finally:
                        self._slot.embedder = None  # it is closed with the stack

    async def _opens_now(self, stack: contextlib.AsyncExitStack) -> bool:
        try:
            model = await self._opened(stack)
        except (EmbedderUnavailable, DatabaseUnavailable):
            return False
        except (EmbedderRejected, ModelMismatch) as error:
            _log.error("the embedding model cannot be used", reason=str(error))
            return False
        _log.info("the embedding model answers", model=model.name)
        return True

    async def drain(self) -> None:
        """Ends in good order: streams are sent away, what was accepted is committed, then the port closes."""
        await self.rpc.say_not_serving()
        self.tails.drain()
        await self._appender.drain(DRAIN_APPENDS_SECONDS)
        await self.rpc.stop(self._settings.drain_seconds)


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


class _Tasks:
    """Background duties. One that fails by a bug is logged and begun again; it does not take the server with it."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, duty: Callable[[], Awaitable[None]]) -> None:
        """Begins a duty."""
        self._tasks.append(asyncio.create_task(_kept_going(name, duty), name=name))

    async def end(self) -> None:
        """Ends all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _kept_going(name: str, duty: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await duty()
        except Exception:
            _log.exception("a background duty failed; it begins again", duty=name)
        await asyncio.sleep(RESTART_SECONDS)
