"""The pool: where every statement runs, and where the driver's errors become the domain's."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator, Mapping, Sequence
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
_SETUP = (
    "SELECT set_config('statement_timeout', %(statement)s, false), set_config('lock_timeout', '10s', false),"
    " set_config('idle_in_transaction_session_timeout', '30s', false), set_config('timezone', 'UTC', false),"
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
    await connection.execute(_SETUP, {"statement": f"{STATEMENT_SECONDS}s"})


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

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close(timeout=5)

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
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection on which several statements commit together."""
        async with self._connection() as connection, connection.transaction():
            yield connection

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        try:
            async with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests, OSError) as error:
            raise self._translated(error) from error
        self._note(reachable=True)

    def _translated(self, error: Exception) -> Exception:
        problem = _problem(error)
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
        case psycopg.errors.DiskFull() | psycopg.errors.OutOfMemory():
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
