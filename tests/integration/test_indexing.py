"""The indexer: one replica embeds an episode, a lease ends with its holder, and a refused text blocks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from fix_stubs import Stubs, new_episode
from hivemem.v1 import admin_service_pb2
from hivemem_server.domain.embedder import EmbedderRejected, EmbedderSlot, EmbeddingModel
from hivemem_server.domain.errors import EmbedderUnavailable
from hivemem_server.domain.ports import IndexWork
from hivemem_server.embedding.indexer import Indexer
from hivemem_server.postgres.database import Database
from hivemem_server.postgres.index import PostgresIndex
from hivemem_server.postgres.namespaces import PostgresNamespaces
from hivemem_server.postgres.search import PostgresSearch

WAIT = 20.0
LEASE = dt.timedelta(hours=1)
MODEL = EmbeddingModel(name="made-up", dimension=2, digest="1")
PROGRESS = "SELECT position, holder, lease_until IS NOT NULL FROM index_progress"
VECTORS = "SELECT position FROM vectors_1 ORDER BY position"


@dataclass(slots=True)
class MadeUpEmbedder:
    """Gives every text a vector. `before` is awaited first, and may refuse."""

    before: Callable[[Sequence[str]], Any]
    texts: list[str] = field(default_factory=list)
    model: EmbeddingModel = MODEL

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts += texts
        await self.before(texts)
        return [[0.6, 0.8] for _ in texts]

    async def embed_query(self, text: str) -> list[float]:
        return (await self.embed_passages([text]))[0]

    async def aclose(self) -> None: ...


class WatchedIndex(PostgresIndex):
    """The index; `asked` is set when work was asked for."""

    asked: asyncio.Event

    async def take(self, model: EmbeddingModel, holder: uuid.UUID, lease: dt.timedelta, limit: int) -> IndexWork | None:
        work = await super().take(model, holder, lease, limit)
        self.asked.set()
        return work


@dataclass(slots=True, kw_only=True)
class Replica:
    """The index as one server has it."""

    database: Database
    search: PostgresSearch
    index: WatchedIndex
    holder: uuid.UUID

    @contextlib.asynccontextmanager
    async def indexing(self, embedder: MadeUpEmbedder) -> AsyncIterator[Indexer]:
        slot = EmbedderSlot(configured=True, embedder=embedder)
        indexer = Indexer(self.index, self.search, slot, self.holder)
        running = asyncio.create_task(indexer.run())
        try:
            yield indexer
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def take(self) -> IndexWork | None:
        return await self.index.take(MODEL, self.holder, LEASE, 64)

    async def put(self, work: IndexWork) -> None:
        await self.index.put(work, MODEL, [[0.6, 0.8] for _ in work.positions], "")

    async def reaches(self, indexer: Indexer, position: int) -> bool:
        namespace = await PostgresNamespaces(self.database).get("default")
        return await indexer.reaches(namespace, MODEL, position, WAIT)


@contextlib.asynccontextmanager
async def replica(database_url: str) -> AsyncIterator[Replica]:
    async with Database(database_url, size=4) as database:
        search = PostgresSearch(database)
        await search.register_model(MODEL)
        index = WatchedIndex(database, search)
        index.asked = asyncio.Event()
        yield Replica(database=database, search=search, index=index, holder=uuid.uuid4())


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(database_url: str, stubs: Stubs) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two replicas on one database, beside the server of the stubs, which has no embedder."""
    await stubs.session()
    async with replica(database_url) as one, replica(database_url) as two:
        yield one, two


async def work_of(replica: Replica) -> IndexWork:
    work = await replica.take()
    assert work is not None
    return work


async def run_out(replica: Replica) -> None:
    """Ends all leases, as time would."""
    await replica.database.fetch("UPDATE index_progress SET lease_until = now() - interval '1 s'")


async def test_two_replicas_embed_no_episode_twice(stubs: Stubs, replicas: tuple[Replica, Replica]) -> None:
    one, two = replicas
    await stubs.append(*(new_episode(f"number {number}") for number in range(150)))

    async def both_asked(_: Sequence[str]) -> None:
        await asyncio.wait_for(asyncio.gather(one.index.asked.wait(), two.index.asked.wait()), WAIT)

    first, second = MadeUpEmbedder(both_asked), MadeUpEmbedder(both_asked)
    async with one.indexing(first) as indexer, two.indexing(second):
        assert await one.reaches(indexer, 150)
    assert sorted(first.texts + second.texts) == sorted(f"a: number {number}" for number in range(150))
    assert await one.database.fetch(VECTORS) == [(position,) for position in range(1, 151)]


async def test_what_is_leased_is_nobody_elses_until_the_lease_runs_out(
    stubs: Stubs, replicas: tuple[Replica, Replica]
) -> None:
    one, two = replicas
    await stubs.append(*(new_episode() for _ in range(3)))
    assert (await work_of(one)).positions == [1, 2, 3]
    assert await two.take() is None
    assert (await work_of(one)).positions == [1, 2, 3]
    await run_out(one)
    assert (await work_of(two)).positions == [1, 2, 3]
    assert await one.take() is None


