"""Cursors: opaque bytes that resume a reader, whatever its filter.

A cursor carries the namespace, the log's epoch, a position and the id of the record there, so that a cursor of another
namespace, of a log that was cut, or of another history (a restored database) is told from a good one.
"""

from __future__ import annotations

import hashlib
import struct
from uuid import UUID

from hivemem_server.domain.errors import CursorDiverged, CursorExpired, CursorForeign, CursorMalformed, HivememError
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.values import NO_RECORD, Namespace, Point

_VERSION = 1
_LAYOUT = struct.Struct(">BI16sq16s")
_CHECK_BYTES = 8


def encode_cursor(namespace: Namespace, point: Point) -> bytes:
    """The cursor that resumes after the point."""
    body = _LAYOUT.pack(_VERSION, namespace.key, namespace.epoch.bytes, point.position, point.record_id.bytes)
    return body + _check(body)


def decode_cursor(namespace: Namespace, cursor: bytes) -> Point:
    """The point of a cursor. Raises CursorMalformed, CursorForeign, CursorDiverged."""
    body, check = cursor[:-_CHECK_BYTES], cursor[-_CHECK_BYTES:]
    if len(body) != _LAYOUT.size or check != _check(body) or body[0] != _VERSION:
        raise CursorMalformed("the cursor was altered or cut: use its bytes exactly as they were received")
    _, key, epoch, position, record_id = _LAYOUT.unpack(body)
    if key != namespace.key:
        raise CursorForeign(f"the cursor is of another namespace than {namespace.name!r}")
    if epoch != namespace.epoch.bytes:
        raise _diverged(position)
    return Point(position=position, record_id=UUID(bytes=record_id))


async def verified(store: LogStore, namespace: Namespace, point: Point) -> Point:
    """The point, if the log's history still has it. Raises CursorExpired, CursorDiverged."""
    there, floor = await store.history(namespace, point.position)
    check_history(point, there, floor)
    return point


def check_history(point: Point, there: Point, floor: int) -> None:
    """Compares a reader's point with what the log has there. Raises CursorExpired, CursorDiverged."""
    if point.position < floor:
        raise expired(point.position, floor)
    if point.record_id == NO_RECORD or point.position == floor:
        return  # made for a place without a record: before the first, or ahead of the head
    if point.record_id != there.record_id:
        raise _diverged(point.position)


def expired(position: int, floor: int) -> HivememError:
    """The error of a reader whose place was cut off."""
    return CursorExpired(
        f"the log begins at position {floor + 1} now, position {position} was cut off: restart from there",
        position=position,
        first_position=floor + 1,
    )


def _diverged(position: int) -> HivememError:
    return CursorDiverged(
        f"the log's history at position {position} is another one than the cursor's (a restored database):"
        " rebuild your view from the beginning",
        position=position,
    )


def _check(body: bytes) -> bytes:
    return hashlib.blake2s(body, digest_size=_CHECK_BYTES, person=b"hivemem").digest()
