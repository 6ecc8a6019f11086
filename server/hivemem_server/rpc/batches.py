"""Batches on the wire: each record is encoded once, each message is joined from such pieces, for all who are sent it.

A protobuf message may be written piece by piece: messages of one type, one after the other, are read as one message
that has the lists of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hivemem.v1 import episode_service_pb2 as pb

from hivemem_server.domain.values import LogRecord, Namespace, Point
from hivemem_server.log.cursors import encode_cursor
from hivemem_server.log.events import Batch
from hivemem_server.log.records import Encoded
from hivemem_server.rpc import convert

_Batch = pb.SubscribeEpisodesResponse.Batch

# A reader that stalls holds one message, here and in gRPC; larger ones are hardly faster.
MESSAGE_BYTES = 256 * 1024

# The head of the field `batch` in SubscribeEpisodesResponse: its number, and that a length follows.
_FIELD = bytes([pb.SubscribeEpisodesResponse.BATCH_FIELD_NUMBER << 3 | 2])


def encoded(record: LogRecord) -> bytes:
    """A batch of this one record, without a cursor."""
    return _Batch(records=[convert.record(record)]).SerializeToString()


def messages(namespace: Namespace, batch: Batch) -> list[bytes]:
    """The batch as messages of bounded size, each with the cursor after its last record."""
    if not batch.messages:
        batch.messages.extend(_made(namespace, batch))
    return batch.messages


def _made(namespace: Namespace, batch: Batch) -> Iterator[bytes]:
    for records in _split(batch.records):
        last = records[-1].record
        at_end = last is batch.records[-1].record
        point = batch.point if at_end else Point(position=last.position, record_id=last.record_id)
        tail = _Batch(cursor=encode_cursor(namespace, point), position=point.position).SerializeToString()
        body = b"".join([*(one.data for one in records), tail])
        yield b"".join([_FIELD, _length(len(body)), body])


def _split(records: Sequence[Encoded]) -> Iterator[Sequence[Encoded]]:
    first = size = 0
    for index, one in enumerate(records):
        size += len(one.data)
        if size > MESSAGE_BYTES and index > first:
            yield records[first:index]
            first, size = index, len(one.data)
    yield records[first:]


def _length(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first, the top bit where more follow."""
    low = bytearray()
    while number > 0x7F:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    low.append(number)
    return bytes(low)
