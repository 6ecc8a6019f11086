"""Hints between replicas: what is committed here is heard there at once, and nothing depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, LiteralString

import grpc
import psycopg
import pytest
from fix_proxy import Proxy, database_target
from fix_server import address, settings
from fix_stubs import Stubs, new_episode
from hivemem.v1 import episode_service_pb2 as pb
from hivemem_server.bootstrap import StartError, running_server
from hivemem_server.domain.values import Namespace, NamespaceSettings
from hivemem_server.log import heads as heads_module
from hivemem_server.postgres import hints as module
from hivemem_server.postgres.database import Database
from hivemem_server.postgres.hints import Hint, Hints
from hivemem_server.postgres.log import PostgresLog
from hivemem_server.settings import Settings
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

WAIT = 30.0
NEVER = 3_600.0
NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
STOPPED = "hints from other replicas do not come, their commits are found by polling; trying again"
RETURNED = "hints from other replicas come again"


def namespace(key: int) -> Namespace:
    return Namespace(
        key=key, name=f"n{key}", epoch=uuid.uuid4(), digest_key=b"", settings=NamespaceSettings(), floor=0, head=0,
        create_time=NOW, update_time=NOW,
    )  # fmt: skip


class Heard:
    """HintedHeads that remembers what it was told."""

    def __init__(self) -> None:
        self.hints: list[tuple[int, uuid.UUID, int]] = []
        self.reliable = False
        self.stops = 0
        self._told = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def hint(self, namespace_key: int, epoch: uuid.UUID, position: int) -> None:
        self.hints.append((namespace_key, epoch, position))
        self._tell()

    def rely_on_hints(self, reliable: bool) -> None:
        self.stops += self.reliable and not reliable
        self.reliable = reliable
        self._tell()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT), self._told:
            await self._told.wait_for(condition)

    async def works(self, *, again: int = 0) -> None:
        """Waits until hints come, after they have stopped to come so many times."""
        await self.until(lambda: self.reliable and self.stops >= again)

    async def of(self, *expected: tuple[Namespace, int]) -> None:
        """Waits for the hints."""
        wanted = {(one.key, one.epoch, position) for one, position in expected}
        await self.until(lambda: wanted <= set(self.hints))

    def _tell(self) -> None:
        task = asyncio.create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._told:
            self._told.notify_all()


@dataclass(frozen=True, slots=True)
class Replica:
    id: uuid.UUID
    database: Database
    hints: Hints
    heard: Heard


@contextlib.asynccontextmanager
async def replica(url: str, *, by: str | None = None, notify_by: str | None = None) -> AsyncIterator[Replica]:
    """The part of a replica that sends and hears hints."""
    heard, replica_id = Heard(), uuid.uuid4()
    async with Database(url, size=2) as database:
        hints = Hints(database, url=notify_by or url, listen_url=by or url, replica=replica_id, heads=heard)
        tasks = [asyncio.create_task(hints.send()), asyncio.create_task(hints.listen())]
        try:
            yield Replica(replica_id, database, hints, heard)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended


@contextlib.asynccontextmanager
async def two_replicas(url: str) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two that hear of each other."""
    async with replica(url) as one, replica(url) as two:
        for each in (one, two):
            await each.heard.works()
        yield one, two


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


async def ask(url: str, query: LiteralString, *params: object) -> list[tuple[Any, ...]]:
    async with connected(url) as connection:
        return await (await connection.execute(query, params or None)).fetchall()


@contextlib.asynccontextmanager
async def overheard(url: str) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any]]]]:
    """The next NOTIFY of a hint, each time it is called."""
    payloads: asyncio.Queue[str] = asyncio.Queue()

    async def hear(connection: psycopg.AsyncConnection) -> None:
        async for notify in connection.notifies():
            payloads.put_nowait(notify.payload)

    async def heard() -> dict[str, Any]:
        async with asyncio.timeout(WAIT):
            payload = await payloads.get()
        assert len(payload) < 8_000
        return dict(json.loads(payload))

    async with connected(url) as connection:
        await connection.execute(module.LISTEN)
        hearing = asyncio.create_task(hear(connection))
        yield heard
        hearing.cancel()
        await asyncio.wait([hearing])


