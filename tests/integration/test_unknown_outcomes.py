"""A connection that is lost during COMMIT: the outcome is unknown, and what the client sends again tells the truth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import psycopg
import pytest
from fix_postgres import superuser
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1.admin_service_pb2 import GetStatsRequest
from psycopg.sql import SQL

WAIT = 20.0

COMMITTING = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'hivemem' AND wait_event = 'SyncRep'
"""


class Commits:
    """Commits that wait for a standby which is not there: they are durable here, and not acknowledged."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection

    async def waiting(self) -> list[int]:
        """The backends that wait, as soon as there are any."""
        async with asyncio.timeout(WAIT):
            while not (found := await (await self._connection.execute(COMMITTING)).fetchall()):
                pass
        return [pid for (pid,) in found]

    async def end(self) -> None:
        """Ends the backends that wait."""
        for pid in await self.waiting():
            await self._connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        await self._set(SQL("ALTER SYSTEM SET synchronous_standby_names = 'nobody'"))
        try:
            yield
        finally:
            await self._set(SQL("ALTER SYSTEM RESET synchronous_standby_names"))

    async def _set(self, setting: SQL) -> None:
        await self._connection.execute(setting)
        await self._connection.execute("SELECT pg_reload_conf()")


async def until_pending(stubs: Stubs, count: int) -> None:
    """Waits until so many appends wait for their commit."""
    async with asyncio.timeout(WAIT):
        while (await stubs.admin.GetStats(GetStatsRequest())).server.pending_append_count < count:
            pass


@pytest.fixture
async def commits(database_url: str) -> AsyncIterator[Commits]:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        if not await superuser(connection):
            pytest.skip("needs a database user who may change the server's settings")
        yield Commits(connection)


async def test_an_append_that_is_lost_during_its_commit_is_unavailable_and_a_resend_finds_it(
    stubs: Stubs, commits: Commits
) -> None:
    await stubs.session()
    new = [new_episode(), new_episode()]
    async with commits.held():
        lost = asyncio.create_task(stubs.append(*new))
        await commits.end()
        refused = await refusal(lost)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DATABASE_UNAVAILABLE")
    assert refused.retry_seconds is not None
    again = await stubs.append(*new)
    assert again.deduplicated
    assert [episode.position for episode in again.episodes] == [1, 2]
    assert await stubs.positions() == [1, 2]


async def test_what_waited_behind_a_commit_that_is_lost_is_not_stored_before_it_is_sent_again(
    stubs: Stubs, commits: Commits
) -> None:
    await stubs.session()
    new = [new_episode() for _ in range(6)]
    async with commits.held():
        first = asyncio.create_task(stubs.append(new[0]))
        await commits.waiting()
        behind = [asyncio.create_task(stubs.append(each)) for each in new[1:]]
        await until_pending(stubs, len(new))
        await commits.end()
        for call in (first, *behind):
            assert (await refusal(call)).reason == "DATABASE_UNAVAILABLE"
    assert await stubs.positions() == [1]
    for position, each in enumerate(new, 1):
        assert (await stubs.append(each)).episodes[0].position == position


async def test_a_caller_that_gives_up_during_the_commit_undoes_nothing_and_takes_nobody_with_it(
    stubs: Stubs, commits: Commits
) -> None:
    await stubs.session()
    new, other = new_episode(), new_episode()
    async with commits.held():
        call = asyncio.create_task(stubs.append(new))
        await commits.waiting()
        behind = asyncio.create_task(stubs.append(other))
        await until_pending(stubs, 2)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
    answer = await behind
    assert (answer.deduplicated, answer.episodes[0].position) == (False, 2)
    again = await stubs.append(new)
    assert (again.deduplicated, again.episodes[0].position) == (True, 1)
