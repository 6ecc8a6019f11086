"""What keeps one reader, one replica or one setting from harming the others."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
import psycopg
import pytest
from fix_server import address, settings
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import namespace_service_pb2 as namespaces
from hivemem.v1 import search_service_pb2 as search
from hivemem.v1 import session_service_pb2 as sessions
from hivemem.v1 import types_pb2 as types
from hivemem_server.bootstrap import running_server
from hivemem_server.domain.appends import Append, prepared
from hivemem_server.domain.errors import HivememError
from hivemem_server.domain.redactors import redactor_of
from hivemem_server.domain.values import AppendOutcome, NewEpisode
from hivemem_server.postgres import namespaces as namespaces_module
from hivemem_server.postgres.database import Database
from hivemem_server.postgres.log import PostgresLog
from hivemem_server.postgres.namespaces import PostgresNamespaces
from hivemem_server.rpc import following as following_module
from hivemem_server.rpc import registry
from hivemem_server.rpc.status import code

WAIT = 20.0
NOW = types.StartPoint(now=types.StartPoint.Now())
# A window that does not grow: what is not read stays with the server.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1_024)]


async def run(database_url: str, *statements: Any) -> None:
    """Runs statements in one transaction."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        for statement in statements:
            await connection.execute(statement)


@contextlib.asynccontextmanager
async def replica(database_url: str) -> AsyncIterator[Stubs]:
    """Stubs of one more server."""
    async with (
        running_server(settings(database_url), lambda _: None) as running,
        grpc.aio.insecure_channel(address(running)) as channel,
    ):
        yield Stubs(channel)


def subscribed(stubs: Stubs, **fields: Any) -> Any:
    request = pb.SubscribeEpisodesRequest(**fields)
    request.heartbeat_interval.FromSeconds(1)
    return stubs.episodes.SubscribeEpisodes(request, timeout=WAIT)


async def until(kind: str, call: Any) -> list[int]:
    """Reads up to the first message of a kind; returns the positions that came."""
    came: list[int] = []
    while True:
        message = await call.read()
        assert message is not grpc.aio.EOF, f"the stream ended before {kind}"
        came += [record.position for record in message.batch.records]
        if message.WhichOneof("event") == kind:
            return came


async def to_its_end(call: Any) -> None:
    """Reads until the stream ends; raises its error."""
    while await call.read() is not grpc.aio.EOF:
        pass


# Readers that stall


async def test_a_reader_that_stalls_is_ended_and_the_others_are_not_slowed(
    stubs: Stubs, server_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: asyncio.Queue[HivememError] = asyncio.Queue()
    end = registry._end

    def seen(context: Any, error: HivememError) -> None:
        given_up.put_nowait(error)
        end(context, error)

    monkeypatch.setattr(registry, "_end", seen)
    monkeypatch.setattr(following_module, "STALL_SECONDS", (0.5, 60.0, 600.0))
    await stubs.session()
    for _ in range(2):
        await stubs.append(*(new_episode("words " * 5_000) for _ in range(50)))
    async with grpc.aio.insecure_channel(server_address, options=SMALL_WINDOW) as channel:
        request = pb.SubscribeEpisodesRequest()
        request.stall_timeout.FromMilliseconds(1)
        stalled: Any = Stubs(channel).episodes.SubscribeEpisodes(request, timeout=WAIT)
        assert (await stalled.read()).started.stall_timeout.ToMilliseconds() == 500
        other = subscribed(stubs)
        assert await until("caught_up", other) == list(range(1, 101))
        await stubs.append(new_episode())
        assert await until("batch", other) == [101]
        assert code(await asyncio.wait_for(given_up.get(), WAIT)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        refused = await refusal(to_its_end(stalled))
        await stubs.append(new_episode())
        assert await until("batch", other) == [102]
        other.cancel()
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_CONSUMER")
    assert given_up.empty()


# Live readers whose log changes under them


async def test_a_live_reader_whose_place_is_cut_off_is_told_where_to_start(stubs: Stubs, database_url: str) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(10)))
    call = subscribed(stubs)
    assert await until("caught_up", call) == list(range(1, 11))
    await run(database_url, "DELETE FROM log", "UPDATE namespaces SET floor = 15")
    refused = await refusal(to_its_end(call))
    assert (refused.code, refused.reason) == (grpc.StatusCode.OUT_OF_RANGE, "CURSOR_EXPIRED")
    assert refused.metadata["first_position"] == "16"


