"""Cursors under names, so that another process can go on where one stopped. They only move forwards."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from hivemem_server.domain.errors import (
    CursorConflict,
    CursorDiverged,
    CursorExpired,
    CursorNotFound,
    HivememError,
    NamespaceNotFound,
)
from hivemem_server.domain.ports import CursorStore, LogStore
from hivemem_server.domain.values import NamedCursor, Namespace, Point
from hivemem_server.log.cursors import decode_cursor, encode_cursor, verified


class NamedCursors:
    """The named cursors of all namespaces."""

    def __init__(self, store: CursorStore, log: LogStore) -> None:
        self._store = store
        self._log = log

    async def get(self, namespace: Namespace, name: str) -> NamedCursor:
        """What was committed under the name. Raises CursorNotFound."""
        stored = await self._store.get(namespace, name)
        if stored is None:
            raise CursorNotFound(
                f"no cursor was committed under {name!r}: begin at another point, and commit one", name=name
            )
        return stored

    async def start(self, namespace: Namespace, name: str) -> Point:
        """Where a reader goes on. Raises CursorNotFound, CursorExpired, CursorDiverged."""
        return await self._verified(namespace, await self.get(namespace, name))

    async def commit(self, namespace: Namespace, name: str, cursor: bytes, expected: bytes | None) -> Point:
        """Stores the cursor and returns its point. What is stored already may be stored again, whatever is expected.

        `expected` is the cursor that is thought to be stored, empty for none; None is not checked. One that is stored
        but belongs to another history counts for nothing: without an expectation any cursor takes its place. Raises
        CursorMalformed, CursorForeign, CursorDiverged, CursorConflict.
        """
        point = decode_cursor(namespace, cursor)
        there = decode_cursor(namespace, expected) if expected else None
        with contextlib.suppress(CursorExpired):  # it can be kept, and tells when it is used
            await verified(self._log, namespace, point)
        if not await self._moved(namespace, name, point, there, checked=expected is not None):
            await self._settle(namespace, name, point, there, checked=expected is not None)
        return point

    async def _moved(
        self, namespace: Namespace, name: str, point: Point, there: Point | None, *, checked: bool
    ) -> bool:
        if there is not None:
            forwards = there.position <= point.position
            return forwards and await self._store.exchange(namespace, name, namespace.epoch, there, point)
        if checked:
            return await self._store.begin(namespace, name, point)
        return await self._store.advance(namespace, name, point)

    async def _settle(
        self, namespace: Namespace, name: str, point: Point, there: Point | None, *, checked: bool
    ) -> None:
        """Makes out why nothing was stored, and raises unless it is stored all the same."""
        stored = await self._store.get(namespace, name)
        if stored is None and there is None:
            raise NamespaceNotFound(f"namespace {namespace.name!r} does not exist", namespace=namespace.name)
        if stored is not None and (stored.epoch, stored.point) == (namespace.epoch, point):
            return  # sent again, because the answer got lost
        if stored is not None and not checked and await self._is_of_another_history(namespace, stored):
            if await self._store.exchange(namespace, name, stored.epoch, stored.point, point):
                return
            stored = await self._store.get(namespace, name)
        raise _conflict(name, point, there, stored, checked=checked)

    async def _is_of_another_history(self, namespace: Namespace, stored: NamedCursor) -> bool:
        try:
            await self._verified(namespace, stored)
        except CursorExpired:
            return False
        except CursorDiverged:
            return True
        return False

    async def _verified(self, namespace: Namespace, stored: NamedCursor) -> Point:
        return await verified(self._log, namespace, decode_cursor(namespace, stored_cursor(namespace, stored)))


def stored_cursor(namespace: Namespace, stored: NamedCursor) -> bytes:
    """The cursor as it was committed, also if the log has another epoch by now."""
    return encode_cursor(replace(namespace, epoch=stored.epoch), stored.point)


def _conflict(
    name: str, point: Point, there: Point | None, stored: NamedCursor | None, *, checked: bool
) -> HivememError:
    """The error that names both places: the one stored, and the one expected or to be stored."""
    expected = there.position if there is not None else 0
    numbers: dict[str, object] = {"name": name, "position": point.position}
    if checked:
        numbers["expected"] = expected
    if stored is None:
        return CursorConflict(
            f"no cursor is stored under {name!r}, one at position {expected} was expected: commit without expectation",
            **numbers,
        )
    actual = stored.point.position
    if checked and (there is None or stored.point != there):
        wish = f"at the expected position {expected}" if there is not None else "unset, as was expected"
        text = f"cursor {name!r} is at position {actual}, not {wish}: somebody else moved it; get it and decide again"
    else:
        text = (
            f"cursor {name!r} is at position {actual} and only moves forwards, not to {point.position}:"
            " does another process use this name?"
        )
    return CursorConflict(text, actual=actual, **numbers)
