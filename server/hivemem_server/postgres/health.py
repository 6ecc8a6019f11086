"""What is wrong with the database, and what the log is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import LiteralString

import psycopg
import psycopg.errors
import structlog

from hivemem_server.postgres.sockets import ended_after

_log = structlog.get_logger()


class Trouble(enum.Enum):
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
    WHERE l.pid = a.pid AND l.relation IN (to_regclass('namespaces'), to_regclass('sessions'), to_regclass('threads'))
      AND granted AND mode <> 'AccessShareLock')
ORDER BY xact_start LIMIT 1
"""
_ROOM: LiteralString = (  # a megabyte
    "CREATE TEMP TABLE hivemem_room ON COMMIT DROP AS SELECT sha512(n::text::bytea) FROM generate_series(1, 8000) n"
)
_CROWDED = ("too many clients", "remaining connection slots", "too many connections")
HEALTH_CONNECTIONS = 1  # of a server
_PROBE_SECONDS = 5.0
_PAUSES = (0.25, 2.0)  # first and longest between two probes
_CALM_SECONDS = 1.0  # between a probe that finds nothing and the next one


class Health:
    """Tells the log how the database is: one line when something begins to be wrong, one when it is over.

    A call that fails is a suspicion only. What is so is asked through a connection of its own, until all is well:
    neither many calls that fail nor a lucky one among them fill the log. `recovered` is called when connections made
    so far should not be used any more.
    """

    def __init__(self, where: str, *, lock_seconds: float, recovered: Callable[[], None]) -> None:
        self._where = where
        self._lock_seconds = lock_seconds
        self._recovered = recovered
        self._trouble: Trouble | None = None
        self._doubts: set[Trouble] = set()
        self._said = ""  # by the last call that failed
        self._probed = asyncio.Event()
        self._wanted = False  # another probe
        self._task: asyncio.Task[None] | None = None

    def suspect(self, error: Exception) -> None:
        """Tells of a call that failed; returns at once."""
        self._doubts.add(_doubt(error))
        self._said = _first_line(error)
        self._begin()

    async def examined(self) -> Trouble | None:
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

    async def _finding(self) -> tuple[Trouble | None, str]:
        """What is wrong now, and how the database says it."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                connection = await psycopg.AsyncConnection.connect(self._where, autocommit=True)
            with ended_after(_PROBE_SECONDS, connection):
                async with connection:
                    return await self._look(connection)
        except psycopg.errors.DiskFull as error:
            return Trouble.FULL, _first_line(error)
        except (psycopg.Error, OSError) as error:  # TimeoutError is one
            said = _first_line(error)
            return Trouble.CROWDED if any(words in said for words in _CROWDED) else Trouble.GONE, said

    async def _look(self, connection: psycopg.AsyncConnection) -> tuple[Trouble | None, str]:
        if await _answer(connection, "SHOW transaction_read_only") == "on":
            return Trouble.READ_ONLY, self._said
        if Trouble.FULL in self._doubts:
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                async with connection.transaction(force_rollback=True):
                    await connection.execute(_ROOM)
        if Trouble.LOCKED in self._doubts and (holder := await _answer(connection, _HOLDER, [self._lock_seconds])):
            return Trouble.LOCKED, str(holder)
        return None, ""

    def _note(self, trouble: Trouble | None, error: str) -> None:
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
        if self._doubts - {Trouble.FULL, Trouble.LOCKED}:
            self._recovered()
        self._doubts.clear()


def _doubt(error: Exception) -> Trouble:
    """What may be wrong when a call fails so."""
    match error:
        case psycopg.errors.DiskFull():
            return Trouble.FULL
        case psycopg.errors.LockNotAvailable() | psycopg.errors.QueryCanceled():
            return Trouble.LOCKED
        case psycopg.errors.ReadOnlySqlTransaction():
            return Trouble.READ_ONLY
    return Trouble.GONE


async def _answer(
    connection: psycopg.AsyncConnection, question: LiteralString, params: Sequence[object] = ()
) -> object:
    """The first value of the answer, if there is one."""
    row = await (await connection.execute(question, params or None)).fetchone()
    return row[0] if row else None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