async def test_a_live_reader_of_a_log_whose_tail_was_cut_is_told_without_news(stubs: Stubs, database_url: str) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(10)))
    call = subscribed(stubs)
    assert await until("caught_up", call) == list(range(1, 11))
    await run(database_url, "DELETE FROM log WHERE position > 7")
    refused = await refusal(to_its_end(call))
    assert (refused.code, refused.reason) == (grpc.StatusCode.DATA_LOSS, "CURSOR_DIVERGED")


async def test_a_live_reader_at_the_logs_new_beginning_goes_on(stubs: Stubs, database_url: str) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(7)))
    call = subscribed(stubs)
    assert await until("caught_up", call) == list(range(1, 8))
    await stubs.append(new_episode())
    assert await until("batch", call) == [8]
    await run(database_url, "UPDATE namespaces SET floor = 8", "DELETE FROM log")
    await stubs.append(new_episode())
    assert await until("batch", call) == [9]
    call.cancel()


# Erasure and claims


async def test_a_resend_of_what_was_erased_stores_nothing(stubs: Stubs, database_url: str) -> None:
    await stubs.session()
    erased, kept = new_episode(), new_episode()
    await stubs.append(erased)
    await stubs.append(kept)
    await run(database_url, "UPDATE log SET digest = NULL WHERE position = 1")
    for sent in ([erased], [erased, kept], [erased, new_episode()]):
        refused = await refusal(stubs.append(*sent))
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "EPISODE_ERASED")
        assert refused.metadata["episode_id"] == erased.episode_id
    assert (await stubs.append(kept)).deduplicated
    assert (await stubs.append(new_episode())).episodes[0].position == 3


async def test_an_erased_record_is_not_listed(stubs: Stubs, database_url: str) -> None:
    await stubs.session()
    await stubs.append(*(new_episode() for _ in range(3)))
    await run(database_url, "UPDATE log SET digest = NULL, record_kind = 4, summary = NULL WHERE position = 2")
    assert await stubs.positions() == [1, 3]
    call = subscribed(stubs)
    assert await until("caught_up", call) == [1, 3]
    call.cancel()


async def test_who_meets_a_claim_is_told_whose_and_until_when_and_nothing_is_stored(
    stubs: Stubs, database_url: str
) -> None:
    await stubs.session()
    await stubs.append(new_episode(open_threads=[types.NewThread(thread_id="t", text="t")]), agent_id="holder")
    await run(
        database_url,
        "UPDATE threads SET state = 2, claimed_by = 1, fence = 3, lease = '1 hour', claim_time = now(),"
        " expire_time = '2999-12-31 12:00Z'",
    )
    ended = types.ThreadReference(thread_id="t")
    endings: list[dict[str, Any]] = [{"resolves": [ended]}, {"drops": [ended]}]
    for ending in endings:
        refused = await refusal(stubs.append(new_episode(**ending), agent_id="other"))
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CLAIM_HELD")
        assert refused.metadata["agent_id"] == "holder"
        assert refused.metadata["expire_time"].startswith("2999-12-31")
    assert await stubs.positions() == [1]


# The database's settings


