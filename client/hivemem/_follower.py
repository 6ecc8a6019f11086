"""Following the log from a script: a subscription for callers without asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, TypeVar

from hivemem import _convert
from hivemem._client import Client

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from types import TracebackType
    from typing import Any, Self, Unpack

    from hivemem._channel import ChannelCredentials
    from hivemem._client import Subscribing
    from hivemem._models import Episode, LogRecord
    from hivemem._subscription import Subscription
    from hivemem.v1.types_pb2 import LogRecord as LogRecordMessage

Value = TypeVar("Value")

# For what is left to do after the connection was closed, which takes milliseconds.
_LAST_SECONDS = 2.0


def follow(
    address: str | None = None,
    *,
    namespace: str = "default",
    session: str | None = None,
    timeout: float | None = None,
    credentials: ChannelCredentials | None = None,
    **choices: Unpack[Subscribing],
) -> Follower:
    """Follows the log from a script, without asyncio: what is there, then what comes.

        for episode in hivemem.follow("localhost:7400", session="pricing-study", timeout=60):
            print(episode.agent_id, episode.summary)

    `timeout` bounds the wait for each episode, in seconds: TimeoutError when it is over, also if the server cannot
    be reached. Without one the loop waits as long as it takes. `until_caught_up=True` ends it, as a list ends, once
    everything that was there has been given out. The other words are those of `Client.subscribe`.
    """
    _check_thread()
    if timeout is not None and timeout <= 0:
        raise ValueError(f"timeout takes seconds above 0, or None for no bound, not {timeout!r}")
    if session is not None:
        choices["sessions"] = [session]
    client = Client(address, namespace=namespace, credentials=credentials)
    return Follower(client, client.subscribe(**choices), timeout)


class Follower:
    """Episodes as they come, in log order: an iterator, and a context manager that ends it. Made by `follow`.

        with hivemem.follow("localhost:7400", durable="printer") as episodes:
            for episode in episodes: …

    It keeps the promises of `Subscription`: nothing is lost or repeated, whatever becomes of the connection; it reads
    as fast as it is iterated over and holds one batch. After a TimeoutError you may go on with it. Ctrl-C ends it at
    once with KeyboardInterrupt.

    It has a connection of its own and no thread: everything happens while the next episode is asked for. Threads may
    share one, each gets other episodes. It lets go of everything when it ends, when it is closed, and when nothing
    refers to it any more; leaving the loop with `break` keeps it open for whoever goes on with it.

    A durable one commits as a `Subscription` does, so use `with`: what was given out when that is left without an
    exception is finished with.
    """

    def __init__(self, client: Client, subscription: Subscription, timeout: float | None) -> None:
        self._subscription = subscription
        self._timeout = timeout
        # The loop is nobody's but ours: a policy's current loop stays what it is.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._turn = threading.Lock()
        self._waiting: asyncio.Task[Any] | None = None
        self._closed = False
        self._entered = False
        self._release = weakref.finalize(self, _release, self._runner, client)

    @property
    def position(self) -> int:
        """Everything that matches up to this position has been given out and finished with; 0: not known yet."""
        return self._subscription.position

    @property
    def cursor(self) -> bytes | None:
        """Resumes a later one, as `Subscription.cursor` does; None: not known yet."""
        return self._subscription.cursor

    @property
    def score(self) -> float | None:
        """How close the record given out last is to `relevant_to`, 0 to 1; None without one."""
        return self._subscription.score

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Episode:
        while (record := self._next()) is not None:
            if record.HasField("episode"):
                return _convert.episode(record.episode)
        raise StopIteration

    def records(self) -> Iterator[LogRecord]:
        """Iterates over the same by log records, of all the kinds that it asks for."""
        while (message := self._next()) is not None:
            if (record := _convert.log_record(message)) is not None:
                yield record

    def close(self) -> None:
        """Ends it, and lets go of everything: at once, or inside of `with` when that is left.

        Threads and signal handlers may call it; an iteration under way ends normally.
        """
        self._closed = True
        if self._turn.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._turn.release()
        else:  # whoever has the turn lets go
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                self._loop.call_soon_threadsafe(self._interrupt)

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered = False
        with self._turn:
            try:
                if self._release.alive:
                    self._run(self._subscription.__aexit__(kind, error, traceback))
            finally:
                self._end()

    def _next(self) -> LogRecordMessage | None:
        """The next record, None at the end."""
        with self._turn:
            try:
                record = self._take()
            except TimeoutError:
                raise
            except BaseException:
                self._end()
                raise
            if record is None or self._closed:
                self._end()
            return record

    def _take(self) -> LogRecordMessage | None:
        if self._closed:
            return None
        if (record := self._subscription._held()) is not None:  # the hot path: no loop has to turn for it
            return record
        try:
            return self._run(self._wait())
        except TimeoutError:
            raise TimeoutError(self._lateness()) from None
        except asyncio.CancelledError:  # it was closed meanwhile
            return None
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # without the tale of how the loop ended

    async def _wait(self) -> LogRecordMessage | None:
        self._waiting = asyncio.current_task()
        if self._closed:
            return None
        async with asyncio.timeout(self._timeout):
            return await self._subscription._next()

    def _interrupt(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def _lateness(self) -> str:
        trouble = self._subscription._trouble
        return f"no episode within {self._timeout:g} s" + (f": {trouble}" if trouble else "")

    def _end(self) -> None:
        self._closed = True
        if not self._entered:
            self._release()

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        try:
            _check_thread()
            return self._runner.run(work)
        finally:
            work.close()  # Ctrl-C may come before it begins


def _release(runner: asyncio.Runner, client: Client) -> None:
    """Ends the call, the connection and the loop; from another thread if a loop runs in this one, as it may when a
    follower is collected.
    """
    if _has_running_loop():
        thread = threading.Thread(target=_release, args=(runner, client), name="hivemem closing")
        thread.start()
        thread.join()
        return
    with runner:
        runner.run(_close(client))


async def _close(client: Client) -> None:
    await client.aclose()
    # gRPC has tasks of its own, which end when its core has told them to. To a loop that is closed by then it would
    # speak in vain, and complain in the next one.
    if rest := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(rest, timeout=_LAST_SECONDS)


def _check_thread() -> None:
    if _has_running_loop():
        raise RuntimeError(
            "follow() would block the event loop that runs in this thread: use"
            " `async for episode in memory.subscribe()`, or another thread"
        )


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
