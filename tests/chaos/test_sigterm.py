"""One of two servers is told to end under load: what it acknowledged is there, its readers go on at the other one."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from chaos import fleet as module
from chaos.fleet import HOT, LAST, Fleet, Replica, append, check, writer
from fix_server import StartServer
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2 as types

WRITERS, READERS = 8, 12
WAIT = 60.0


class Sent:
    """What a reader was given, and what its stream ended with."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        self.cursor = b""
        self.ended: list[str] = []

    async def read(self, call: Any) -> bool:
        """Reads to the last episode of all, or to the stream's end; returns whether that was good order."""
        last = ""
        async with asyncio.timeout(WAIT):
            while (message := await call.read()) is not grpc.aio.EOF:
                last = str(message.WhichOneof("event"))
                self.cursor = getattr(message, last).cursor
                self.seen += [(record.position, record.episode.episode_id) for record in message.batch.records]
                if message.batch.records and message.batch.records[-1].episode.summary == LAST:
                    self.ended.append(LAST)
                    call.cancel()
                    return True
        self.ended.append(last)
        return last == "going_away"


async def _reader(fleet: Fleet, number: int, wanted: types.Filter) -> Sent:
    """Reads from one server, and, sent away, from the other."""
    sent = Sent()
    start = types.StartPoint()
    for replica in (number, number + 1, number):
        request = pb.SubscribeEpisodesRequest(namespace=HOT, start=start, filter=wanted, max_batch_size=1 + number)
        call = fleet.stubs[replica % 2].episodes.SubscribeEpisodes(request)
        assert await sent.read(call), sent.ended
        if sent.ended[-1] == LAST:
            break
        start = types.StartPoint(cursor=sent.cursor)
    return sent


async def _end_one(start: StartServer, database_url: str, ends: Sequence[int]) -> None:
    chance = random.Random(7)
    async with (
        Fleet([Replica(database_url, start) for _ in range(2)]).connected() as fleet,
        asyncio.TaskGroup() as group,
    ):
        readers = [group.create_task(_reader(fleet, number, types.Filter())) for number in range(READERS)]
        async with asyncio.TaskGroup() as writing:
            for number in range(WRITERS):
                writing.create_task(writer(fleet, random.Random(number), f"writer-{number}", [HOT]))
            for number in ends:
                await fleet.ledger.more(chance.randint(100, 200), range(2), HOT)
                fleet.replicas[number].running.process.send_signal(signal.SIGTERM)
                assert await fleet.replicas[number].running.ended(within=20) == 0
                await fleet.replicas[number].up()
                await fleet.ledger.more(100, range(2), HOT)
            fleet.calm.set()
        last = append(HOT, "last")
        last.episodes[0].summary = LAST
        await fleet.acknowledged(last, 0)
        log = await check(fleet, HOT)
        for number, task in enumerate(readers):
            sent = await task
            assert sent.seen == log, "delivered = committed, in order, once"
            assert sent.ended == ["going_away"] * (len(sent.ended) - 1) + [LAST]
            assert len(sent.ended) == 1 + (number % 2 in ends)


async def test_a_server_that_is_told_to_end_under_load_loses_nothing_and_its_readers_resume_elsewhere(
    start_server: StartServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # gRPC says CANCELLED for a call that is refused while the server stops.
    monkeypatch.setattr(module, "SENT_AGAIN", (*module.SENT_AGAIN, grpc.StatusCode.CANCELLED))
    await _end_one(start_server, database_url, [0])
