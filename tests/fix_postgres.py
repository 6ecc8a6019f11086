"""A real PostgreSQL for the whole run, and a fresh database with the schema for each test that asks for one.

HIVEMEM_TEST_DATABASE_URL names a server to use instead of an embedded one; its user must be allowed to create
databases.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
import pytest_asyncio
from hivemem_server.postgres import schema
from hivemem_server.postgres.embedded import EmbeddedPostgres
from psycopg import sql
from psycopg.conninfo import make_conninfo

# The run's database dies with the run, so it need not survive a power cut.
FAST = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off", "max_connections": "300"}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """URL of a database on the run's PostgreSQL; from it others can be made."""
    url = os.environ.get("HIVEMEM_TEST_DATABASE_URL")
    if url:
        yield url
        return
    async with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), settings=FAST) as embedded:
        yield embedded.url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def template(postgres: str) -> AsyncIterator[str]:
    """Name of a database with the schema, to be cloned."""
    name = f"hivemem_template_{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(_create, postgres, name, "template1")
    await asyncio.to_thread(schema.upgrade, make_conninfo(postgres, dbname=name))
    yield name
    await asyncio.to_thread(_drop, postgres, name)


class Clones:
    """Fresh databases, made ahead and dropped behind by threads: a test waits for neither."""

    def __init__(self, postgres: str, template: str) -> None:
        self._postgres = postgres
        self._template = template
        self._workers = ThreadPoolExecutor(2, "databases")
        self._next = self._begin()

    async def take(self) -> str:
        """The name of one that nobody has used."""
        made, self._next = self._next, self._begin()
        return await asyncio.wrap_future(made)

    def leave(self, name: str) -> None:
        """Tells that it is not needed any more."""
        self._workers.submit(_drop, self._postgres, name)

    def close(self) -> None:
        """Leaves none behind."""
        self.leave(self._next.result())
        self._workers.shutdown()

    def _begin(self) -> Future[str]:
        return self._workers.submit(_create, self._postgres, _any_name(), self._template)


@pytest.fixture(scope="session")
def clones(postgres: str, template: str) -> Iterator[Clones]:
    """Databases with the schema."""
    made = Clones(postgres, template)
    yield made
    made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def empty_database_url(postgres: str) -> AsyncIterator[str]:
    """URL of a fresh database without a schema."""
    name = await asyncio.to_thread(_create, postgres, _any_name(), "template1")
    yield make_conninfo(postgres, dbname=name)
    await asyncio.to_thread(_drop, postgres, name)


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres: str, clones: Clones) -> AsyncIterator[str]:
    """URL of a fresh database with the schema."""
    name = await clones.take()
    yield make_conninfo(postgres, dbname=name)
    clones.leave(name)


async def superuser(connection: psycopg.AsyncConnection) -> bool:
    """Whether the tests may change the server's settings."""
    row = await (await connection.execute("SELECT current_setting('is_superuser')")).fetchone()
    return row == ("on",)


def _any_name() -> str:
    return f"hivemem_test_{uuid.uuid4().hex[:12]}"


def _create(postgres: str, name: str, template: str) -> str:
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY WAL_LOG")
    _run(postgres, create.format(sql.Identifier(name), sql.Identifier(template)))
    return name


def _drop(postgres: str, name: str) -> None:
    _run(postgres, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _run(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
