"""Where the server's objects meet: what is opened here is closed here, in the opposite order."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from hivemem_server.domain.embedder import EmbedderRejected, EmbedderSlot
from hivemem_server.domain.errors import DatabaseUnavailable, NamespaceNotFound
from hivemem_server.domain.search import Search
from hivemem_server.domain.values import Namespace, NamespaceSettings
from hivemem_server.duties import Duties
from hivemem_server.embedding.indexer import Indexer
from hivemem_server.indexing import Indexing
from hivemem_server.log.appender import Appender
from hivemem_server.log.heads import Heads
from hivemem_server.log.named_cursors import NamedCursors
from hivemem_server.log.standing import StandingQueries
from hivemem_server.log.tail import Tails
from hivemem_server.postgres import schema
from hivemem_server.postgres.database import Database, DatabaseAddressError, described
from hivemem_server.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError
from hivemem_server.postgres.health import HEALTH_CONNECTIONS
from hivemem_server.postgres.hints import HINT_CONNECTIONS, Hints
from hivemem_server.postgres.index import PostgresIndex
from hivemem_server.postgres.log import PostgresLog
from hivemem_server.postgres.named_cursors import PostgresCursors
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
from hivemem_server.rpc.following import FollowingCalls
from hivemem_server.rpc.named_cursors import CursorCalls
from hivemem_server.rpc.namespaces import NamespaceServicer
from hivemem_server.rpc.search import SearchServicer
from hivemem_server.rpc.server import AddressError, RpcServer, check_address
from hivemem_server.rpc.sessions import SessionServicer
from hivemem_server.rpc.starts import Starts
from hivemem_server.rpc.threads import ThreadServicer
from hivemem_server.settings import EMBEDDED_CONNECTIONS, EmbedderKind, Settings

Progress = Callable[[str], None]
Result = TypeVar("Result")
COLLECT_AFTER = 50_000  # more objects than before
DRAIN_APPENDS_SECONDS = 2.0
TURNED_AWAY_SECONDS = 0.2


class StartError(Exception):
    """The server cannot start; the message is one sentence with the cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that answers. `workers` are the processes that do it, if they are several."""

    host: str
    port: int
    database: str
    database_url: str
    embedder: str
    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyDatabase:
    """A database that has this server's schema. `where` is for people."""

    url: str
    where: str
    embedded: bool


_CANNOT_START = (
    EmbeddedPostgresError,
    DatabaseAddressError,
    DatabaseUnavailable,
    schema.SchemaError,
    ModelMismatch,
    AddressError,
)


@contextlib.contextmanager
def start_errors() -> Iterator[None]:
    """Whatever keeps a server from starting is a StartError outside of it."""
    try:
        yield
    except EmbedderRejected as error:
        raise StartError(f"the embedding endpoint refuses: {error.message}") from error
    except _CANNOT_START as error:
        raise StartError(str(error)) from error


