"""Heads: the database's word counts, also when a log has shrunk, and nobody asks for what nobody follows."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import cast

from hivemem_server.domain.errors import DatabaseUnavailable
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.values import Namespace, NamespaceSettings
from hivemem_server.log.heads import Heads

NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
WAIT = 10.0
AT_ONCE = 0.01


def namespace(key: int = 1) -> Namespace:
    return Namespace(
        key=key, name=f"n{key}", epoch=uuid.uuid4(), digest_key=b"", settings=NamespaceSettings(), floor=0, head=0,
        create_time=NOW, update_time=NOW,
    )  # fmt: skip


class TellingStore:
    """Answers each poll with what the test tells it next, and remembers which logs it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self._answers: asyncio.Queue[dict[int, int] | Exception] = asyncio.Queue()
        self._polled = asyncio.Condition()

    async def heads(self, namespace_keys: Sequence[int]) -> dict[int, int]:
        async with self._polled:
            self.asked.append(list(namespace_keys))
            self._polled.notify_all()
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def tell(self, answer: dict[int, int] | Exception) -> None:
        """Gives one answer, and returns when it was taken in: the next poll has begun."""
        polls = len(self.asked)
        self._answers.put_nowait(answer)
        await self.polled(polls + (2 if not polls else 1))

    async def polled(self, times: int) -> None:
        async with asyncio.timeout(WAIT), self._polled:
            await self._polled.wait_for(lambda: len(self.asked) >= times)


@contextlib.asynccontextmanager
async def polling() -> AsyncIterator[tuple[TellingStore, Heads]]:
    store = TellingStore()
    heads = Heads(cast(LogStore, store), poll_seconds=0.0)
    running = asyncio.create_task(heads.run())
    try:
        yield store, heads
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_poll_wakes_those_that_wait_for_another_replicas_append() -> None:
    followed = namespace()
    async with polling() as (store, heads):
        with heads.following(followed):
            waiting = asyncio.create_task(heads.beyond(followed, 4, WAIT))
            await store.tell({followed.key: 5})
            assert await waiting


async def test_a_log_that_was_cut_lets_its_followers_wait_again() -> None:
    followed = namespace()
    async with polling() as (store, heads):
        with heads.following(followed):
            heads.advance(followed, 10)
            assert await heads.beyond(followed, 7, WAIT)
            await store.tell({followed.key: 7})
            assert not await heads.beyond(followed, 7, AT_ONCE)
            await store.tell({followed.key: 8})
            assert await heads.beyond(followed, 7, WAIT)


async def test_a_head_that_falls_wakes_nobody() -> None:
    followed = namespace()
    async with polling() as (store, heads):
        with heads.following(followed):
            heads.advance(followed, 10)
            waiting = asyncio.create_task(heads.beyond(followed, 10, WAIT))
            await store.tell({followed.key: 7})
            assert not waiting.done()
            await store.tell({followed.key: 11})
            assert await waiting


async def test_a_commit_of_this_process_is_known_without_a_poll_and_never_moves_a_head_back() -> None:
    followed, heads = namespace(), Heads(cast(LogStore, TellingStore()), poll_seconds=0.0)
    with heads.following(followed):
        waiting = asyncio.create_task(heads.beyond(followed, 2, WAIT))
        await asyncio.sleep(0)
        heads.advance(followed, 3)
        heads.advance(followed, 1)
        assert await waiting
        assert await heads.beyond(followed, 2, WAIT)


async def test_only_logs_that_are_followed_are_asked_for() -> None:
    one, two = namespace(1), namespace(2)
    async with polling() as (store, heads):
        await asyncio.sleep(0)
        assert store.asked == []
        with heads.following(one):
            await store.polled(1)
            with heads.following(two):
                await store.tell({})
            await store.tell({})
        assert heads.follower_count == 0
        assert store.asked == [[1], [1, 2], [1]]


async def test_a_database_that_is_away_is_asked_again() -> None:
    followed = namespace()
    async with polling() as (store, heads):
        with heads.following(followed):
            waiting = asyncio.create_task(heads.beyond(followed, 0, WAIT))
            await store.tell(DatabaseUnavailable("away"))
            await store.tell({followed.key: 1})
            assert await waiting


async def test_draining_wakes_everybody_for_good() -> None:
    followed, heads = namespace(), Heads(cast(LogStore, TellingStore()), poll_seconds=0.0)
    with heads.following(followed):
        heads.advance(followed, 5)
        waiting = [asyncio.create_task(heads.beyond(followed, 5, WAIT)) for _ in range(3)]
        await asyncio.sleep(0)
        heads.drain()
        assert await asyncio.gather(*waiting) == [False] * 3
        assert not await heads.beyond(followed, 1, WAIT)
