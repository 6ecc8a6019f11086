"""How replicas that share a database tell each other at once how far their logs have come.

A hint costs an append nothing: it is sent after the commit, on a connection of its own, and at most one NOTIFY is under
way, since commits that carry one wait for each other. A hint promises nothing either. It may be lost, come twice or
late; whatever hints do not tell is found by the poll of heads.

Whether hints come is tested and not believed: every few seconds each replica sends one, by the way that all of its
hints go, and has to hear it itself. By these tests it also knows whether there are others; alone it sends nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import LiteralString, TypeAlias
from uuid import UUID

import psycopg
import structlog
from psycopg.conninfo import make_conninfo

from hivemem_server.domain.errors import HivememError
from hivemem_server.domain.ports import HintedHeads
from hivemem_server.domain.values import Namespace
from hivemem_server.postgres.database import Database, conninfo
from hivemem_server.postgres.sockets import ended_after, is_alive

_log = structlog.get_logger()

SEND_SECONDS = 0.01  # between two NOTIFYs; what is committed meanwhile is gathered
TEST_SECONDS = 5.0  # between two tests
HEAR_SECONDS = 3.0  # until a test is heard
OTHERS_SECONDS = 12.0  # another replica that was not heard of for so long, two tests and more, is gone
ANSWER_SECONDS = 3.0  # what a connection and each of its statements may take
PAUSES = (0.25, 10.0)  # first and longest between two tries to connect
MOST_GATHERED = 10_000  # logs
MOST_IN_ONE = 90  # heads in a payload, which has to be smaller than 8,000 bytes
HINT_CONNECTIONS = 2  # of a replica

LISTEN: LiteralString = "LISTEN hivemem_hints"
# A listener has nothing to say for hours. Without an effect if it is led through a pooler by mistake.
NEVER_IDLE: LiteralString = "SELECT set_config('idle_session_timeout', '0', false)"
NOTIFY: LiteralString = "SELECT pg_notify('hivemem_hints', payload) FROM unnest(%s::text[]) payload"

Log: TypeAlias = tuple[int, UUID]  # a namespace's key, and the epoch: other schemas of a database have the same keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What one NOTIFY carries. A replica numbers what it sends; with no heads it is only a test."""

    replica: UUID
    number: int
    heads: Mapping[Log, int]

    def payload(self) -> str:
        """As text."""
        heads = [[key, epoch.hex, position] for (key, epoch), position in self.heads.items()]
        hint = {"v": 1, "replica": self.replica.hex, "number": self.number, "heads": heads}
        return json.dumps(hint, separators=(",", ":"))


def read_hint(payload: str) -> Hint:
    """The hint of a text. Raises ValueError for anything else."""
    try:
        hint = json.loads(payload)
    except RecursionError as error:
        raise ValueError("too deep") from error
    match hint:
        case {"v": 1, "replica": str(replica), "number": int(number), "heads": list(heads)}:
            return Hint(replica=UUID(replica), number=number, heads=dict(map(_read_head, heads)))
    raise ValueError("no hint")


def _read_head(head: object) -> tuple[Log, int]:
    match head:
        case [int(key), str(epoch), int(position)] if 0 < position < 1 << 63:
            return (key, UUID(epoch)), position
    raise ValueError("no head")


class Hints:
    """Sends and hears hints, while `send` and `listen` run. Nothing here fails or holds up a caller."""

    def __init__(self, database: Database, *, url: str, listen_url: str, replica: UUID, heads: HintedHeads) -> None:
        self._notifier = _Notifier(_Way(url, "hivemem notifier", database), replica)
        self._listener = _Listener(_Way(listen_url, "hivemem listener", database), self._notifier, heads)

    def committed(self, namespace: Namespace, position: int) -> None:
        """Has others told that the log has come to `position`."""
        if not self._listener.is_alone:
            self._notifier.tell((namespace.key, namespace.epoch), position)

    async def send(self) -> None:
        """Sends what there is to tell, for ever."""
        await self._notifier.run()

    async def listen(self) -> None:
        """Takes what others tell, for ever."""
        await self._listener.run()


class _Way:
    """Leads to the database past the pool."""

    def __init__(self, url: str, name: str, database: Database) -> None:
        self._where = make_conninfo(conninfo(url), application_name=name)
        self._database = database
        self._generation = 0

    async def opened(self) -> psycopg.AsyncConnection:
        """A new connection."""
        self._generation = self._database.generation
        async with asyncio.timeout(ANSWER_SECONDS):
            return await psycopg.AsyncConnection.connect(self._where, autocommit=True, prepare_threshold=None)

    @property
    def leads_elsewhere(self) -> bool:
        """Whether the last connection may lead to a server that is not the right one any more."""
        return self._generation != self._database.generation

    async def database_is_well(self) -> bool:
        """Whether the pool reaches a database that takes writes; if not, others say so."""
        with contextlib.suppress(HivememError):
            return await self._database.fetch("SELECT pg_is_in_recovery()") == [(False,)]
        return False