def run(main: Coroutine[None, None, Result]) -> Result:
    """Runs it to its end, as a process's only work: on the fastest event loop there is, and with rare collections.

    What is loaded stays to the end, and little of what a call leaves behind is in cycles: looking for them as often as
    the interpreter does by default took a tenth of an append.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    result: Result = uvloop.run(main)
    return result


@contextlib.asynccontextmanager
async def running_server(settings: Settings, progress: Progress) -> AsyncIterator[Running]:
    """A server that answers while the context is open, and drains when it is left. Raises StartError."""
    with start_errors():
        check_address(settings.host, settings.port)
    async with ready_database(settings, progress) as database, serving(settings, database) as running:
        yield running


@contextlib.asynccontextmanager
async def ready_database(settings: Settings, progress: Progress) -> AsyncIterator[ReadyDatabase]:
    """The database of the settings; an embedded one runs while the context is open. Raises StartError."""
    async with contextlib.AsyncExitStack() as stack:
        with start_errors():
            database = await _database(settings, progress, stack)
            await asyncio.to_thread(schema.upgrade, database.url)
        yield database


@contextlib.asynccontextmanager
async def serving(settings: Settings, database: ReadyDatabase, *, shared_port: bool = False) -> AsyncIterator[Running]:
    """A server on a database, as `running_server`; with `shared_port`, others may listen there too."""
    async with contextlib.AsyncExitStack() as stack:
        with start_errors():
            running = await _started(settings, database, stack, shared_port=shared_port)
        yield running


async def _started(
    settings: Settings, ready: ReadyDatabase, stack: contextlib.AsyncExitStack, *, shared_port: bool
) -> Running:
    database = await stack.enter_async_context(Database(ready.url, size=settings.database_connections))
    server = _Server(settings, database, embedded=ready.embedded, shared_port=shared_port)
    await server.prepare()
    models = await stack.enter_async_context(contextlib.AsyncExitStack())
    duties = Duties()
    stack.push_async_callback(duties.end)
    embedder = await server.indexing.begin(models, duties)
    duties.begin("heads", server.heads.run)
    stack.push_async_callback(server.tails.close)
    server.exchange_hints(database, ready.url, duties)
    duties.begin("statistics", lambda: keep_fresh(database))
    port = await server.rpc.start()
    stack.push_async_callback(server.drain)
    return Running(host=settings.host, port=port, database=ready.where, database_url=ready.url, embedder=embedder)


async def _database(settings: Settings, progress: Progress, stack: contextlib.AsyncExitStack) -> ReadyDatabase:
    if settings.listen_url is not None:
        described(settings.listen_url.get_secret_value(), "listen URL")
    if settings.database_url is not None:
        url = settings.database_url.get_secret_value()
        return ReadyDatabase(url=url, where=described(url), embedded=False)
    own = HINT_CONNECTIONS * settings.listen + HEALTH_CONNECTIONS
    connections = settings.workers * (settings.database_connections + own)
    if connections > EMBEDDED_CONNECTIONS:
        raise StartError(
            f"{connections} connections are more than the {EMBEDDED_CONNECTIONS} that the embedded database has:"
            " lower HIVEMEM_DATABASE_CONNECTIONS, which each worker has, or --workers"
        )
    embedded = await stack.enter_async_context(EmbeddedPostgres(settings.data_dir, progress=progress))
    where = f"PostgreSQL {embedded.version}, embedded in {settings.data_dir}"
    return ReadyDatabase(url=embedded.url, where=where, embedded=True)


class _Server:
    """The objects of one server process."""

    def __init__(self, settings: Settings, database: Database, *, embedded: bool, shared_port: bool) -> None:
        self._settings = settings
        self._namespaces = PostgresNamespaces(database)
        self._log = PostgresLog(database)
        self._search_store = PostgresSearch(database)
        self._slot = EmbedderSlot(configured=settings.embedder is not EmbedderKind.NONE)
        index = PostgresIndex(database, self._search_store)
        self._replica = uuid4()
        self._indexer = Indexer(index, self._search_store, self._slot, self._replica)
        self.indexing = Indexing(settings, self._search_store, self._slot, self._indexer)
        self.heads = Heads(self._log, settings.poll_seconds)
        self.tails = Tails(self._log, self.heads, batches.encoded)
        self._hints: Hints | None = None
        self._appender = Appender(self._log, self._committed)
        self.rpc = RpcServer(
            settings.host,
            settings.port,
            self._servicers(database, embedded=embedded),
            connection_age=settings.subscription_age_seconds,
            shared_port=shared_port,
        )

    def _servicers(self, database: Database, *, embedded: bool) -> dict[str, object]:
        namespaces, log = self._namespaces, self._log
        facts = ServerFacts(
            replica=self._replica, start_time=dt.datetime.now(dt.UTC), embedded_database=embedded, slot=self._slot
        )
        cursors = NamedCursors(PostgresCursors(database), log)
        standing = StandingQueries(self._search_store, self._indexer, self._slot)
        age = self._settings.subscription_age_seconds
        following = FollowingCalls(namespaces, log, self.tails, Starts(log, cursors), standing, age)
        sessions, resume = PostgresSessions(database), PostgresResume(database)
        return {
            "NamespaceService": NamespaceServicer(namespaces),
            "SessionService": SessionServicer(namespaces, sessions, resume, log),
            "EpisodeService": EpisodeServicer(
                namespaces, log, self._appender, following, CursorCalls(namespaces, cursors)
            ),
            "SearchService": SearchServicer(
                namespaces, Search(self._search_store, self._slot, self._indexer), self._slot
            ),
            "ThreadService": ThreadServicer(namespaces, PostgresThreads(database)),
            "AdminService": AdminServicer(namespaces, PostgresStats(database), facts, self._appender, self.tails),
        }

    def _committed(self, namespace: Namespace, position: int) -> None:
        self.heads.advance(namespace, position)
        if self._hints is not None:
            self._hints.committed(namespace, position)
        self._indexer.wake()

    def exchange_hints(self, database: Database, url: str, duties: Duties) -> None:
        """Tells other replicas of commits and hears of theirs, unless the settings say no."""
        if not self._settings.listen:
            return
        secret = self._settings.listen_url
        listen_url = secret.get_secret_value() if secret is not None else url
        self._hints = Hints(database, url=url, listen_url=listen_url, replica=self._replica, heads=self.heads)
        duties.begin("notifier", self._hints.send)
        duties.begin("listener", self._hints.listen)

    async def prepare(self) -> None:
        """Makes what always exists."""
        try:
            await self._namespaces.get(DEFAULT)
        except NamespaceNotFound:
            await self._namespaces.create(DEFAULT, NamespaceSettings())

    async def drain(self) -> None:
        """Ends in good order: streams are sent away, what was accepted is committed, then the port closes."""
        await self.rpc.say_not_serving()
        self.tails.drain()
        await self._appender.drain(DRAIN_APPENDS_SECONDS)
        # Who is turned away waits before calling again; a call on its way when the port closes would end as CANCELLED.
        await asyncio.sleep(min(TURNED_AWAY_SECONDS, self._settings.drain_seconds))
        await self.rpc.stop(self._settings.drain_seconds)
