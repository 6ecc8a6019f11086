"""Knows how far each log has come, and wakes those that wait for more.

Commits of this process are known at once. Commits of other replicas are found by asking the database for the heads of
all logs that somebody follows, in one query; nobody follows, nothing is asked. While other replicas tell of their
commits by hints, the database is asked rarely: for what hints did not tell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from hivemem_server.domain.errors import Unavailable
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.values import Namespace

HINTED_POLL_SECONDS = 2.0  # between two polls while hints come
NO_LOG = -1  # the head of a log that was deleted


@dataclass(slots=True, eq=False)
class _Head:
    epoch: UUID
    position: int = 0
    followers: int = 0
    waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def wake(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()


class Heads:
    """The heads of the logs that are followed here."""

    def __init__(self, store: LogStore, poll_seconds: float) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._heads: dict[int, _Head] = {}
        self._followed = asyncio.Event()
        self._hinted = False
        self._now = asyncio.Event()

    @property
    def follower_count(self) -> int:
        """How many follow a log here."""
        return sum(head.followers for head in self._heads.values())

    @contextlib.contextmanager
    def following(self, namespace: Namespace) -> Iterator[None]:
        """While it is open, the namespace's head is kept up to date."""
        head = self._heads.setdefault(namespace.key, _Head(namespace.epoch))
        head.followers += 1
        self._followed.set()
        try:
            yield
        finally:
            head.followers -= 1
            if not head.followers:
                del self._heads[namespace.key]

    def advance(self, namespace: Namespace, position: int) -> None:
        """Tells that the log has come to `position` at least."""
        head = self._heads.get(namespace.key)
        if head is not None and position > head.position:
            head.position = position
            head.wake()

    def position(self, namespace: Namespace) -> int:
        """How far the log is known to reach."""
        head = self._heads.get(namespace.key)
        return head.position if head is not None else 0

    def correct(self, namespace: Namespace, known: int, found: int) -> None:
        """Tells what the log's head was found to be by who knew of `known` before: hints may have told too much."""
        head = self._heads.get(namespace.key)
        if head is not None and head.position == known > found:
            head.position = found
        self.advance(namespace, found)

    def hint(self, namespace_key: int, epoch: UUID, position: int) -> None:
        """See HintedHeads."""
        head = self._heads.get(namespace_key)
        if head is not None and epoch == head.epoch and position > head.position:
            head.position = position
            head.wake()

    def rely_on_hints(self, reliable: bool) -> None:
        """See HintedHeads."""
        if reliable is not self._hinted:
            self._hinted = reliable
            self._now.set()

    async def beyond(self, namespace: Namespace, position: int, timeout: float) -> bool:
        """Waits until the log is beyond `position`: True then, False when the time is over, or sooner."""
        head = self._heads[namespace.key]
        if head.position > position:
            return True
        future = asyncio.get_running_loop().create_future()
        head.waiting.add(future)
        timer = asyncio.get_running_loop().call_later(timeout, _expire, future)
        try:
            await future
        finally:
            timer.cancel()
            head.waiting.discard(future)
        return head.position > position

    async def run(self) -> None:
        """Asks for heads for ever, while somebody follows: often, or, while hints come and tell all, rarely."""
        while True:
            if not self._heads:
                self._followed.clear()
                await self._followed.wait()
            self._now.clear()
            news = await self._ask()
            rarely = self._hinted and not news
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._poll_seconds, HINTED_POLL_SECONDS if rarely else 0.0)):
                    await self._now.wait()

    async def _ask(self) -> bool:
        """Takes the database's word; returns whether there was news, or may be."""
        asked = list(self._heads)
        try:
            found = await self._store.heads(asked)
        except Unavailable:  # the pool has logged it; the next round asks again
            return True
        return True in [self._polled(key, found.get(key, NO_LOG)) for key in asked]

    def _polled(self, key: int, position: int) -> bool:
        """Takes the database's word, also for a head that is lower than it was: the log's tail may have been cut, or
        the head have moved on while the database was asked. Returns whether it is news."""
        head = self._heads.get(key)
        if head is None or position == head.position:
            return False
        head.position = position
        head.wake()
        return True


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