class _Pauses:
    """Pauses between tries, longer each time, no two replicas alike."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """After a success."""
        self._next, self._longest = PAUSES

    async def pause(self) -> None:
        """After a failure."""
        seconds = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, self._longest)
        await asyncio.sleep(seconds)


class _Notifier:
    """Sends hints, one NOTIFY at a time. What cannot be sent now is sent later, of each log the newest head only."""

    def __init__(self, way: _Way, replica: UUID) -> None:
        self.replica = replica
        self._way = way
        self._connection: psycopg.AsyncConnection | None = None
        self._heads: dict[Log, int] = {}
        self._number = 0
        self._wanted = asyncio.Event()

    def tell(self, log: Log, position: int) -> None:
        """Sends it soon."""
        if log in self._heads or len(self._heads) < MOST_GATHERED:
            self._heads[log] = max(position, self._heads.get(log, 0))
            self._wanted.set()

    def test(self) -> int:
        """Sends a hint soon, also if there is nothing to tell; its number is what this returns, or a higher one."""
        self._wanted.set()
        return self._number + 1

    async def run(self) -> None:
        """Sends for ever."""
        pauses = _Pauses()
        try:
            while True:
                await self._wanted.wait()
                try:
                    await self._send()
                except (psycopg.Error, OSError) as error:
                    _log.debug("hints could not be sent; trying again", error=str(error))
                    await self._close()
                    await pauses.pause()
                else:
                    pauses.reset()
                    await asyncio.sleep(SEND_SECONDS)
        finally:
            await self._close()

    async def _send(self) -> None:
        connection = await self._connected()
        self._wanted.clear()
        self._number += 1
        heads, self._heads = self._heads, {}
        try:
            with ended_after(ANSWER_SECONDS, connection):
                await connection.execute(NOTIFY, [list(self._payloads(heads))])
        except (psycopg.Error, OSError):
            self._heads = heads | self._heads
            self._wanted.set()
            raise

    def _payloads(self, heads: dict[Log, int]) -> Iterator[str]:
        told = list(heads.items())
        for first in range(0, max(1, len(told)), MOST_IN_ONE):
            part = dict(told[first : first + MOST_IN_ONE])
            yield Hint(replica=self.replica, number=self._number, heads=part).payload()

    async def _connected(self) -> psycopg.AsyncConnection:
        if self._connection is not None and not self._way.leads_elsewhere and is_alive(self._connection):
            return self._connection
        await self._close()
        self._connection = await self._way.opened()
        return self._connection

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


class _DeafError(Exception):
    """What was sent is not heard."""


class _Listener:
    """Hears hints, and says when it cannot: one line when they stop to come, one when they come again."""

    def __init__(self, way: _Way, notifier: _Notifier, heads: HintedHeads) -> None:
        self._way = way
        self._notifier = notifier
        self._heads = heads
        self._heard = 0  # the highest number of our own
        self._works = False
        self._others_until = 0.0
        self._failures = 0  # in a row, while the database was well
        self._said = False
        self._pauses = _Pauses()

    @property
    def is_alone(self) -> bool:
        """Whether no other replica is there to be told. As long as it cannot be known, one may be."""
        return self._works and _now() > self._others_until

    async def run(self) -> None:
        """Listens for ever."""
        while True:
            try:
                async with await self._way.opened() as connection:
                    await self._hear(connection)
            except (psycopg.Error, OSError, UnicodeError, _DeafError) as error:
                await self._failed(error)
            await self._pauses.pause()

    async def _hear(self, connection: psycopg.AsyncConnection) -> None:
        """Takes hints until the connection should be replaced by another one, or fails."""
        with ended_after(ANSWER_SECONDS, connection):
            await connection.execute(NEVER_IDLE)
            await connection.execute(LISTEN)
        self._others_until = _now() + OTHERS_SECONDS  # they need not have tested meanwhile
        try:
            while not self._way.leads_elsewhere:
                await self._test(connection)
                self._succeeded()
                async for notify in connection.notifies(timeout=TEST_SECONDS):
                    self._take(notify.payload)
        finally:
            self._works = False
            self._heads.rely_on_hints(False)

    async def _test(self, connection: psycopg.AsyncConnection) -> None:
        number, deadline = self._notifier.test(), _now() + HEAR_SECONDS
        while self._heard < number:
            if (left := deadline - _now()) <= 0:
                raise _DeafError("hints that were sent are not heard")
            async for notify in connection.notifies(timeout=left, stop_after=1):
                self._take(notify.payload)

    def _take(self, payload: str) -> None:
        try:
            hint = read_hint(payload)
        except ValueError:
            _log.debug("a notification is no hint", payload=payload[:100])
            return
        if hint.replica == self._notifier.replica:
            self._heard = max(self._heard, hint.number)
            return
        self._others_until = _now() + OTHERS_SECONDS
        for (key, epoch), position in hint.heads.items():
            self._heads.hint(key, epoch, position)

    def _succeeded(self) -> None:
        self._failures = 0
        self._pauses.reset()
        self._works = True
        self._heads.rely_on_hints(True)
        if self._said:
            self._said = False
            _log.info("hints from other replicas come again")

    async def _failed(self, error: Exception) -> None:
        """Says so when it lasts, unless more is wrong than hints, which others say."""
        _log.debug("hints are not heard; trying again", error=str(error))
        if self._failures and not await self._way.database_is_well():
            return
        self._failures += 1
        if not self._said and self._failures > 2:
            self._said = True
            _log.warning(
                "hints from other replicas do not come, their commits are found by polling; trying again",
                error=str(error),
            )


def _now() -> float:
    return asyncio.get_running_loop().time()
