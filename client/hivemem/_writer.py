"""Appending without waiting for each answer: many appends on one stream, sent again when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hivemem import _convert
from hivemem._backoff import Backoff
from hivemem._errors import Closed, DeadlineExceeded, HivememError, InternalError, SlowConsumer, TooLarge, Unavailable
from hivemem._models import NewEpisode
from hivemem.v1 import episode_service_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self, TypeAlias, Unpack

    from hivemem import _models
    from hivemem._channel import Connection, Stream

    Request: TypeAlias = messages.AppendEpisodeStreamRequest
    Response: TypeAlias = messages.AppendEpisodeStreamResponse

Value = TypeVar("Value")

_logger = logging.getLogger("hivemem")

# The contract's bound for a message, less what goes around an append. A larger one would end the whole stream.
_APPEND_BYTES = (8 << 20) - 64
# How long the server may take to say goodbye when everything has been answered.
_GOODBYE_SECONDS = 0.5


class PendingAppend(Generic[Value]):
    """An append that a writer has taken. Awaiting it says where it was stored, or raises why it was refused.

    It may be awaited by several tasks, more than once, or not at all. Cancelling one that waits changes nothing.
    """

    def __init__(self, episode_ids: Sequence[str], read: Callable[[messages.AppendEpisodesResponse], Value]) -> None:
        # The ids under which the episodes are stored, or will be.
        self.episode_ids = tuple(episode_ids)
        self._read = read
        self._outcome: asyncio.Future[messages.AppendEpisodesResponse] = asyncio.get_running_loop().create_future()
        self._looked_at = False

    def __await__(self) -> Generator[Any, None, Value]:
        return self._wait().__await__()

    def __repr__(self) -> str:
        return f"<hivemem.PendingAppend of {', '.join(self.episode_ids[:3])} {'done' if self.done() else 'pending'}>"

    def done(self) -> bool:
        """Whether it has been answered."""
        return self._outcome.done()

    async def _wait(self) -> Value:
        await asyncio.wait({self._outcome})
        self._looked_at = True
        return self._read(self._outcome.result())

    def _refuse(self, error: Exception) -> None:
        self._outcome.set_exception(error)
        self._outcome.exception()  # whoever does not await it hears of it from the writer


class Writer:
    """Appends to one stream without waiting for each: an async context manager. Made by `Agent.writer`.

        async with session.agent("a").writer() as writer:
            for finding in findings:
                await writer.append(summary=finding)

    Appends are stored in the order in which they are taken, each whole or not at all. A refused one does not keep
    those after it from being stored. `await writer.append(…)` waits for room only and returns a PendingAppend, to be
    awaited by who wants to know where it was stored.

    Leaving the block waits until everything is durable, and raises the first refusal that nobody has looked at.
    Leaving it with an exception, or being cancelled, drops at once what was not answered: some of it may have been
    stored, in order and without holes but for refusals.

    When the server goes away or the connection is lost, it connects again and sends what was not answered once more;
    nothing is stored twice. When nothing at all has been answered for `timeout` seconds, everything that waits fails
    with the last error; whether it was stored is not known then. The writer goes on with what comes after.

    Several tasks may append; their appends are taken in the order of the calls.
    """

    def __init__(
        self,
        connection: Connection,
        opening: messages.AppendEpisodeStreamRequest.Open,
        *,
        max_pending: int,
        max_pending_bytes: int,
        timeout: float | None,
    ) -> None:
        self._connection = connection
        self._opening = messages.AppendEpisodeStreamRequest(open=opening)
        self._timeout = connection.timeout if timeout is None else timeout
        self._window = _Window(max_pending, max_pending_bytes)
        self._refusals = _Refusals()
        self._sequence = 0
        self._backoff = Backoff(longest=2.0)
        self._work = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._stream: Stream[Response] | None = None
        self._outbox: asyncio.Queue[Request | None] | None = None
        self._answered_at = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._last_error: HivememError | None = None
        self._ended_because: Exception = Closed("this writer was closed before the answer came")

    @property
    def pending(self) -> int:
        """Appends that are not answered yet."""
        return len(self._window)

    async def append(
        self,
        *,
        expect: _models.Expectation | None = None,
        conditions: Iterable[_models.AppendCondition] = (),
        **fields: Unpack[_models.EpisodeFields],
    ) -> PendingAppend[_models.Appended]:
        """Takes one episode, as soon as there is room. The parameters are those of `Agent.append`.

        When as many appends as may be pending were refused and nobody has looked, it raises as `flush` does.
        """
        given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        return await self._take([NewEpisode(**given)], expect, conditions, _only)

    async def append_all(
        self,
        episodes: Iterable[NewEpisode],
        *,
        expect: _models.Expectation | None = None,
        conditions: Iterable[_models.AppendCondition] = (),
    ) -> PendingAppend[tuple[_models.Appended, ...]]:
        """Takes 1 to 500 episodes that are stored all or none, as soon as there is room; otherwise as `append`."""
        return await self._take(list(episodes), expect, conditions, _convert.appended)

    async def flush(self) -> None:
        """Waits until everything before it is durable or refused.

        Raises the first refusal that nobody has looked at, with a note that says how many more there were. They count
        as looked at from then on.
        """
        await self._window.answered()
        self._refusals.raise_first()

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise Closed("a writer serves for one `async with`: make another one")
        self._task = asyncio.create_task(self._run(), name="hivemem writer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self._close()

    # ---- taking --------------------------------------------------------------------------------------------

    async def _take(
        self,
        episodes: Sequence[NewEpisode],
        expect: _models.Expectation | None,
        conditions: Iterable[_models.AppendCondition],
        read: Callable[[messages.AppendEpisodesResponse], Value],
    ) -> PendingAppend[Value]:
        append = messages.AppendEpisodeStreamRequest.Append(
            expectation=_convert.expectation_message(expect),
            conditions=map(_convert.condition_message, conditions),
            episodes=map(_convert.new_episode_message, episodes),
        )
        pending = PendingAppend([episode.episode_id for episode in episodes], read)
        size = append.ByteSize()
        self._check_open()
        async with self._window.room(size):
            self._check_open()
            if self._refusals.unseen() >= self._window.most:
                self._refusals.raise_first()
            self._put(append, pending, size)
        return pending

    def _put(self, append: messages.AppendEpisodeStreamRequest.Append, pending: PendingAppend[Any], size: int) -> None:
        if size > _APPEND_BYTES:
            self._refuse(pending, TooLarge(f"an append of {size} bytes will never pass: send fewer episodes in one"))
            return
        self._sequence += 1
        append.sequence = self._sequence
        request = messages.AppendEpisodeStreamRequest(append=append)
        if not self._window:
            self._answered_at = asyncio.get_running_loop().time()
        self._window.put(self._sequence, _Item(request, pending, size))
        if self._outbox is not None:
            self._outbox.put_nowait(request)
        self._work.set()
        self._watch()

    def _check_open(self) -> None:
        if self._closed or self._task is None:
            raise Closed("this writer is not open: use it inside of `async with`")
        if self._task.done():
            raise Closed(f"this writer has ended: {self._ended_because}") from self._ended_because

    # ---- sending and answering -----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Sends, and takes answers, on one stream after the other until the writer is closed."""
        try:
            while await self._has_work():
                await self._rest()
                try:
                    await self._converse()
                except HivememError as error:
                    self._note_loss(error)
        except Exception as error:  # whatever it is, nobody may be left waiting
            self._ended_because = error
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            self._refuse_all(self._ended_because)

    async def _has_work(self) -> bool:
        """Waits until there is something to be answered; false when the writer is closed."""
        while not self._window and not self._closed:
            self._work.clear()
            await self._work.wait()
        return not self._closed

    async def _converse(self) -> None:
        """Sends everything on a new stream, and goes on until the writer is closed; raises what ends the stream."""
        outbox: asyncio.Queue[Request | None] = asyncio.Queue()  # holds no more than the window
        for request in (self._opening, *self._window.requests()):
            outbox.put_nowait(request)
        stream = self._connection.append(_taken_from(outbox))
        stream.silence = min(self._timeout / 2, self._connection.timeout)
        self._stream, self._outbox = stream, outbox
        try:
            while await self._has_work():
                self._note(await stream.receive())
            await _say_goodbye(stream, outbox)
        finally:
            self._stream = self._outbox = None
            outbox.put_nowait(None)
            await stream.aclose()

    def _note(self, response: Response | None) -> None:
        """Takes an answer; raises if it ends the stream."""
        if response is None:
            raise self._connection.unreachable("the server ended the stream")
        outcome = response.WhichOneof("outcome")
        error = _convert.failure_error(response.failure) if outcome == "failure" else None
        if isinstance(error, Unavailable):
            raise error  # not refused for good: it is sent again, and so is what came after it
        self._backoff.reset()
        self._last_error = None
        self._answered_at = asyncio.get_running_loop().time()
        item = self._window.pop(response.sequence)
        if item is None:  # it was given up
            return
        if error is not None:
            self._refuse(item.pending, error)
        else:
            item.pending._outcome.set_result(response.appended)

    async def _rest(self) -> None:
        """Sleeps between two streams; not for so long that what comes meanwhile would fail without having been sent."""
        if self._last_error is not None:
            pause = min(self._backoff.next(self._last_error.retry_delay), self._timeout / 4)
            _logger.info("writer connects again in %.1f s: %s", pause, self._last_error)
            await asyncio.sleep(pause)

    def _note_loss(self, error: HivememError) -> None:
        """Takes note of the end of a stream; raises if there can be no other one."""
        if isinstance(error, Closed):
            raise error
        self._last_error = error
        if not _will_pass(error):
            self._refuse_all(error)

    # ---- giving up -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Sees to it that what waits does not wait for ever."""
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_at(self._answered_at + self._timeout, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if not self._window:
            return
        if asyncio.get_running_loop().time() < self._answered_at + self._timeout:
            self._watch()
            return
        self._refuse_all(self._last_error or self._nothing_answered())
        if self._stream is not None:
            self._stream.give_up("what waited was given up")

    def _nothing_answered(self) -> HivememError:
        where = f"hivemem at {self._connection.address}"
        return DeadlineExceeded(f"{where} answered no append for {self._timeout:g} s: it may have been stored or not")

    def _refuse_all(self, error: Exception) -> None:
        for item in self._window.pop_all():
            self._refuse(item.pending, copy.copy(error) if isinstance(error, HivememError) else error)

    def _refuse(self, pending: PendingAppend[Any], error: Exception) -> None:
        pending._refuse(error)
        self._refusals.add(pending)

    async def _close(self) -> None:
        """Ends the stream: in good order if everything has been answered, or else at once."""
        self._closed = True
        self._work.set()
        if self._task is not None:
            if self._window:
                self._drop()
            await asyncio.wait({self._task})

    def _drop(self) -> None:
        """Ends the call that is under way, or else the pause. (Cancelling a read itself leaks memory in grpc.)"""
        assert self._task is not None
        if self._stream is not None:
            self._stream.cancel()
        else:
            self._task.cancel()


@dataclass(frozen=True, slots=True)
class _Item:
    """An append that waits for its answer."""

    request: Request
    pending: PendingAppend[Any]
    size: int


class _Window:
    """The appends that wait for their answers, by sequence number, within bounds."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most = most
        self._most_bytes = most_bytes
        self._items: dict[int, _Item] = {}
        self._bytes = 0
        self._queue = asyncio.Lock()
        self._less = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Waits for room for one more, first come, first served. What is larger than the bound goes alone."""
        async with self._queue:
            while len(self) >= self.most or (self._items and self._bytes + size > self._most_bytes):
                self._less.clear()
                await self._less.wait()
            yield

    def put(self, sequence: int, item: _Item) -> None:
        self._items[sequence] = item
        self._bytes += item.size

    def pop(self, sequence: int) -> _Item | None:
        item = self._items.pop(sequence, None)
        if item is not None:
            self._bytes -= item.size
            self._less.set()
        return item

    def pop_all(self) -> list[_Item]:
        """Takes everything out, in order."""
        return [item for sequence in list(self._items) if (item := self.pop(sequence))]

    def requests(self) -> Iterator[Request]:
        """What to send on a new stream."""
        return (item.request for item in self._items.values())

    async def answered(self) -> None:
        """Waits until everything that is there now has been answered."""
        if self._items:
            await asyncio.wait([item.pending._outcome for item in self._items.values()])


class _Refusals:
    """The refused appends that nobody has looked at, in order."""

    def __init__(self) -> None:
        self._pending: list[PendingAppend[Any]] = []

    def add(self, pending: PendingAppend[Any]) -> None:
        self._pending.append(pending)

    def unseen(self) -> int:
        """How many there are."""
        self._pending = [pending for pending in self._pending if not pending._looked_at]
        return len(self._pending)

    def raise_first(self) -> None:
        """Raises the first, if there is one, and forgets all."""
        count = self.unseen()
        refused, self._pending = self._pending, []
        if count:
            error = refused[0]._outcome.exception()
            assert error is not None
            error.add_note(f"in the append of {', '.join(refused[0].episode_ids[:3])}")
            if count > 1:
                error.add_note(f"{count - 1} more appends of this writer were refused")
            raise error


def _only(response: messages.AppendEpisodesResponse) -> _models.Appended:
    return _convert.appended(response)[0]


def _will_pass(error: HivememError) -> bool:
    """Whether another stream may fare better.

    gRPC reports a write into a connection that is being lost as INTERNAL; the server's own has an id.
    """
    if isinstance(error, InternalError):
        return not error.error_id
    return isinstance(error, Unavailable | SlowConsumer)


async def _taken_from(outbox: asyncio.Queue[Request | None]) -> AsyncIterator[Request]:
    while (request := await outbox.get()) is not None:
        yield request


async def _say_goodbye(stream: Stream[Response], outbox: asyncio.Queue[Request | None]) -> None:
    """Lets the server end the stream, which costs both less than cancelling it."""
    outbox.put_nowait(None)
    with contextlib.suppress(HivememError, TimeoutError):
        async with asyncio.timeout(_GOODBYE_SECONDS):
            while await stream.read() is not None:
                pass
