"""Heads: the database's word counts, also when a log has shrunk, and nobody asks for what nobody follows."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest
from hivemem_server.domain.errors import DatabaseUnavailable
from hivemem_server.domain.ports import LogStore
from hivemem_server.domain.values import Namespace, NamespaceSettings
from hivemem_server.log import heads as module
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
        self.give(answer)
        await self.polled(polls + (2 if not polls else 1))

    def give(self, answer: dict[int, int] | Exception) -> None:
        """Gives one answer."""
        self._answers.put_nowait(answer)

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


async def test_a_head_that_hints_told_too_high_is_corrected_by_who_has_read_the_log() -> None:
    followed, heads = namespace(), Heads(cast(LogStore, TellingStore()), poll_seconds=0.0)
    with heads.following(followed):
        heads.hint(followed.key, followed.epoch, 9)
        heads.correct(followed, known=9, found=5)
        assert heads.position(followed) == 5
        heads.hint(followed.key, followed.epoch, 9)
        heads.advance(followed, 10)  # while the log was read
        heads.correct(followed, known=9, found=7)
        assert heads.position(followed) == 10


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """While hints come, so rarely is the database asked."""
    monkeypatch.setattr(module, "HINTED_POLL_SECONDS", 3_600.0)


async def settled() -> None:
    """Returns when a poll that does not wait for anything has come about."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("never")
async def test_while_hints_come_the_database_is_asked_once_and_again_when_they_stop() -> None:
    followed = namespace()
    async with polling() as (store, heads):
        heads.rely_on_hints(True)
        with heads.following(followed):
            heads.hint(followed.key, followed.epoch, 1)
            await store.polled(1)
            store.give({followed.key: 1})
            await settled()
            assert len(store.asked) == 1
            heads.rely_on_hints(True)
            await settled()
            assert len(store.asked) == 1
            heads.rely_on_hints(False)
            await store.polled(2)
            await store.tell({})
            await store.tell({})


@pytest.mark.usefixtures("never")
async def test_what_hints_did_not_tell_before_they_came_is_asked_for_at_once() -> None:
    followed = namespace()
    async with polling() as (store, heads):
        with heads.following(followed):
            await store.polled(1)
            heads.rely_on_hints(True)  # while the database is asked
            store.give({})
            await store.polled(2)
            waiting = asyncio.create_task(heads.beyond(followed, 0, WAIT))
            store.give({followed.key: 1})
            assert await waiting


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("news", [{1: 5}, {1: 3}, DatabaseUnavailable("away")])
async def test_a_poll_that_finds_what_no_hint_told_is_soon_followed_by_another(
    news: dict[int, int] | Exception,
) -> None:
    followed = namespace()
    async with polling() as (store, heads):
        heads.rely_on_hints(True)
        with heads.following(followed):
            heads.hint(followed.key, followed.epoch, 4)
            await store.polled(1)
            store.give(news)
            await store.polled(2)


async def test_a_hint_wakes_who_follows_the_log_in_its_epoch_only() -> None:
    followed, other, heads = namespace(1), namespace(1), Heads(cast(LogStore, TellingStore()), poll_seconds=0.0)
    heads.hint(followed.key, followed.epoch, 1)  # nobody follows
    with heads.following(followed):
        waiting = asyncio.create_task(heads.beyond(followed, 5, WAIT))
        await asyncio.sleep(0)
        heads.hint(2, followed.epoch, 9)
        heads.hint(other.key, other.epoch, 9)
        await asyncio.sleep(0)
        assert not waiting.done()
        for position in (7, 7, 6):
            heads.hint(followed.key, followed.epoch, position)
        assert await waiting
        assert await heads.beyond(followed, 6, AT_ONCE)
        assert not await heads.beyond(followed, 7, AT_ONCE)
