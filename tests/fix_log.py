"""The log on PostgreSQL without a server: appends in transactions that a test holds open, and who waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import pytest_asyncio
from hivemem_server.domain.appends import Append, prepared
from hivemem_server.domain.errors import HivememError, NamespaceNotFound
from hivemem_server.domain.redactors import redactor_of
from hivemem_server.domain.values import AppendOutcome, Namespace, NamespaceSettings, NewEpisode
from hivemem_server.postgres.database import Database, Params, Row
from hivemem_server.postgres.log import PostgresLog
from hivemem_server.postgres.namespaces import DEFAULT, PostgresNamespaces
from hivemem_server.postgres.sessions import PostgresSessions

WAIT = 20.0
CONNECTIONS = 48

WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND cardinality(pg_blocking_pids(pid)) > 0
"""


class _Held:
    """What PostgresLog needs of a Database, on one connection and in the transaction that is open there."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection

    async def fetch(self, query: Any, params: Params | None = None) -> list[Row]:
        cursor = await self._connection.execute(query, params, binary=True)
        return await cursor.fetchall() if cursor.description else []


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectLog:
    """One namespace with an open session `s`, and the store that servers use."""

    database: Database
    namespace: Namespace
    log: PostgresLog

    def ready(self, *new: NewEpisode, session_id: str = "s", agent_id: str = "a", **fields: Any) -> Append:
        """An append as a server hands it to the store."""
        append = Append(session_id=session_id, agent_id=agent_id, episodes=new, **fields)
        return prepared(append, self.namespace, redactor_of(self.namespace))

    async def append(self, append: Append) -> AppendOutcome | HivememError:
        """One append in a transaction of its own, without the queue that a server has."""
        (outcome,) = await self.log.append(self.namespace, [append])
        return outcome

    @contextlib.asynccontextmanager
    async def held(self, append: Append) -> AsyncIterator[AppendOutcome | HivememError]:
        """The append's outcome while its transaction is open; it commits when the context is left in peace."""
        async with self.database.transaction() as connection:
            (outcome,) = await PostgresLog(cast(Database, _Held(connection))).append(self.namespace, [append])
            yield outcome

    async def until_waiting(self, count: int) -> None:
        """Waits until so many of the database's connections wait for a lock."""
        async with asyncio.timeout(WAIT):
            while (await self.database.fetch(WAITING))[0][0] < count:
                pass


def written(outcome: object) -> AppendOutcome:
    """The outcome of an append that must not be refused."""
    assert isinstance(outcome, AppendOutcome), outcome
    return outcome


def new(summary: str = "something happened", **fields: Any) -> NewEpisode:
    """An episode with an id of its own."""
    return NewEpisode(episode_id=fields.pop("episode_id", None) or uuid.uuid4(), summary=summary, **fields)


@contextlib.asynccontextmanager
async def direct_log(database_url: str, name: str = DEFAULT) -> AsyncIterator[DirectLog]:
    """The log of a namespace, which is made if it is not there."""
    async with Database(database_url, size=CONNECTIONS) as database:
        namespaces = PostgresNamespaces(database)
        try:
            namespace = await namespaces.get(name)
        except NamespaceNotFound:
            namespace, _ = await namespaces.create(name, NamespaceSettings())
        await open_session(database, namespace, "s")
        yield DirectLog(database=database, namespace=namespace, log=PostgresLog(database))


async def open_session(database: Database, namespace: Namespace, session_id: str, *, user_id: str = "") -> None:
    """Makes a session."""
    await PostgresSessions(database).open(
        namespace, session_id, user_id=user_id, goal="", labels={}, continues_session_id=""
    )


@pytest_asyncio.fixture(loop_scope="session")
async def direct(database_url: str) -> AsyncIterator[DirectLog]:
    """The log of the default namespace."""
    async with direct_log(database_url) as made:
        yield made