async def test_who_lost_the_lease_stores_nothing(stubs: Stubs, replicas: tuple[Replica, Replica]) -> None:
    one, two = replicas
    await stubs.append(*(new_episode() for _ in range(3)))
    lost = await work_of(one)
    await run_out(one)
    taken = await work_of(two)
    await one.put(lost)
    await one.index.put(lost, MODEL, [None, None, None], "refused")
    assert await one.database.fetch(PROGRESS) == [(0, two.holder, True)]
    assert await one.database.fetch(VECTORS) == []
    assert await one.database.fetch("SELECT position FROM index_set_aside") == []
    await two.put(taken)
    assert await one.database.fetch(VECTORS) == [(1,), (2,), (3,)]


async def test_who_comes_late_does_not_move_the_index_back(stubs: Stubs, replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    await stubs.append(new_episode())
    early = await work_of(one)
    await stubs.append(new_episode())
    await one.put(await work_of(one))
    await stubs.append(new_episode())
    await work_of(one)
    await one.put(early)
    assert (await one.database.fetch("SELECT position FROM index_progress")) == [(2,)]


async def test_a_lease_is_kept_while_there_is_more_and_given_back_at_the_end_of_the_log(
    stubs: Stubs, replicas: tuple[Replica, Replica]
) -> None:
    one, two = replicas
    await stubs.append(*(new_episode() for _ in range(65)))
    await one.put(await work_of(one))
    assert await one.database.fetch(PROGRESS) == [(64, one.holder, True)]
    assert await two.take() is None
    await one.put(await work_of(one))
    assert await one.database.fetch(PROGRESS) == [(65, None, False)]
    await stubs.append(new_episode())
    assert (await work_of(two)).positions == [66]


async def test_an_indexer_that_ends_gives_its_lease_back(stubs: Stubs, replicas: tuple[Replica, Replica]) -> None:
    one, two = replicas
    await stubs.append(new_episode())
    embedding = asyncio.Event()

    async def for_ever(_: Sequence[str]) -> None:
        embedding.set()
        await asyncio.Event().wait()

    async with one.indexing(MadeUpEmbedder(for_ever)):
        await asyncio.wait_for(embedding.wait(), WAIT)
        assert await two.take() is None
    assert (await work_of(two)).positions == [1]


def refusing(*words: str) -> Callable[[Sequence[str]], Any]:
    """Refuses texts that have one of the words, without saying which."""

    async def refuse(texts: Sequence[str]) -> None:
        for word in words:
            if any(word in text for text in texts):
                raise EmbedderRejected(f"{word} is not for me", texts_refused=True)

    return refuse


async def test_a_refused_text_is_set_aside_with_its_reason_and_all_others_are_indexed(
    stubs: Stubs, replicas: tuple[Replica, Replica]
) -> None:
    one, _ = replicas
    await stubs.append(*(new_episode("poison" if number == 40 else "food") for number in range(1, 71)))
    async with one.indexing(MadeUpEmbedder(refusing("poison"))) as indexer:
        assert await one.reaches(indexer, 70)
        await stubs.append(new_episode("food again"))
        indexer.wake()
        assert await one.reaches(indexer, 71)
    indexed = [position for (position,) in await one.database.fetch(VECTORS)]
    assert indexed == [position for position in range(1, 72) if position != 40]
    aside = await one.database.fetch("SELECT position, reason FROM index_set_aside")
    assert aside == [(40, "poison is not for me")]
    (index,) = (await stubs.admin.GetStats(admin_service_pb2.GetStatsRequest())).indexes
    assert (index.indexed_position, index.vector_count, index.set_aside_count) == (71, 70, 1)


async def test_texts_that_are_all_refused_block_nothing(stubs: Stubs, replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    await stubs.append(*(new_episode("poison") for _ in range(5)), new_episode("food"), new_episode("poison"))
    async with one.indexing(MadeUpEmbedder(refusing("poison"))) as indexer:
        assert await one.reaches(indexer, 7)
    assert await one.database.fetch(VECTORS) == [(6,)]


@pytest.mark.parametrize(
    "failure", [EmbedderRejected("a wrong key", texts_refused=False), EmbedderUnavailable("asleep")], ids=str
)
async def test_no_text_is_set_aside_for_what_is_not_its_fault(
    stubs: Stubs, replicas: tuple[Replica, Replica], failure: Exception
) -> None:
    one, _ = replicas
    await stubs.append(*(new_episode() for _ in range(4)))
    failures = [failure]

    async def fail_once(_: Sequence[str]) -> None:
        if failures:
            raise failures.pop()

    embedder = MadeUpEmbedder(fail_once)
    async with one.indexing(embedder) as indexer:
        assert await one.reaches(indexer, 4)
    assert len(embedder.texts) == 8
    assert await one.database.fetch(VECTORS) == [(1,), (2,), (3,), (4,)]
    assert await one.database.fetch("SELECT position FROM index_set_aside") == []
