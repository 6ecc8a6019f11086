"""The pool: where every statement runs, and where the driver's errors become the domain's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, Self

import psycopg
import psycopg.errors
import structlog
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import JsonbDumper
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests
from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from hivemem_server.domain.errors import DatabaseUnavailable, HivememError, Overloaded, StorageFull
from hivemem_server.postgres.health import Health, Trouble
from hivemem_server.postgres.sockets import ended_after, hang_up, is_alive

_log = structlog.get_logger()
_dialect: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]

Row = tuple[Any, ...]
Params = Mapping[str, object] | Sequence[object]

# A dead peer is noticed by the kernel, because no timer of ours fires while a statement waits for an answer.
_NETWORK = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "hivemem",
}
STATEMENT_SECONDS = 30
LOCK_SECONDS = 10
CONNECTION_SECONDS = 5.0  # how long a call waits for a connection
DEADLINE_SECONDS = STATEMENT_SECONDS + 5.0  # when even the statement's own timeout is not heard of
_SETUP = (
    "SELECT set_config('statement_timeout', %(statement)s, false), set_config('lock_timeout', %(lock)s, false),"
    " set_config('idle_in_transaction_session_timeout', '30s', false), set_config('timezone', 'UTC', false),"
    # A server whose network is gone must not keep a lock while the database waits for it to take the answer.
    " set_config('tcp_user_timeout', '4s', false),"
    # Lock first, check next needs a new snapshot for each statement.
    " set_config('default_transaction_isolation', 'read committed', false),"
    # An acknowledgement means durable, whatever the database's default is.
    " CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END"
)


_GONE = "the database does not answer: the call can be sent again, it is deduplicated"
_CROWDED_OUT = (
    "the database has no connection left: raise its max_connections or lower HIVEMEM_DATABASE_CONNECTIONS; the call can"
    " be sent again"
)


class DatabaseAddressError(Exception):
    """The text is no database URL; the message says what one looks like."""


@dataclass(frozen=True, slots=True)
class Query:
    """A statement as text for psycopg. Compiling takes milliseconds: what runs often is compiled once and kept."""

    text: LiteralString
    constants: Mapping[str, object]

    def with_params(self, params: Mapping[str, object]) -> tuple[LiteralString, Mapping[str, object]]:
        """The text and all of its parameters."""
        return self.text, {**self.constants, **params}


def compiled(statement: ClauseElement) -> Query:
    """The statement, ready to run."""
    built = statement.compile(dialect=_dialect)
    return Query(str(built), {name: value for name, value in built.params.items() if value is not None})


def conninfo(url: str) -> str:
    """The connection string with network timeouts, which the URL may override."""
    given = conninfo_to_dict(url)
    return make_conninfo(url, **{key: value for key, value in _NETWORK.items() if key not in given})


def described(url: str, name: str = "database URL") -> str:
    """Where a database is, without its password. Raises DatabaseAddressError for what is no connection string."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise DatabaseAddressError(
            f"the {name} cannot be read: write it as postgresql://user:password@host:5432/name"
        ) from error
    hosts, ports = str(parts.get("host", "localhost")).split(","), str(parts.get("port", 5432)).split(",")
    where = " or ".join(f"{host}:{port}" for host, port in zip(hosts, itertools.cycle(ports), strict=False))
    return f"PostgreSQL at {where}, database {parts.get('dbname') or parts.get('user') or 'postgres'}"


SKIPPED = "55P03"  # ANALYZE leaves a table that is locked for later


def _log_notice(notice: psycopg.errors.Diagnostic) -> None:
    code = notice.sqlstate or ""
    expected = code.startswith("57P") or code == SKIPPED  # a farewell to each connection is told of in one line
    if notice.severity_nonlocalized == "WARNING" and not expected:
        _log.warning(notice.message_primary)


