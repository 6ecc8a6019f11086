"""AppendEpisodeStream: many appends over one call, committed in the order sent, answered in that order.

Requests are read ahead as far as PENDING_MOST appends or PENDING_BYTES wait for their commit; then the client is held
back by flow control. An append that is refused, for whatever reason, is answered in-band and those after it go on. One
whose outcome is not known ends the stream, before anything behind it is stored, so that what the client sends again
keeps its order. A server that drains reads no further, answers what it has accepted, and ends the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2

from hivemem_server.domain.errors import Draining, HivememError, InvalidField, Overloaded, Unavailable
from hivemem_server.domain.values import AppendOutcome
from hivemem_server.rpc import status
from hivemem_server.rpc.pump import Outgoing
from hivemem_server.rpc.registry import check_parsed


@dataclass(frozen=True, slots=True)
class Ready:
    """An append that is fit to be stored. `submit` puts it in line at once, behind those before it."""

    submit: Callable[[], asyncio.Future[AppendOutcome]]
    respond: Callable[[AppendOutcome], pb.AppendEpisodesResponse]


# Makes an append ready. Raises why it is refused.
Prepare: TypeAlias = Callable[[pb.AppendEpisodesRequest], Awaitable[Ready]]

PENDING_MOST = 64
PENDING_BYTES = 8 * 1024 * 1024
STALL_SECONDS = 60.0
OVERLOADED_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Pending:
    """An append that was handed on, or refused; it is answered when its turn has come."""

    sequence: int
    size: int
    submitted: _Submitted | HivememError


@dataclass(frozen=True, slots=True)
class _Submitted:
    """An append in line: its outcome, and how to answer with it."""

    outcome: asyncio.Future[AppendOutcome]
    respond: Callable[[AppendOutcome], pb.AppendEpisodesResponse]


async def append_stream(
    requests: AsyncIterator[pb.AppendEpisodeStreamRequest], prepare: Prepare, draining: asyncio.Event
) -> AsyncGenerator[Outgoing]:
    """The answers to the appends of a stream. Raises what ends it; Draining once `draining` is set."""
    stream = _Stream()
    reading = asyncio.create_task(stream.read(requests, prepare))
    reading.add_done_callback(stream.end)
    leaving = asyncio.create_task(_leave(draining, reading))
    try:
        while pending := await stream.next():
            yield Outgoing(await _response(pending), STALL_SECONDS)
            stream.answered(pending)
        _check_end(reading)
    finally:
        leaving.cancel()
        reading.cancel()


async def _leave(draining: asyncio.Event, reading: asyncio.Task[None]) -> None:
    await draining.wait()
    reading.cancel()


def _check_end(reading: asyncio.Task[None]) -> None:
    """Raises why the stream ended, if the client did not end it."""
    if reading.cancelled():
        raise Draining("the server is stopping: open the stream again and send what was not answered")
    reading.result()


class _Stream:
    """What lies between reading and answering."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[_Pending | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._count = 0
        self._bytes = 0
        self._sequence = 0
        self._last: asyncio.Future[AppendOutcome] | None = None

    async def read(self, requests: AsyncIterator[pb.AppendEpisodeStreamRequest], prepare: Prepare) -> None:
        """Hands appends on until the client has sent its last one, or something ends the stream."""
        opened = await _opened(requests)
        async for request in requests:
            await self._hand_on(prepare, opened, request)
            await self._wait_for_room()

    def end(self, _: object) -> None:
        """Tells that no more will come."""
        self._queue.put_nowait(None)

    async def next(self) -> _Pending | None:
        """The append to be answered next; None when there will be none."""
        return await self._queue.get()

    def answered(self, pending: _Pending) -> None:
        """Makes room for another append."""
        self._count -= 1
        self._bytes -= pending.size
        self._room.set()

    async def _hand_on(
        self, prepare: Prepare, opened: pb.AppendEpisodeStreamRequest.Open, request: pb.AppendEpisodeStreamRequest
    ) -> None:
        check_parsed(request)
        if request.WhichOneof("part") != "append":
            raise InvalidField.at("part", "only the first message opens the stream, the others append")
        append = request.append
        if append.sequence <= self._sequence:
            raise InvalidField.at("append.sequence", f"is {append.sequence}, must grow from message to message")
        self._sequence = append.sequence
        submitted = await self._submitted(prepare, _unary_request(opened, append))
        pending = _Pending(append.sequence, append.ByteSize(), submitted)
        self._queue.put_nowait(pending)
        self._count += 1
        self._bytes += pending.size

    async def _submitted(self, prepare: Prepare, request: pb.AppendEpisodesRequest) -> _Submitted | HivememError:
        try:
            ready = await prepare(request)
        except Unavailable:
            raise
        except HivememError as refused:
            return refused
        return _Submitted(await self._in_line(ready), ready.respond)

    async def _in_line(self, ready: Ready) -> asyncio.Future[AppendOutcome]:
        while True:
            if self._last is not None and self._last.done() and isinstance(self._last.exception(), Unavailable):
                self._last.result()  # the outcome of an earlier one is not known: nothing may be stored behind it
            try:
                self._last = ready.submit()
            except Overloaded:
                await asyncio.sleep(OVERLOADED_SECONDS)
            else:
                return self._last

    async def _wait_for_room(self) -> None:
        while self._count >= PENDING_MOST or self._bytes >= PENDING_BYTES:
            self._room.clear()
            await self._room.wait()


async def _opened(requests: AsyncIterator[pb.AppendEpisodeStreamRequest]) -> pb.AppendEpisodeStreamRequest.Open:
    first = await anext(requests, None)
    check_parsed(first)
    if first is None or first.WhichOneof("part") != "open":
        raise InvalidField.at("part", "the first message of the stream must be `open`")
    return first.open


def _unary_request(
    opened: pb.AppendEpisodeStreamRequest.Open, append: pb.AppendEpisodeStreamRequest.Append
) -> pb.AppendEpisodesRequest:
    return pb.AppendEpisodesRequest(
        namespace=opened.namespace,
        session_id=opened.session_id,
        agent_id=opened.agent_id,
        writer_fence=opened.writer_fence,
        expectation=append.expectation,
        conditions=append.conditions,
        episodes=append.episodes,
    )


async def _response(pending: _Pending) -> pb.AppendEpisodeStreamResponse:
    """The answer; raises for an append whose outcome is not known."""
    try:
        if isinstance(pending.submitted, HivememError):
            raise pending.submitted
        appended = pending.submitted.respond(await pending.submitted.outcome)
    except Unavailable:
        raise
    except Exception as error:
        refused = status.known(error, "AppendEpisodeStream")
        return pb.AppendEpisodeStreamResponse(sequence=pending.sequence, failure=_failure(refused))
    return pb.AppendEpisodeStreamResponse(sequence=pending.sequence, appended=appended)


def _failure(error: HivememError) -> types_pb2.Failure:
    failure = types_pb2.Failure(
        reason=status.reason_number(error), message=status.message(error), metadata=error.metadata
    )
    if isinstance(error, InvalidField):
        for violation in error.violations:
            failure.violations.add(field=violation.field, description=violation.description)
    return failure