async def killed(url: str, name: str) -> None:
    """Ends the backends with a name."""
    ended = await ask(
        url,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = %s AND datname = current_database()",
        name,
    )
    assert ended
    assert set(ended) == {(True,)}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds elsewhere takes less here."""
    monkeypatch.setattr(module, "TEST_SECONDS", 0.1)
    monkeypatch.setattr(module, "HEAR_SECONDS", 0.5)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(module, "PAUSES", (0.05, 0.1))


@pytest.fixture
async def way(database_url: str) -> AsyncIterator[Proxy]:
    """A proxy before the database."""
    made = Proxy(database_target(database_url))
    await made.accept()
    yield made
    await made.close()


def through(proxy: Proxy, url: str) -> str:
    host, _, port = proxy.address.rpartition(":")
    return make_conninfo(url, host=host, port=port)


async def test_a_commit_is_heard_by_the_other_replica_and_not_by_its_own(database_url: str) -> None:
    log = namespace(1)
    async with two_replicas(database_url) as (one, two):
        one.hints.committed(log, 5)
        await two.heard.of((log, 5))
        two.hints.committed(log, 6)
        await one.heard.of((log, 6))
        assert two.heard.hints == [(log.key, log.epoch, 5)]
        assert one.heard.hints == [(log.key, log.epoch, 6)]


async def test_what_is_committed_meanwhile_is_one_notification_with_the_newest_position_of_each_log(
    database_url: str,
) -> None:
    log, other = namespace(1), namespace(2)
    async with two_replicas(database_url) as (one, two), overheard(database_url) as next_payload:
        for position in range(1, 1_001):
            one.hints.committed(log, position)
            one.hints.committed(other, position * 2)
        while not (payload := await next_payload())["heads"]:
            pass
        assert payload["heads"] == [[log.key, log.epoch.hex, 1_000], [other.key, other.epoch.hex, 2_000]]
        await two.heard.of((log, 1_000), (other, 2_000))
        assert len(two.heard.hints) == 2


async def test_more_logs_than_fit_into_one_notification_are_told_in_several(database_url: str) -> None:
    logs = [namespace(1_000_000_000_000_000_000 + number) for number in range(1_000)]
    position = (1 << 63) - 1
    async with two_replicas(database_url) as (one, two), overheard(database_url) as next_payload:
        for log in logs:
            one.hints.committed(log, position)
        told = 0
        while told < len(logs):
            told += len((await next_payload())["heads"])
        assert told == len(logs)
        await two.heard.of(*((log, position) for log in logs))


async def test_more_logs_than_are_gathered_do_no_harm(database_url: str, way: Proxy) -> None:
    way.swallow()
    async with replica(database_url) as one, replica(database_url, notify_by=through(way, database_url)) as two:
        logs = [namespace(number + 1) for number in range(module.MOST_GATHERED + 100)]
        for log in logs:
            two.hints.committed(log, 1)
        assert len(two.hints._notifier._heads) == module.MOST_GATHERED
        way.resume()
        await one.heard.of((logs[0], 1))


GARBAGE = [
    "", "no json", "[]", "{}", "null", "7", '"text"', "[" * 7_000, "9" * 7_000, "\x01\u2028☃", '{"v":2}',
    '{"v":1,"replica":"x","number":1,"heads":[]}',
    '{"v":1,"replica":7,"number":1,"heads":[]}',
    '{"v":1,"replica":"00000000000000000000000000000001","number":"1","heads":[]}',
    '{"v":1,"replica":"00000000000000000000000000000001","number":1,"heads":{}}',
    '{"v":1,"replica":"00000000000000000000000000000001","number":1,"heads":[7]}',
    '{"v":1,"replica":"00000000000000000000000000000001","number":1,"heads":[[1,"x",1]]}',
    '{"v":1,"replica":"00000000000000000000000000000001","number":1,"heads":[[1,"00000000000000000000000000000001",-1]]}',
    '{"v":1,"replica":"00000000000000000000000000000001","number":1,"heads":[[1,"00000000000000000000000000000001",1e9]]}',
]  # fmt: skip


async def test_garbage_is_a_line_for_debugging_and_nothing_else(database_url: str) -> None:
    log = namespace(1)
    with capture_logs() as lines:
        async with two_replicas(database_url) as (one, two), connected(database_url) as stranger:
            for payload in GARBAGE:
                await stranger.execute("SELECT pg_notify('hivemem_hints', %s)", [payload])
            one.hints.committed(log, 5)
            await two.heard.of((log, 5))
            assert two.heard.hints == [(log.key, log.epoch, 5)]
            assert two.heard.reliable
    events = {(line["event"], line["log_level"]) for line in lines}
    assert events == {("a notification is no hint", "debug")}
    assert len(GARBAGE) <= len(lines) <= 2 * len(GARBAGE)


async def test_a_listener_whose_backend_is_ended_hears_again_and_nothing_is_said(database_url: str) -> None:
    log = namespace(1)
    with capture_logs() as lines:
        async with two_replicas(database_url) as (one, two):
            for position in (1, 2):
                await killed(database_url, "hivemem listener")
                for each in (one, two):
                    await each.heard.works(again=position)
                one.hints.committed(log, position)
                await two.heard.of((log, position))
    assert [line["event"] for line in lines if line["log_level"] != "debug"] == []


async def test_a_notifier_whose_backend_is_ended_sends_by_a_new_connection(database_url: str) -> None:
    log = namespace(1)
    async with two_replicas(database_url) as (one, two):
        for position in (1, 2):
            await killed(database_url, "hivemem notifier")
            one.hints.committed(log, position)
            await two.heard.of((log, position))


@pytest.mark.usefixtures("quick")
async def test_what_could_not_be_sent_is_sent_later(database_url: str, way: Proxy) -> None:
    log, other = namespace(1), namespace(2)
    async with replica(database_url) as one, replica(database_url, notify_by=through(way, database_url)) as two:
        for each in (one, two):
            await each.heard.works()
        way.swallow()
        two.hints.committed(log, 1)
        await two.heard.until(lambda: not two.heard.reliable)
        two.hints.committed(log, 2)
        two.hints.committed(other, 1)
        way.resume()
        await one.heard.of((log, 2), (other, 1))


@pytest.mark.usefixtures("quick")
async def test_a_listener_in_a_black_hole_is_found_by_its_test_and_said_once(database_url: str, way: Proxy) -> None:
    log = namespace(1)
    with capture_logs() as lines:
        async with replica(database_url) as one, replica(database_url, by=through(way, database_url)) as two:
            await two.heard.works()
            way.swallow()
            await two.heard.until(lambda: not two.heard.reliable)
            async with asyncio.timeout(WAIT):
                while len(told(lines)) < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            way.resume()
            way.cut()
            await two.heard.works()
            one.hints.committed(log, 5)
            await two.heard.of((log, 5))
    assert told(lines) == [STOPPED, RETURNED]


def told(lines: list[Any]) -> list[str]:
    """What was said, but for debugging."""
    return [line["event"] for line in lines if line["log_level"] != "debug"]


@pytest.mark.usefixtures("quick")
async def test_a_pooler_that_eats_notifications_is_found_by_the_test(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTEN", "SELECT 'as it is answered by a pooler'")
    with capture_logs() as lines:
        async with replica(database_url) as one:
            async with asyncio.timeout(WAIT):
                while sum(line["log_level"] == "debug" for line in lines) < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert not one.heard.reliable
    assert told(lines) == [STOPPED]


@pytest.mark.usefixtures("quick")
async def test_a_database_that_is_gone_is_not_told_of_a_second_time(database_url: str, way: Proxy) -> None:
    with capture_logs() as lines:
        async with replica(through(way, database_url)) as one:
            await one.heard.works()
            way.refuse()
            way.cut()
            async with asyncio.timeout(WAIT):
                while sum(line["event"].startswith("hints are not heard") for line in lines) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await way.accept()
            await one.heard.works()
    assert STOPPED not in told(lines)


@pytest.mark.usefixtures("quick")
async def test_connections_that_may_lead_to_another_server_are_replaced(database_url: str) -> None:
    query: LiteralString = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name IN ('hivemem listener', 'hivemem notifier')"
    )
    async with replica(database_url) as one:
        await one.heard.works()
        before = set(await ask(database_url, query))
        assert len(before) == 2
        one.database.generation += 1
        await one.heard.works(again=1)
        async with asyncio.timeout(WAIT):
            while before & set(await ask(database_url, query)):
                pass


@pytest.mark.usefixtures("quick")
async def test_a_replica_that_is_alone_sends_tests_only_until_it_hears_of_another(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OTHERS_SECONDS", 0.0)
    log = namespace(1)
    async with replica(database_url) as one, overheard(database_url) as next_payload:
        await one.heard.works()
        first = await next_payload()
        for position in range(1, 100):
            one.hints.committed(log, position)
        while (payload := await next_payload())["number"] < first["number"] + 3:
            assert payload["heads"] == []
        monkeypatch.setattr(module, "OTHERS_SECONDS", 30.0)
        other = Hint(replica=uuid.uuid4(), number=1, heads={(2, uuid.uuid4()): 7})
        await ask(database_url, "SELECT pg_notify('hivemem_hints', %s)::text", other.payload())
        await one.heard.until(lambda: len(one.heard.hints) == 1)
        one.hints.committed(log, 100)
        while not (payload := await next_payload())["heads"] or payload["replica"] == other.replica.hex:
            pass
        assert payload["heads"] == [[log.key, log.epoch.hex, 100]]


# Whole servers.


@contextlib.asynccontextmanager
async def serving(chosen: Settings) -> AsyncIterator[Stubs]:
    async with (
        running_server(chosen, lambda _: None) as running,
        grpc.aio.insecure_channel(address(running)) as channel,
    ):
        yield Stubs(channel)


async def listening(url: str, count: int) -> None:
    """Waits until so many replicas are listening."""
    query: LiteralString = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'hivemem listener' AND query LIKE 'LISTEN%%' AND state = 'idle'"
    )
    async with asyncio.timeout(WAIT), connected(url) as connection:
        while await (await connection.execute(query)).fetchone() != (count,):
            pass


class Reader:
    """Positions as they are delivered to one subscription."""

    def __init__(self, stubs: Stubs, **fields: Any) -> None:
        self._call = stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(**fields), timeout=2 * WAIT)
        self._responses = aiter(self._call)
        self.seen: list[int] = []

    async def live(self) -> None:
        """Waits until everything that was there is delivered."""
        async with asyncio.timeout(WAIT):
            while (await anext(self._responses)).WhichOneof("event") != "caught_up":
                pass

    async def reads(self, count: int) -> list[int]:
        """Everything, when it is so much."""
        async with asyncio.timeout(WAIT):
            while len(self.seen) < count:
                response = await anext(self._responses)
                self.seen += [record.position for record in response.batch.records]
        return self.seen


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll of heads is never answered, so that all that is delivered is delivered for a hint."""

    async def unanswered(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(PostgresLog, "heads", unanswered)


@pytest.mark.usefixtures("blind")
async def test_an_append_is_delivered_by_another_replica_for_a_hint_alone(database_url: str) -> None:
    chosen = settings(database_url)
    async with serving(chosen) as one, serving(chosen) as two:
        await listening(database_url, 2)
        await one.session()
        reader = Reader(two)
        await reader.live()
        for position in range(1, 6):
            await one.append(new_episode())
            assert await reader.reads(position) == list(range(1, position + 1))
        await killed(database_url, "hivemem listener")
        await listening(database_url, 2)
        await one.append(new_episode())
        assert await reader.reads(6) == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("quick")
async def test_while_a_listener_is_in_a_black_hole_the_poll_delivers(
    database_url: str, way: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads_module, "HINTED_POLL_SECONDS", NEVER)
    lame = settings(database_url, listen_url=through(way, database_url))
    async with serving(settings(database_url)) as one, serving(lame) as two:
        await listening(database_url, 2)
        await one.session()
        reader = Reader(two)
        await reader.live()
        way.swallow()
        for position in range(1, 4):
            await one.append(new_episode())
            assert await reader.reads(position) == list(range(1, position + 1))


async def test_hints_that_are_lost_doubled_and_out_of_order_change_nothing(database_url: str) -> None:
    silent, chosen = settings(database_url, listen=False), settings(database_url)
    async with serving(silent) as one, serving(chosen) as two, connected(database_url) as stranger:
        await listening(database_url, 1)
        await one.session()
        ((key, epoch),) = await ask(database_url, "SELECT namespace_id, epoch FROM namespaces WHERE name = 'default'")
        reader = Reader(two)
        await reader.live()
        for position in range(1, 31):
            await one.append(new_episode())
            for hinted in (position, position, position - 1, position + 1) if position % 3 else ():
                hint = Hint(replica=uuid.uuid4(), number=1, heads={(key, epoch): max(1, hinted)})
                await stranger.execute("SELECT pg_notify('hivemem_hints', %s)", [hint.payload()])
        assert await reader.reads(30) == list(range(1, 31))


async def test_hints_for_two_logs_wake_the_readers_of_each(database_url: str, blind: None) -> None:
    from hivemem.v1 import namespace_service_pb2 as namespaces

    chosen = settings(database_url)
    async with serving(chosen) as one, serving(chosen) as two:
        await listening(database_url, 2)
        await one.namespaces.CreateNamespace(namespaces.CreateNamespaceRequest(namespace="other"))
        await one.session()
        await one.session(namespace="other")
        first, second = Reader(two), Reader(two, namespace="other")
        await first.live()
        await second.live()
        await one.append(new_episode(), namespace="other")
        assert await second.reads(1) == [1]
        await asyncio.gather(one.append(new_episode()), one.append(new_episode(), namespace="other"))
        assert await first.reads(1) == [1]
        assert await second.reads(2) == [1, 2]


async def test_without_listening_the_poll_alone_delivers(database_url: str) -> None:
    chosen = settings(database_url, listen=False)
    async with serving(chosen) as one, serving(chosen) as two:
        await one.session()
        reader = Reader(two)
        await reader.live()
        for position in range(1, 4):
            await one.append(new_episode())
            assert await reader.reads(position) == list(range(1, position + 1))
        names = await ask(database_url, "SELECT DISTINCT application_name FROM pg_stat_activity")
        assert not {("hivemem listener",), ("hivemem notifier",)} & set(names)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("broken", ["SELECT 1 / 0, %s::text[]", "SELECT pg_sleep(3600), %s::text[]"])
async def test_a_notifier_that_fails_or_hangs_keeps_no_append_from_being_stored_and_delivered(
    database_url: str, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(module, "NOTIFY", broken)
    chosen = settings(database_url)
    async with serving(chosen) as one, serving(chosen) as two:
        await one.session()
        reader = Reader(two)
        await reader.live()
        for position in range(1, 21):
            assert (await one.append(new_episode())).episodes[0].position == position
        assert await reader.reads(20) == list(range(1, 21))


async def test_a_listen_url_that_cannot_be_read_is_refused(database_url: str) -> None:
    with pytest.raises(StartError, match="the listen URL cannot be read"):
        async with running_server(settings(database_url, listen_url="no url"), lambda _: None):
            pass
