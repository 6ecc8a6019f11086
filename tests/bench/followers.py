"""Many followers of one server in a process that takes next to nothing for each, so that it is not what limits.

    python -m tests.bench.followers

It asks and answers in lines of JSON on stdin and stdout, and ends when stdin does. It speaks as much HTTP/2 as is
needed to call one method of a gRPC server many times and to take what comes, with windows so large that the server
never waits for one. Messages that are the same for all are parsed once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import uvloop
from hivemem.v1.episode_service_pb2 import SubscribeEpisodesResponse

from .talking import answering

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INITIAL_WINDOW_SIZE = 4
LARGEST_WINDOW, FIRST_WINDOW, REFILL = 2**31 - 1, 65_535, 2**30
# Of HPACK's static table: `:method: POST`, `:scheme: http`; names whose values follow; a name of our own.
POST_HTTP, AUTHORITY, PATH, CONTENT_TYPE, NAMED = b"\x83\x86", b"\x01", b"\x04", b"\x0f\x10", b"\x00"

Take = Callable[[int, bytes], None]


@lru_cache(maxsize=4_096)
def _seen(message: bytes) -> tuple[str | None, int]:
    response = SubscribeEpisodesResponse.FromString(message)
    return response.WhichOneof("event"), len(response.batch.records)


class Followers:
    """What each follower has received."""

    def __init__(self) -> None:
        self._records: list[int] = []
        self._live: set[int] = set()
        self._expected = self._complete = self._messages = self._bytes = 0
        self._changed = asyncio.Event()
        self._transports: list[asyncio.Transport] = []

    async def open(self, address: str, path: str, connections: int, requests: Sequence[str]) -> dict[str, Any]:
        """Begins a call for each request, and waits until all are live."""
        host, _, port = address.rpartition(":")
        self._records = [0] * len(requests)
        for first in range(connections):
            numbers = range(first, len(requests), connections)
            calls = {number: _call(address, path, requests[number]) for number in numbers}
            connect = partial(_Connection, calls, self._take)
            transport, _ = await asyncio.get_running_loop().create_connection(connect, host, int(port))
            self._transports.append(transport)
        while len(self._live) < len(requests):
            await self._change()
        return {"live": len(self._live)}

    async def expect(self, records: int) -> dict[str, Any]:
        """Waits until each follower has so many more records; tells what came since it was asked the last time."""
        self._expected += records
        begin = time.process_time()
        self._complete = sum(count >= self._expected for count in self._records)
        while self._complete < len(self._records):
            await self._change()
        assert set(self._records) == {self._expected}, "a follower has more than was sent"
        told = {"messages": self._messages, "bytes": self._bytes, "processor": time.process_time() - begin}
        self._messages = self._bytes = 0
        return told

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _take(self, number: int, message: bytes) -> None:
        event, records = _seen(message)
        self._messages += 1
        self._bytes += len(message)
        if records:
            before = self._records[number]
            self._records[number] += records
            self._complete += before < self._expected <= before + records
            if self._complete == len(self._records):
                self._changed.set()
        elif event == "caught_up":
            self._live.add(number)
            self._changed.set()


class _Connection(asyncio.Protocol):
    """One connection; calls by the number of their follower."""

    def __init__(self, calls: dict[int, tuple[bytes, bytes]], take: Take) -> None:
        self._calls = calls
        self._take = take
        self._left = b""
        self._partial: dict[int, bytes] = {}
        self._followers: dict[int, int] = {}  # by stream
        self._since_refill = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        window = INITIAL_WINDOW_SIZE.to_bytes(2) + LARGEST_WINDOW.to_bytes(4)
        more = (LARGEST_WINDOW - FIRST_WINDOW).to_bytes(4)
        opening = [PREFACE, _frame(SETTINGS, 0, 0, window), _frame(WINDOW_UPDATE, 0, 0, more)]
        for index, (number, (headers, body)) in enumerate(self._calls.items()):
            stream = 2 * index + 1
            self._followers[stream] = number
            opening += [_frame(HEADERS, END_HEADERS, stream, headers), _frame(DATA, END_STREAM, stream, body)]
        self._transport.write(b"".join(opening))

    def data_received(self, data: bytes) -> None:
        for kind, flags, stream, content in self._frames(data):
            if kind == DATA:
                self._take_data(stream, content)
            elif kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
                raise ConnectionError("the server ended a stream")
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self._transport.write(_frame(kind, ACK, 0, content if kind == PING else b""))

    def _frames(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        data, start = self._left + data, 0
        while (rest := len(data) - start) >= 9:
            end = start + 9 + int.from_bytes(data[start : start + 3])
            if end - start > rest:
                break
            yield data[start + 3], data[start + 4], int.from_bytes(data[start + 5 : start + 9]), data[start + 9 : end]
            start = end
        self._left = data[start:]

    def _take_data(self, stream: int, data: bytes) -> None:
        self._since_refill += len(data)
        if self._since_refill > REFILL:
            self._transport.write(_frame(WINDOW_UPDATE, 0, 0, self._since_refill.to_bytes(4)))
            self._since_refill = 0
        data, start = self._partial.pop(stream, b"") + data, 0
        while len(data) - start >= 5 and (end := start + 5 + int.from_bytes(data[start + 1 : start + 5])) <= len(data):
            self._take(self._followers[stream], data[start + 5 : end])
            start = end
        if start < len(data):
            self._partial[stream] = data[start:]


def _call(address: str, path: str, request: str) -> tuple[bytes, bytes]:
    """Headers and body of a call."""
    body = bytes.fromhex(request)
    headers = [
        POST_HTTP,
        *(AUTHORITY, _text(address), PATH, _text(path), CONTENT_TYPE, _text("application/grpc")),
        *(NAMED, _text("te"), _text("trailers")),
    ]
    return b"".join(headers), b"\0" + len(body).to_bytes(4) + body


def _text(text: str) -> bytes:
    assert len(text) < 127, "longer ones are written otherwise"
    return bytes([len(text)]) + text.encode("ascii")


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


async def _follow() -> None:
    followers = Followers()
    await answering({"open": followers.open, "expect": followers.expect})


if __name__ == "__main__":
    uvloop.run(_follow())
