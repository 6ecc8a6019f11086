"""Page tokens: where a list goes on, bound to the request that began it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from hivemem_server.domain import limits
from hivemem_server.domain.errors import PageTokenMalformed

Key: TypeAlias = Sequence[int | str]
AnyMessage = TypeVar("AnyMessage", bound=Message)

_CHECK_BYTES = 12


def page_token(request: Message, key: Key) -> str:
    """The token for what follows `key`; empty if nothing does."""
    if not key:
        return ""
    body = json.dumps(list(key), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(body + _check(request, body)).decode()


def page_key(request: Message) -> Key:
    """The key in the request's token, empty at the beginning. Raises PageTokenMalformed."""
    token: str = request.page_token  # type: ignore[attr-defined]
    if not token:
        return ()
    try:
        data = base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if not body or check != _check(request, body):
        raise PageTokenMalformed("the page token was altered, or belongs to a request with other fields")
    key: list[int | str] = json.loads(body)
    return key


def fitting(messages: Sequence[AnyMessage], most: int = limits.PAGE_BYTES) -> list[AnyMessage]:
    """As many of the messages as have at most `most` bytes together, at least one if there is one."""
    shown: list[AnyMessage] = []
    size = 0
    for message in messages:
        size += message.ByteSize()
        if shown and size > most:
            break
        shown.append(message)
    return shown


def section(messages: Iterable[AnyMessage]) -> list[AnyMessage]:
    """The messages of a list inside an answer without pages: as many as fit, none if even the first does not."""
    shown: list[AnyMessage] = []
    left = limits.SECTION_BYTES
    for message in messages:
        left -= message.ByteSize()
        if left < 0:
            break
        shown.append(message)
    return shown


def _check(request: Message, body: bytes) -> bytes:
    """A digest over the token and the request's other fields; the page size may change between pages."""
    same = type(request)()
    same.CopyFrom(request)
    same.ClearField("page_token")
    same.ClearField("page_size")
    digest = hashlib.blake2s(digest_size=_CHECK_BYTES, person=b"page")
    digest.update(request.DESCRIPTOR.full_name.encode() + b"\0" + same.SerializeToString(deterministic=True))
    digest.update(body)
    return digest.digest()
