"""The pool: where every statement runs, where the driver's errors become the domain's, and what the log is told."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import os
import select
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
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
LOCK_SECONDS = 10
CONNECTION_SECONDS = 5.0  # how long a call waits for a connection
DEADLINE_SECONDS = STATEMENT_SECONDS + 5.0  # when even the statement's own timeout is not heard of
_SETUP = (
    "SELECT set_config('statement_timeout', %(statement)s, false), set_config('lock_timeout', %(lock)s, false),"
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
    hosts, ports = str(parts.get("host", "localhost")).split(","), str(parts.get("port", 5432)).split(",")
    where = " or ".join(f"{host}:{port}" for host, port in zip(hosts, itertools.cycle(ports), strict=False))
    return f"PostgreSQL at {where}, database {parts.get('dbname') or parts.get('user') or 'postgres'}"


def _hang_up(connection: psycopg.AsyncConnection) -> None:
    """Shuts the socket down, which wakes whoever waits for it with an error."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _ended_after(seconds: float, connection: psycopg.AsyncConnection) -> Iterator[None]:
    """Ends the connection's socket if it is used for too long: a server that is stopped, or gone behind a balancer that
    acknowledges for it, answers neither a statement nor its cancellation."""
    watchdog = asyncio.get_running_loop().call_later(seconds, _hang_up, connection)
    try:
        yield
    finally:
        watchdog.cancel()


def _log_notice(notice: psycopg.errors.Diagnostic) -> None:
    farewell = (notice.sqlstate or "").startswith("57P")  # to each connection, and told of in one line below
    if notice.severity_nonlocalized == "WARNING" and not farewell:
        _log.warning(notice.message_primary)


def _is_alive(connection: psycopg.AsyncConnection) -> bool:
    """Whether the server has not closed a connection while it lay idle; costs no round trip.

    An idle connection has nothing to read: if there is something, it is the server's farewell.
    """
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN)
    return not readable.poll(0)


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
        # Connections made before something went wrong may lead to a server that is not the right one any more.
        self._health = _Health(conninfo(url), recovered=self._fresh.clear)

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._health.close()
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
            connection = await self._taken()
            try:
                async with connection:
                    with self._watched(connection, seconds):
                        yield connection
            finally:
                await self._pool.putconn(connection)
        except (PoolTimeout, TooManyRequests) as error:
            raise await self._without_connection(error) from error
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
            if connection in self._fresh and _is_alive(connection):
                return connection
            await connection.close()
            await self._pool.putconn(connection)

    async def _configure(self, connection: psycopg.AsyncConnection) -> None:
        await connection.set_autocommit(True)
        connection.adapters.register_dumper(dict, JsonbDumper)
        connection.add_notice_handler(_log_notice)
        await connection.execute(_SETUP, {"statement": f"{STATEMENT_SECONDS}s", "lock": f"{LOCK_SECONDS}s"})
        self._fresh.add(connection)

    @contextlib.contextmanager
    def _watched(self, connection: psycopg.AsyncConnection, seconds: float) -> Iterator[None]:
        """Bounds the use of a connection, also by the pool's end."""
        self._used.add(connection)
        try:
            with _ended_after(seconds, connection):
                yield
        finally:
            self._used.discard(connection)

    async def _without_connection(self, error: Exception) -> HivememError:
        """Why there is no connection for a call: all are in use, or the database gives none."""
        match await self._health.examined():
            case _Trouble.CROWDED:
                return DatabaseUnavailable(_CROWDED_OUT)
            case _Trouble.GONE:
                return DatabaseUnavailable(_GONE)
        if isinstance(error, TooManyRequests):
            return Overloaded("too many statements wait for a database connection: try again shortly")
        return Overloaded("all database connections are in use: try again shortly")


class _Trouble(enum.Enum):
    """What can be wrong with the database: what the log says when it begins, and when it is over."""

    GONE = "the database does not answer; trying again", "the database answers again"
    CROWDED = "the database has no connection left for us; trying again", "the database gives connections again"
    READ_ONLY = "the database takes no writes, reads go on; trying again", "the database takes writes again"
    FULL = "the database has no room left, reads go on: free some disk space", "the database has room again"
    LOCKED = "another session holds a lock for long, calls that need it fail: end it", "the lock is gone"


