"""The pool: where every statement runs, and where the driver's errors become the domain's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
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
DEADLINE_SECONDS = STATEMENT_SECONDS + 5.0  # when even the statement's own timeout is not heard of
_SETUP = (
    "SELECT set_config('statement_timeout', %(statement)s, false), set_config('lock_timeout', '10s', false),"
    " set_config('idle_in_transaction_session_timeout', '30s', false), set_config('timezone', 'UTC', false),"
    # Lock first, check next needs a new snapshot for each statement.
    " set_config('default_transaction_isolation', 'read committed', false),"
    # An acknowledgement means durable, whatever the database's default is.
    " CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END"
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


def described(url: str) -> str:
    """Where a database is, without its password. Raises DatabaseAddressError for what is no connection string."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise DatabaseAddressError(
            "the database URL cannot be read: write it as postgresql://user:password@host:5432/name"
        ) from error
    where = f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
    return f"PostgreSQL at {where}, database {parts.get('dbname') or parts.get('user') or 'postgres'}"


async def _configure(connection: psycopg.AsyncConnection) -> None:
    await connection.set_autocommit(True)
    connection.adapters.register_dumper(dict, JsonbDumper)
    connection.add_notice_handler(_log_notice)
    await connection.execute(_SETUP, {"statement": f"{STATEMENT_SECONDS}s"})


def _hang_up(connection: psycopg.AsyncConnection) -> None:
    """Shuts the socket down, which wakes whoever waits for it with an error."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


def _log_notice(notice: psycopg.errors.Diagnostic) -> None:
    if notice.severity_nonlocalized == "WARNING":
        _log.warning(notice.message_primary)


async def _check_idle(connection: psycopg.AsyncConnection) -> None:
    """Raises for a connection that the server closed while it lay idle; costs no round trip.

    An idle connection has nothing to read: if there is something, it is the server's farewell.
    """
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN)
    if readable.poll(0):
        await connection.close()
        raise psycopg.OperationalError("the server closed the connection while it was idle")


class Database:
    """A pool of connections in autocommit mode: a statement is a transaction unless `transaction` says otherwise."""

    def __init__(self, url: str, *, size: int = 16) -> None:
        self._pool = AsyncConnectionPool(
            conninfo(url),
            min_size=2,
            max_size=size,
            max_waiting=1_000,
            timeout=5,
            max_lifetime=3_600,
            reconnect_timeout=2,
            num_workers=8,
            configure=_configure,
            check=_check_idle,
            open=False,
            name="hivemem",
        )
        self._reachable = True
        self._used: set[psycopg.AsyncConnection] = set()

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._used:
            _hang_up(connection)
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
            async with self._pool.connection() as connection:
                with self._watched(connection, seconds):
                    yield connection
        except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests, OSError) as error:
            raise self._translated(error) from error
        self._note(reachable=True)

    @contextlib.contextmanager
    def _watched(self, connection: psycopg.AsyncConnection, seconds: float) -> Iterator[None]:
        """Ends the connection's socket if it is used for too long: a server that is stopped, or gone behind a
        balancer that acknowledges for it, answers neither a statement nor its cancellation."""
        watchdog = asyncio.get_running_loop().call_later(seconds, _hang_up, connection)
        self._used.add(connection)
        try:
            yield
        finally:
            self._used.discard(connection)
            watchdog.cancel()

    def _translated(self, error: Exception) -> Exception:
        busy = isinstance(error, PoolTimeout) and self._pool.get_stats()["pool_size"] >= self._pool.max_size
        problem = Overloaded("all database connections are in use: try again shortly") if busy else _problem(error)
        if isinstance(problem, DatabaseUnavailable):
            self._note(reachable=False, error=str(error).strip())
        return problem

    def _note(self, *, reachable: bool, error: str = "") -> None:
        """One line when the database goes, one when it is back; and fresh connections for all that were lost."""
        if reachable == self._reachable:
            return
        self._reachable = reachable
        if reachable:
            _log.info("the database answers again")
        else:
            _log.error("the database does not answer; trying again", error=error.splitlines()[0] if error else "")
            self._check = asyncio.create_task(self._replace_broken())

    async def _replace_broken(self) -> None:
        with contextlib.suppress(psycopg.Error, PoolTimeout, PoolClosed, OSError):
            await self._pool.check()


def _problem(error: Exception) -> HivememError | Exception:
    """The domain's error for a driver's; the same error if it is a bug of ours."""
    match error:
        case psycopg.errors.DiskFull():
            return StorageFull("the database has no room left: free some disk space on its machine")
        case TooManyRequests():
            return Overloaded("too many statements wait for a database connection: try again shortly")
        case psycopg.errors.ReadOnlySqlTransaction():
            return DatabaseUnavailable("the database takes no writes now: it is a standby or set read-only")
        case (
            psycopg.OperationalError()
            | psycopg.InterfaceError()
            | PoolTimeout()
            | PoolClosed()
            | OSError()
            | psycopg.errors.QueryCanceled()
        ):
            return DatabaseUnavailable("the database does not answer: the call can be sent again, it is deduplicated")
    return error
