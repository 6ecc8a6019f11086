"""The schema: migrations make what the tables say, refusals name their cure, names of constraints are few."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hivemem_server.postgres import schema
from hivemem_server.postgres.tables import metadata
from psycopg import sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine


async def test_the_migrations_make_what_the_tables_say(database_url: str) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url))
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()
    assert differences == []


async def test_several_servers_that_start_at_once_migrate_once(empty_database_url: str) -> None:
    await asyncio.gather(*(asyncio.to_thread(schema.upgrade, empty_database_url) for _ in range(4)))
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)


async def test_a_database_of_a_newer_server_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE schema_requirement SET min_server_version = '99.0'")
    with pytest.raises(schema.SchemaError, match=r"needs hivemem 99\.0 or newer.*pip install -U"):
        await asyncio.to_thread(schema.upgrade, database_url)


async def test_a_database_that_a_newer_server_has_migrated_compatibly_is_used_as_it_is(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    await asyncio.to_thread(schema.upgrade, database_url)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)


async def test_a_database_in_another_encoding_is_refused(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(schema.SchemaError, match=r"encoding is LATIN1.*UTF8"):
            await asyncio.to_thread(schema.upgrade, make_conninfo(postgres, dbname="latin"))
    finally:
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("DROP DATABASE latin WITH (FORCE)")


async def test_a_user_who_may_not_migrate_is_told_who_may(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS hivemem_weak")
        connection.execute("CREATE ROLE hivemem_weak")
        name = connection.info.dbname
        connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO hivemem_weak").format(sql.Identifier(name)))
    weak = make_conninfo(empty_database_url, options="-c role=hivemem_weak")
    try:
        with pytest.raises(schema.SchemaError, match="may not migrate"):
            await asyncio.to_thread(schema.upgrade, weak)
    finally:
        with psycopg.connect(empty_database_url, autocommit=True) as connection:
            connection.execute("DROP OWNED BY hivemem_weak")
            connection.execute("DROP ROLE hivemem_weak")


async def test_a_database_that_cannot_be_reached_is_named_without_its_password() -> None:
    url = "postgresql://someone:secret@127.0.0.1:9/nowhere"
    with pytest.raises(
        schema.SchemaError, match=r"127\.0\.0\.1:9.*cannot be reached \(.*refused.*--database-url"
    ) as refused:
        await asyncio.to_thread(schema.upgrade, url)
    assert "secret" not in str(refused.value)
