"""Following the log: an iterator that finds its way back after every lost stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from hivemem import _convert
from hivemem._backoff import Backoff
from hivemem._durable import DurableCursor
from hivemem._errors import Closed, EmbedderUnavailable, HivememError, SlowConsumer, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import TracebackType
    from typing import Self

    from hivemem._channel import Connection, Stream
    from hivemem._models import Episode, LogRecord
    from hivemem.v1.episode_service_pb2 import SubscribeEpisodesRequest, SubscribeEpisodesResponse
    from hivemem.v1.types_pb2 import LogRecord as LogRecordMessage

_logger = logging.getLogger("hivemem")

# A stream that sends nothing for this many heartbeat intervals is dead.
_MISSED_HEARTBEATS = 3


class Subscription:
    """Episodes as they come, in log order: an async iterator, and an async context manager that ends it.

        async with session.subscribe(after=cursor) as stream:
            async for episode in stream: …

    It ends when it is closed, or with an error that trying again does not mend. A server that goes away, a
    lost connection or a stream that falls silent is none: it connects again, for as long as it takes, and
    goes on without loss or repeat. It reads as fast as it is iterated over and holds one batch; take as much
    time as you like for an episode. `asyncio.timeout` around it is fine: iterate again, and nothing is lost.

    With `until_caught_up` it ends, as a list ends, once everything that was there has been given out.

    One task at a time may iterate over it. Leaving the loop with `break` keeps it open for more; it ends when
    it is closed, when its client is closed, or when nothing refers to it any more.

    A durable one commits its cursor under its name before it begins, whenever the next episode is asked for after
    the last one of a batch, and when `async with` is left without an exception, which says that what was given out
    is finished with. So after a crash each episode comes at least once, and those of the last batch may come again.
    """

    def __init__(
        self,
        connection: Connection,
        request: SubscribeEpisodesRequest,
        *,
        durable: str | None = None,
        until_caught_up: bool = False,
    ) -> None:
        self._connection = connection
        self._durable = DurableCursor(connection, request.namespace, durable) if durable is not None else None
        self._due = False  # a batch was taken since the last commit
        self._until_caught_up = until_caught_up
        self._complete = False  # it ended because it had caught up
        self._request = request
        self._stream: Stream[SubscribeEpisodesResponse] | None = None
        self._started = False  # a server has taken it on, at least once
        self._fruitful = False  # this stream has brought news
        self._trouble = ""  # why there is no stream
        self._backoff = Backoff()
        self._next_try = 0.0  # on the clock of the event loop
        self._batch: Iterator[LogRecordMessage] = iter(())
        self._batch_cursor: bytes | None = None
        self._cursor: bytes | None = None
        self._given = 0
        self._position = 0
        self._score: float | None = None
        self._caught_up = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def position(self) -> int:
        """Everything that matches up to this position has been given out and finished with.

        An episode counts as finished with when the next one is asked for. 0: not known yet.
        """
        return self._position

    @property
    def cursor(self) -> bytes | None:
        """Resumes a later subscription, also one with another filter, here or in another process.

        It never points past an episode that is not finished with, so that nothing is lost. It moves by whole
        batches: who starts from it may be given again some of the last one, up to `position`.
        None: not known yet.
        """
        return self._cursor

    @property
    def score(self) -> float | None:
        """How close the record given out last is to `relevant_to`, 0 to 1; None without one."""
        return self._score

    @property
    def caught_up(self) -> bool:
        """Whether everything that was there has been given out, and what follows is live."""
        return self._caught_up.is_set() and not self._ended.is_set()

    async def wait_caught_up(self) -> None:
        """Waits until the subscription has caught up, while another task iterates over it.

        Raises Closed if it ends before that.
        """
        await self._caught_up.wait()
        if self._ended.is_set() and not self._complete:
            raise Closed("this subscription has ended")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._durable is not None:
                await self._commit_at_exit(self._durable)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Ends the subscription at once; an iteration under way, also in another task, ends normally."""
        self._end()
        if self._stream is not None:
            await self._stream.aclose()

    def _end(self) -> None:
        self._ended.set()
        self._caught_up.set()

    def _fail(self) -> None:
        """Ends it because of an error; nothing is committed any more."""
        self._durable = None
        self._end()

    def __del__(self) -> None:
        # Whoever leaves an `async for` with `break` and forgets the subscription leaves no call behind.
        if self._stream is not None:
            self._stream.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Episode:
        while (record := await self._next()) is not None:
            if record.HasField("episode"):
                return _convert.episode(record.episode)
        raise StopAsyncIteration

    async def records(self) -> AsyncIterator[LogRecord]:
        """Iterates over the same subscription by log records, of all the kinds that it asks for."""
        while (message := await self._next()) is not None:
            if (record := _convert.log_record(message)) is not None:
                yield record

    async def _next(self) -> LogRecordMessage | None:
        """The next record, None at the end. Whoever asks for it has finished with the one before."""
        while (record := self._held()) is None and not self._ended.is_set():
            self._cursor = self._batch_cursor
            if self._durable is not None and (self._due or self._durable.stored is None):
                await self._commit(self._durable)
            if (message := await self._message()) is not None:
                self._take(message)
        return record

    def _held(self) -> LogRecordMessage | None:
        """The next record of the batch at hand, None if there is none left. It asks nobody, as `_next` may."""
        self._position = max(self._position, self._given)
        if self._ended.is_set():
            return None
        for record in self._batch:
            if record.position > self._given:
                self._given = record.position
                self._score = record.score if record.HasField("score") else None
                return record
        return None

    async def _message(self) -> SubscribeEpisodesResponse | None:
        """The next message, from as many streams as it takes; None at the end."""
        if self._until_caught_up and self._caught_up.is_set():
            self._complete = True
            self._end()
        while not self._ended.is_set():
            try:
                if (message := await self._read()) is not None:
                    return message
            except Closed:
                break
            except HivememError as error:
                if not self._is_passing(error):
                    self._fail()
                    raise
                self._lose_stream(str(error), error.retry_delay)
            else:
                self._lose_stream("the server ended the stream", None)
        self._end()
        return None

    def _is_passing(self, error: HivememError) -> bool:
        """Whether trying again may mend it. A server without an embedder at the start is a mistake, later an outage."""
        if isinstance(error, EmbedderUnavailable):
            return self._started
        return isinstance(error, (Unavailable, SlowConsumer))

    async def _read(self) -> SubscribeEpisodesResponse | None:
        if self._stream is None:
            await self._rest()
            if self._durable is not None and not self._durable.recalled:
                await self._recall(self._durable)
            self._stream = self._connection.subscribe(self._request)
            self._fruitful = False
        return await self._stream.read()

    async def _recall(self, durable: DurableCursor) -> None:
        """Goes on where the last reader of the name stopped, if there was one."""
        if (cursor := await durable.recall()) is not None:
            self._request.start.cursor = cursor

    async def _commit(self, durable: DurableCursor) -> None:
        """Commits the cursor. If the server is away, the next commit makes up for it."""
        if self._cursor is None or self._cursor == durable.stored:
            return
        try:
            await durable.commit(self._cursor)
        except (Unavailable, Closed) as error:
            _logger.info("the cursor is not committed yet: %s", error)
        except HivememError:
            self._fail()
            raise
        else:
            self._due = False

    async def _commit_at_exit(self, durable: DurableCursor) -> None:
        """Takes all that was given out as finished with; a batch that was only given out in part comes again."""
        if all(record.position <= self._given for record in self._batch):
            self._cursor = self._batch_cursor
        await self._commit(durable)

    async def _rest(self) -> None:
        """Sleeps between two streams, unless the subscription is closed meanwhile.

        Whoever cancels it again and again, with a short timeout, does not put the next try off.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._next_try):
                await self._ended.wait()
        if self._ended.is_set():
            raise Closed("this subscription is closed")

    def _lose_stream(self, reason: str, retry_delay: float | None, *, at_once: bool = False) -> None:
        """Lets go of the stream; the next one goes on where it stopped."""
        if self._stream is not None:
            self._stream.cancel()
        self._stream = None
        self._caught_up.clear()
        self._trouble = reason
        pause = 0.0 if at_once else self._backoff.next(retry_delay)
        self._next_try = asyncio.get_running_loop().time() + pause
        if self._cursor is not None:
            self._request.start.cursor = self._cursor
        _logger.info("subscription connects again in %.1f s: %s", pause, reason)

    def _take(self, message: SubscribeEpisodesResponse) -> None:
        """Takes note of a message. When it is read, all records before it are finished with."""
        kind = message.WhichOneof("event")
        if kind == "batch":
            self._batch = iter(message.batch.records)
            self._batch_cursor = message.batch.cursor
            self._due = True
        elif kind is not None:
            self._note_progress(getattr(message, kind))
        if kind == "started":
            self._note_start(message.started)
        elif kind == "caught_up":
            self._caught_up.set()
        elif kind == "fell_behind":
            self._caught_up.clear()
        elif kind == "going_away":
            self._move_on(message.going_away)
        if kind not in ("started", "going_away"):
            self._fruitful = True
            self._backoff.reset()

    def _note_progress(self, message: Any) -> None:
        self._cursor = self._batch_cursor = message.cursor
        self._position = max(self._position, message.position)

    def _note_start(self, started: SubscribeEpisodesResponse.Started) -> None:
        self._started = True
        self._trouble = ""
        if self._stream is not None:
            heartbeat = _convert.duration(started.heartbeat_interval).total_seconds()
            self._stream.silence = heartbeat * _MISSED_HEARTBEATS

    def _move_on(self, going_away: SubscribeEpisodesResponse.GoingAway) -> None:
        """Goes to the next server when this one says, which may be at once; but not in a circle without a pause."""
        delay = _convert.duration(going_away.retry_delay).total_seconds()
        self._lose_stream("the server is going away", delay, at_once=self._fruitful and not delay)
