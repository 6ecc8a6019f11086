"""Brings a database to this server's schema, or says in one line why it cannot."""

from __future__ import annotations

from importlib import resources

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from hivemem_server import __version__
from hivemem_server.postgres.database import conninfo, described

OLDEST_POSTGRES, NEWEST_POSTGRES = 16, 18
OLDEST_PGVECTOR = (0, 8, 4)
MIGRATION_LOCK = 7_400_001


class SchemaError(Exception):
    """The database cannot be used; the message is one sentence with the cure."""


def upgrade(url: str) -> None:
    """Migrates the database in one transaction. Of several servers that start at once one does it, the others wait.

    Raises SchemaError for a database that cannot be reached or used, and DatabaseAddressError.
    """
    where = described(url)
    # psycopg connects, not SQLAlchemy, so that a connection string means the same everywhere.
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo(url)))
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            _check_server(connection)
            _check_pgvector(connection)
            _check_requirement(connection)
            config = _config(connection)
            if not _is_ahead(connection, config):
                command.upgrade(config, "head")
    except (psycopg.OperationalError, OperationalError) as error:
        cause = error.orig if isinstance(error, OperationalError) else error
        reason = str(cause).strip().splitlines()[0].removeprefix("connection failed: ")
        raise SchemaError(f"{where} cannot be reached ({reason}): check --database-url") from error
    except ProgrammingError as error:
        if not isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
            raise
        raise SchemaError(
            f"the database user may not migrate ({error.orig}): let the owner run the server once, or"
            " CREATE EXTENSION vector and btree_gin"
        ) from error
    finally:
        engine.dispose()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(resources.files("hivemem_server.postgres") / "migrations"))
    config.attributes["connection"] = connection
    return config


def _check_server(connection: Connection) -> None:
    version = int(connection.scalar(text("SHOW server_version_num")) or 0) // 10_000
    if not OLDEST_POSTGRES <= version <= NEWEST_POSTGRES:
        raise SchemaError(f"PostgreSQL {version} is not supported: use one from {OLDEST_POSTGRES} to {NEWEST_POSTGRES}")
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise SchemaError(f"the database's encoding is {encoding}: create it with ENCODING 'UTF8'")


def _check_pgvector(connection: Connection) -> None:
    row = connection.execute(
        text("SELECT installed_version, default_version FROM pg_available_extensions WHERE name = 'vector'")
    ).one_or_none()
    oldest = ".".join(map(str, OLDEST_PGVECTOR))
    if row is None:
        raise SchemaError(
            f"the database has no pgvector: install version {oldest} or newer on its machine (package"
            " postgresql-NN-pgvector, or image pgvector/pgvector)"
        )
    version = row.installed_version or row.default_version
    if _numbers(version) < OLDEST_PGVECTOR:
        cure = "run ALTER EXTENSION vector UPDATE" if row.installed_version else "install it on its machine"
        raise SchemaError(f"the database has pgvector {version}, needed is {oldest} or newer: {cure}")


def _check_requirement(connection: Connection) -> None:
    if connection.scalar(text("SELECT to_regclass('schema_requirement')")) is None:
        return
    needed = connection.scalar(text("SELECT min_server_version FROM schema_requirement")) or "0"
    if _numbers(needed) > _numbers(__version__):
        raise SchemaError(
            f"the database needs hivemem {needed} or newer, this is {__version__}: run `pip install -U hivemem`"
        )


def _is_ahead(connection: Connection, config: Config) -> bool:
    """Whether a newer server has migrated the database, in a way that this one can still work with."""
    revision = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    return revision is not None and revision not in known


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