class Database:
    """A pool of connections in autocommit mode: a statement is a transaction unless `transaction` says otherwise."""

    def __init__(self, url: str, *, size: int = 16) -> None:
        self._pool = AsyncConnectionPool(
            conninfo(url),
            min_size=2,
            max_size=size,
            max_waiting=1_000,
            max_lifetime=3_600,
            reconnect_timeout=2,
            num_workers=8,
            configure=self._configure,
            open=False,
            name="hivemem",
        )
        self._fresh: weakref.WeakSet[psycopg.AsyncConnection] = weakref.WeakSet()
        self._used: set[psycopg.AsyncConnection] = set()
        self._giving: set[asyncio.Task[None]] = set()
        self.generation = 0  # another one when connections made before, also elsewhere, should not be used any more
        # Connections made before something went wrong may lead to a server that is not the right one any more.
        self._health = Health(conninfo(url), lock_seconds=LOCK_SECONDS, recovered=self._recovered)

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._health.close()
        for connection in self._used:
            hang_up(connection)
        await self._pool.close(timeout=2)

    async def fetch(self, query: LiteralString, params: Params | None = None) -> list[Row]:
        """Runs one statement in a transaction of its own and returns its rows."""
        async with self._connection() as connection:
            cursor = await connection.execute(query, params, binary=True)
            return await cursor.fetchall() if cursor.description else []

    async def query(self, query: Query, **params: object) -> list[Row]:
        """As `fetch`, for a statement built from tables."""
        return await self.fetch(*query.with_params(params))

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection on which several statements see the same state; nothing can be written."""
        async with self._connection() as connection:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield connection
            finally:
                if not connection.closed:
                    await connection.rollback()

    @contextlib.asynccontextmanager
    async def transaction(self, seconds: float = DEADLINE_SECONDS) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection on which several statements commit together, within so many seconds."""
        async with self._connection(seconds) as connection, connection.transaction():
            yield connection

    @contextlib.asynccontextmanager
    async def _connection(self, seconds: float = DEADLINE_SECONDS) -> AsyncIterator[psycopg.AsyncConnection]:
        try:
            connection = await self._taken()
            try:
                with self._watched(connection, seconds):
                    yield connection
            finally:
                self._give_back(connection)
        except TooManyRequests as error:
            raise Overloaded("too many statements wait for a database connection: try again shortly") from error
        except PoolTimeout as error:
            raise await self._without_connection() from error
        except (psycopg.Error, PoolClosed, OSError) as error:
            problem = _problem(error)
            if isinstance(problem, HivememError):
                self._health.suspect(error)
            raise problem from error

    async def _taken(self) -> psycopg.AsyncConnection:
        """A connection of the pool, one that is good. For each that is not, the pool makes another."""
        deadline = asyncio.get_running_loop().time() + CONNECTION_SECONDS
        while True:
            connection = await self._pool.getconn(deadline - asyncio.get_running_loop().time())
            if connection in self._fresh and is_alive(connection):
                return connection
            await connection.close()
            self._give_back(connection)

    def _give_back(self, connection: psycopg.AsyncConnection) -> None:
        """Hands a connection back; nobody waits for it. The pool would lose one that is handed back by a caller who is
        cancelled meanwhile, and whoever waits for it."""
        giving = asyncio.create_task(self._pool.putconn(connection))
        self._giving.add(giving)
        giving.add_done_callback(self._giving.discard)

    async def _configure(self, connection: psycopg.AsyncConnection) -> None:
        await connection.set_autocommit(True)
        connection.adapters.register_dumper(dict, JsonbDumper)
        connection.add_notice_handler(_log_notice)
        await connection.execute(_SETUP, {"statement": f"{STATEMENT_SECONDS}s", "lock": f"{LOCK_SECONDS}s"})
        self._fresh.add(connection)

    def _recovered(self) -> None:
        self._fresh.clear()
        self.generation += 1

    @contextlib.contextmanager
    def _watched(self, connection: psycopg.AsyncConnection, seconds: float) -> Iterator[None]:
        """Bounds the use of a connection, also by the pool's end."""
        self._used.add(connection)
        try:
            with ended_after(seconds, connection):
                yield
        finally:
            self._used.discard(connection)

    async def _without_connection(self) -> HivememError:
        """Why there is no connection for a call: all are in use, or the database gives none."""
        match await self._health.examined():
            case Trouble.CROWDED:
                return DatabaseUnavailable(_CROWDED_OUT)
            case Trouble.GONE:
                return DatabaseUnavailable(_GONE)
        return Overloaded("all database connections are in use: try again shortly")


def _problem(error: Exception) -> HivememError | Exception:
    """The domain's error for a driver's; the same error if it is a bug of ours."""
    match error:
        case psycopg.errors.DiskFull():
            return StorageFull("the database has no room left: free some disk space on its machine")
        case psycopg.errors.ReadOnlySqlTransaction():
            return DatabaseUnavailable("the database takes no writes now: it is a standby or set read-only")
        case psycopg.errors.LockNotAvailable():
            return DatabaseUnavailable(
                "another session of the database holds a lock that the call needs: end that session, and send the call"
                " again"
            )
        case (
            psycopg.OperationalError()
            | psycopg.InterfaceError()
            | PoolClosed()
            | OSError()
            | psycopg.Error(sqlstate="25P03" | "25P04")  # a transaction was idle, or took, for too long
        ):
            return DatabaseUnavailable(_GONE)
    return error
