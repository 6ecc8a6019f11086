"""Namespaces on PostgreSQL."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, LiteralString
from uuid import uuid4

from hivemem.redaction import Rules
from psycopg import AsyncConnection
from sqlalchemy import ColumnElement, Integer, Text, bindparam, func, select, update

from hivemem_server.domain.errors import InvalidField, NamespaceExists, NamespaceNotFound
from hivemem_server.domain.values import Namespace, NamespaceSettings
from hivemem_server.postgres.database import Database, Row, compiled
from hivemem_server.postgres.tables import log, namespaces

DEFAULT = "default"
RESOLVED_SECONDS = 5.0
RESOLVED_MOST = 1_000
DELETE_SECONDS = 600

# Keys are drawn under a lock on the whole table: namespaces are made rarely.
CREATE: LiteralString = """
INSERT INTO namespaces (namespace_id, name, epoch, digest_key, description, labels, text_language, redaction,
                        created_time, updated_time)
SELECT coalesce(max(namespace_id), 0) + 1, %(name)s, %(epoch)s, %(digest_key)s, %(description)s, %(labels)s,
       %(text_language)s, %(redaction)s, clock_timestamp(), clock_timestamp()
FROM namespaces
ON CONFLICT (name) DO NOTHING
RETURNING namespace_id
"""

# What of a deleted namespace stays: its key, so that whoever still holds the key finds nothing of anybody else's.
BURY: LiteralString = """
UPDATE namespaces SET name = NULL, description = '', labels = '{}', redaction = '{}', digest_key = ''
WHERE namespace_id = %s
"""

# Whatever belongs to a namespace, in an order that keeps references whole. Tables of vectors are added to it.
OWNED = ("cursors", "index_set_aside", "index_progress", "threads", "decisions", "log", "agents", "sessions")


class PostgresNamespaces:
    """Implements NamespaceStore."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._resolved: dict[str, tuple[float, Namespace]] = {}

    async def create(self, name: str, settings: NamespaceSettings) -> tuple[Namespace, bool]:
        """See NamespaceStore."""
        await self._check_language(settings.text_language)
        values = {
            "name": name,
            "epoch": uuid4(),
            "digest_key": secrets.token_bytes(32),
            "description": settings.description,
            "labels": dict(settings.labels),
            "text_language": settings.text_language,
            "redaction": asdict(settings.redaction),
        }
        async with self._database.transaction() as connection:
            await connection.execute("LOCK TABLE namespaces IN SHARE ROW EXCLUSIVE MODE")
            created = await (await connection.execute(CREATE, values)).fetchone()
        namespace = await self.get(name)
        if created is None and namespace.settings != settings:
            raise NamespaceExists(f"namespace {name!r} exists with other settings: change them with UpdateNamespace")
        return namespace, created is not None

    async def get(self, name: str) -> Namespace:
        """See NamespaceStore."""
        found = await self._database.query(_BY_NAME, name=name)
        if not found:
            raise NamespaceNotFound(f"namespace {name!r} does not exist: create it first", namespace=name)
        return _namespace(found[0])

    async def resolve(self, name: str) -> Namespace:
        """See NamespaceStore."""
        now = time.monotonic()
        known = self._resolved.get(name)
        if known and now - known[0] < RESOLVED_SECONDS:
            return known[1]
        self._resolved.pop(name, None)
        namespace = await self.get(name)
        while len(self._resolved) >= RESOLVED_MOST:
            self._resolved.pop(next(iter(self._resolved)), None)
        self._resolved[name] = (now, namespace)
        return namespace

    async def page(self, after: str, limit: int) -> list[Namespace]:
        """See NamespaceStore."""
        found = await self._database.query(_PAGE, after=after, limit=limit)
        return [_namespace(row) for row in found]

    async def update(self, name: str, changes: Mapping[str, object]) -> Namespace:
        """See NamespaceStore."""
        if "text_language" in changes:
            await self._check_language(str(changes["text_language"]))
        stored = {name: asdict(value) if isinstance(value, Rules) else value for name, value in changes.items()}
        await self._database.query(
            compiled(
                update(namespaces)
                .where(namespaces.c.name == name)
                .values(**stored, updated_time=func.clock_timestamp())
            )
        )
        self._resolved.pop(name, None)
        return await self.get(name)

    async def delete(self, name: str) -> int:
        """See NamespaceStore."""
        namespace = await self.get(name)
        async with self._database.transaction(seconds=DELETE_SECONDS) as connection:
            await connection.execute("SELECT set_config('statement_timeout', %s, true)", [f"{DELETE_SECONDS}s"])
            await connection.execute("SELECT FROM namespaces WHERE namespace_id = %s FOR UPDATE", [namespace.key])
            removed = 0
            for table in [*await _vector_tables(connection), *OWNED]:
                query: Any = f"DELETE FROM {table} WHERE namespace_id = %s"  # noqa: S608 - names made here
                cursor = await connection.execute(query, [namespace.key])
                removed = cursor.rowcount if table == "log" else removed
            await connection.execute(BURY, [namespace.key])
        self._resolved.pop(name, None)
        return removed

    async def _check_language(self, language: str) -> None:
        known = await self._database.fetch("SELECT cfgname FROM pg_ts_config ORDER BY cfgname")
        names = [row[0] for row in known]
        if language not in names:
            raise InvalidField.at("settings.text_language", f"must be one of {', '.join(names)}")


async def _vector_tables(connection: AsyncConnection) -> list[str]:
    rows = await (await connection.execute("SELECT model_key FROM models")).fetchall()
    return [f"vectors_{key}" for (key,) in rows]


def _select() -> Any:
    head: ColumnElement[int] = func.coalesce(
        select(func.max(log.c.position)).where(log.c.namespace_id == namespaces.c.namespace_id).scalar_subquery(),
        namespaces.c.floor,
    )
    return select(namespaces, head)


_BY_NAME = compiled(_select().where(namespaces.c.name == bindparam("name", type_=Text)))
_PAGE = compiled(
    _select()
    .where(namespaces.c.name > bindparam("after", type_=Text))
    .order_by(namespaces.c.name)
    .limit(bindparam("limit", type_=Integer))
)


def _namespace(row: Row) -> Namespace:
    key, name, epoch, digest_key, floor, description, labels, language, redaction, created, updated, head = row
    settings = NamespaceSettings(
        description=description, labels=labels, text_language=language, redaction=_rules(redaction)
    )
    return Namespace(
        key=key,
        name=name,
        epoch=epoch,
        digest_key=digest_key,
        settings=settings,
        floor=floor,
        head=head,
        create_time=created,
        update_time=updated,
    )


def _rules(stored: Mapping[str, Any]) -> Rules:
    return Rules(
        enabled=stored.get("enabled", True),
        kinds=tuple(stored.get("kinds", ())),
        patterns=tuple(stored.get("patterns", ())),
    )