# Who holds locks for longer than we wait for one.
_HOLDER: LiteralString = """
SELECT format('process %%s (%%s), %%s since %%s', pid, application_name, state, xact_start)
FROM pg_stat_activity a
WHERE backend_type = 'client backend' AND xact_start < now() - %s * interval '1 second' AND EXISTS (
    SELECT FROM pg_locks l
    WHERE l.pid = a.pid AND l.database = a.datid AND locktype = 'relation' AND granted AND mode <> 'AccessShareLock')
ORDER BY xact_start LIMIT 1
"""
_ROOM: LiteralString = (  # a megabyte
    "CREATE TEMP TABLE hivemem_room ON COMMIT DROP AS SELECT sha512(n::text::bytea) FROM generate_series(1, 8000) n"
)
_CROWDED = ("too many clients", "remaining connection slots", "too many connections")
_PROBE_SECONDS = 5.0
_PAUSES = (0.25, 2.0)  # first and longest between two probes
_CALM_SECONDS = 1.0  # between a probe that finds nothing and the next one


class _Health:
    """Tells the log how the database is: one line when something begins to be wrong, one when it is over.

    A call that fails is a suspicion only. What is so is asked through a connection of its own, until all is well:
    neither many calls that fail nor a lucky one among them fill the log. `recovered` is called when connections made
    so far should not be used any more.
    """

    def __init__(self, where: str, *, recovered: Callable[[], None]) -> None:
        self._where = where
        self._recovered = recovered
        self._trouble: _Trouble | None = None
        self._doubts: set[_Trouble] = set()
        self._said = ""  # by the last call that failed
        self._probed = asyncio.Event()
        self._wanted = False  # another probe
        self._task: asyncio.Task[None] | None = None

    def suspect(self, error: Exception) -> None:
        """Tells of a call that failed; returns at once."""
        self._doubts.add(_doubt(error))
        self._said = _first_line(error)
        self._begin()

    async def examined(self) -> _Trouble | None:
        """What is wrong; None if that is nothing, or cannot be told soon."""
        if self._trouble is None:
            probed = self._probed
            self._begin()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CALM_SECONDS + 1):
                    await probed.wait()
        return self._trouble

    async def close(self) -> None:
        """Asks no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1)

    def _begin(self) -> None:
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._examine(), name="database health")

    async def _examine(self) -> None:
        pause, longest = _PAUSES
        while True:
            self._wanted = False
            self._note(*await self._finding())
            self._probed.set()
            self._probed = asyncio.Event()
            if self._trouble is None:
                await asyncio.sleep(_CALM_SECONDS)
                if not self._wanted:
                    return
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)

    async def _finding(self) -> tuple[_Trouble | None, str]:
        """What is wrong now, and how the database says it."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                connection = await psycopg.AsyncConnection.connect(self._where, autocommit=True)
            with _ended_after(_PROBE_SECONDS, connection):
                async with connection:
                    return await self._look(connection)
        except psycopg.errors.DiskFull as error:
            return _Trouble.FULL, _first_line(error)
        except (psycopg.Error, OSError) as error:  # TimeoutError is one
            said = _first_line(error)
            return _Trouble.CROWDED if any(words in said for words in _CROWDED) else _Trouble.GONE, said

    async def _look(self, connection: psycopg.AsyncConnection) -> tuple[_Trouble | None, str]:
        if await _answer(connection, "SHOW transaction_read_only") == "on":
            return _Trouble.READ_ONLY, self._said
        if _Trouble.FULL in self._doubts:
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                async with connection.transaction(force_rollback=True):
                    await connection.execute(_ROOM)
        if _Trouble.LOCKED in self._doubts and (holder := await _answer(connection, _HOLDER, [LOCK_SECONDS])):
            return _Trouble.LOCKED, str(holder)
        return None, ""

    def _note(self, trouble: _Trouble | None, error: str) -> None:
        before, self._trouble = self._trouble, trouble
        if trouble is not None:
            if trouble is not before:
                _log.error(trouble.value[0], error=error)
            self._doubts.add(trouble)
            return
        if before is not None:
            _log.info(before.value[1])
        elif self._doubts:
            _log.warning("a call to the database failed, which answers now", error=self._said)
        if self._doubts - {_Trouble.FULL, _Trouble.LOCKED}:
            self._recovered()
        self._doubts.clear()


def _doubt(error: Exception) -> _Trouble:
    """What may be wrong when a call fails so."""
    match error:
        case psycopg.errors.DiskFull():
            return _Trouble.FULL
        case psycopg.errors.LockNotAvailable() | psycopg.errors.QueryCanceled():
            return _Trouble.LOCKED
        case psycopg.errors.ReadOnlySqlTransaction():
            return _Trouble.READ_ONLY
    return _Trouble.GONE


async def _answer(connection: psycopg.AsyncConnection, question: LiteralString, params: Params = ()) -> object:
    """The first value of the answer, if there is one."""
    row = await (await connection.execute(question, params or None)).fetchone()
    return row[0] if row else None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_GONE = "the database does not answer: the call can be sent again, it is deduplicated"
_CROWDED_OUT = (
    "the database has no connection left: raise its max_connections or lower HIVEMEM_DATABASE_CONNECTIONS; the call can"
    " be sent again"
)


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
