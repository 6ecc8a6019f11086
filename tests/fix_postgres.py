"""A real PostgreSQL for the whole run, and a fresh database with the schema for each test that asks for one.

HIVEMEM_TEST_DATABASE_URL names a server to use instead of an embedded one; its user must be allowed to create
databases.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator

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
    await _run(postgres, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    await asyncio.to_thread(schema.upgrade, make_conninfo(postgres, dbname=name))
    yield name
    await _run(postgres, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest_asyncio.fixture(loop_scope="session")
async def empty_database_url(postgres: str) -> AsyncIterator[str]:
    """URL of a fresh database without a schema."""
    async for url in _database(postgres, "template1"):
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres: str, template: str) -> AsyncIterator[str]:
    """URL of a fresh database with the schema."""
    async for url in _database(postgres, template):
        yield url


async def superuser(connection: psycopg.AsyncConnection) -> bool:
    """Whether the tests may change the server's settings."""
    row = await (await connection.execute("SELECT current_setting('is_superuser')")).fetchone()
    return row == ("on",)


async def _database(postgres: str, template: str) -> AsyncIterator[str]:
    name = f"hivemem_test_{uuid.uuid4().hex[:12]}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY WAL_LOG")
    await _run(postgres, create.format(sql.Identifier(name), sql.Identifier(template)))
    yield make_conninfo(postgres, dbname=name)
    await _run(postgres, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


async def _run(url: str, statement: sql.Composed) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(statement)
