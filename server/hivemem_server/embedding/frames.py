"""The frames between the server and its embedding worker: two lengths, a JSON header, a body of bytes.

The worker sends `{}` when it is ready, or `{"error": …}` and ends. Then each `{"texts": […]}` is answered by
`{"rows": n, "columns": d}` with n times d little-endian 32-bit floats. One request at a time.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

_LENGTHS = struct.Struct("<II")
_LARGEST = 16 * 1024 * 1024

Header = Mapping[str, Any]


class FrameBroken(Exception):
    """What arrived is no frame."""


class StreamEnded(FrameBroken):
    """The other side closed the stream, or is gone."""


def frame(header: Header, body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    head = json.dumps(header).encode()
    return _LENGTHS.pack(len(head), len(body)) + head + body


def read_frame(stream: BinaryIO) -> tuple[Header, bytes] | None:
    """The next frame, waiting for it; None at the end of the stream."""
    start = stream.read(_LENGTHS.size)
    if not start:
        return None
    head, body = _lengths(start)
    return _header(stream.read(head)), stream.read(body)


async def receive_frame(stream: asyncio.StreamReader) -> tuple[Header, bytes]:
    """The next frame, waiting for it; StreamEnded at the end of the stream."""
    try:
        head, body = _lengths(await stream.readexactly(_LENGTHS.size))
        return _header(await stream.readexactly(head)), await stream.readexactly(body)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise StreamEnded("the stream ended") from error


def _lengths(start: bytes) -> tuple[int, int]:
    if len(start) != _LENGTHS.size:
        raise StreamEnded("the stream ended within a frame")
    head, body = _LENGTHS.unpack(start)
    if head + body > _LARGEST:
        raise FrameBroken(f"a frame of {head + body} bytes is over {_LARGEST}")
    return head, body


def _header(data: bytes) -> Header:
    try:
        header = json.loads(data)
    except ValueError as error:
        raise FrameBroken("the header is no JSON") from error
    if not isinstance(header, dict):
        raise FrameBroken("the header is no object")
    return header