async def test_one_of_many_concurrent_sends_is_stored_whatever_the_databases_isolation(database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        name = psycopg.sql.Identifier(connection.info.dbname)
        change = psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'")
        await connection.execute(change.format(name))
    async with replica(database_url) as one, replica(database_url) as two:
        await one.session()
        new = new_episode()
        answers = await asyncio.gather(*(stubs.append(new) for stubs in [one, two] * 20))
        assert sum(not answer.deduplicated for answer in answers) == 1
        assert {answer.episodes[0].position for answer in answers} == {1}
        assert await one.positions() == [1]
    outcomes = await _sent_at_once(database_url, 40)
    assert sum(not outcome.deduplicated for outcome in outcomes) == 1
    assert {outcome.stored[0].position for outcome in outcomes} == {2}


async def _sent_at_once(database_url: str, times: int) -> list[AppendOutcome]:
    """Sends one episode that often, each in a transaction of its own, without the queue that a server has."""
    async with Database(database_url, size=times) as database:
        log, namespace = PostgresLog(database), await PostgresNamespaces(database).get("default")
        episode = NewEpisode(episode_id=uuid.uuid4(), summary="the same")
        append = Append(session_id="s", agent_id="a", episodes=(episode,))
        ready = prepared(append, namespace, redactor_of(namespace))
        answers = await asyncio.gather(*(log.append(namespace, [ready]) for _ in range(times)))
    outcomes = [outcome for (outcome,) in answers]
    assert all(isinstance(outcome, AppendOutcome) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, AppendOutcome)]


# Namespaces that are deleted elsewhere


@pytest.fixture
async def deleted_elsewhere(
    stubs: Stubs, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Stubs, Any]]:
    """A server that knows namespace `x` by heart and a live subscription there; `x` was deleted, `y` was made."""
    monkeypatch.setattr(namespaces_module, "RESOLVED_SECONDS", 3_600.0)
    await stubs.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace="x"))
    await stubs.session(namespace="x")
    await stubs.append(new_episode(), namespace="x")
    async with replica(database_url) as other:
        call = subscribed(other, namespace="x")
        assert await until("caught_up", call) == [1]
        await stubs.namespaces.DeleteNamespace(namespaces.DeleteNamespaceRequest(namespace="x"))
        await stubs.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace="y"))
        await stubs.session(namespace="y")
        await stubs.append(*(new_episode("secret of y") for _ in range(3)), namespace="y")
        yield other, call
        listed = await stubs.episodes.ListEpisodes(pb.ListEpisodesRequest(namespace="y"))
        assert [(episode.position, episode.summary) for episode in listed.episodes] == [
            (position, "secret of y") for position in (1, 2, 3)
        ]
        found = await stubs.sessions.ListSessions(sessions.ListSessionsRequest(namespace="y"))
        assert [session.session_id for session in found.sessions] == ["s"]


async def test_a_server_that_missed_a_deletion_writes_nothing_anywhere(deleted_elsewhere: tuple[Stubs, Any]) -> None:
    other, _ = deleted_elsewhere
    for write in (other.append(new_episode(), namespace="x"), other.session("new", namespace="x")):
        refused = await refusal(write)
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")


async def test_a_server_that_missed_a_deletion_ends_its_subscriptions(deleted_elsewhere: tuple[Stubs, Any]) -> None:
    other, call = deleted_elsewhere
    for stream in (call, subscribed(other, namespace="x"), subscribed(other, namespace="x", start=NOW)):
        refused = await refusal(to_its_end(stream))
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")


async def test_a_server_that_missed_a_deletion_shows_nothing_of_other_namespaces(
    deleted_elsewhere: tuple[Stubs, Any],
) -> None:
    other, _ = deleted_elsewhere
    reads: list[Any] = [
        other.episodes.ListEpisodes(pb.ListEpisodesRequest(namespace="x")),
        other.episodes.GetEpisode(pb.GetEpisodeRequest(namespace="x", position=1)),
        other.sessions.ResumeSession(sessions.ResumeSessionRequest(namespace="x", session_id="s")),
        other.search.SearchEpisodes(search.SearchEpisodesRequest(namespace="x", text="secret")),
        other.sessions.ListSessions(sessions.ListSessionsRequest(namespace="x")),
    ]
    for read in reads:
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await read
            assert not any(getattr(answer, part, None) for part in ("episodes", "hits", "sessions"))
