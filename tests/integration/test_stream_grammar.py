"""The messages of a subscription as a grammar: what may come when, and what each of them promises."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from fix_server import address, settings
from fix_stubs import Stubs, new_episode, refusal
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2 as types
from hivemem_server.bootstrap import running_server
from hivemem_server.log import readers, tail
from hivemem_server.rpc import following

WAIT = 20.0
NOTHING = types.Filter(kinds=["none"])
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1_024)]


class Stream:
    """Reads a subscription and checks each message as it comes."""

    def __init__(self, stubs: Stubs, **fields: Any) -> None:
        self._call: Any = stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(**fields), timeout=WAIT)
        self._live = False
        self._position = 0
        self.kinds: list[str] = []
        self.positions: list[int] = []

    async def next(self) -> Any:
        """The next event."""
        message = await self._call.read()
        assert message is not grpc.aio.EOF, f"the stream ended after {self.kinds}"
        kind = message.WhichOneof("event")
        event = getattr(message, kind)
        assert (kind == "started") is (not self.kinds), "Started comes first, and once"
        assert kind != "caught_up" or not self._live
        assert kind != "fell_behind" or self._live
        assert event.position >= self._position, "points never decrease"
        assert event.cursor
        self._live = (self._live or kind == "caught_up") and kind != "fell_behind"
        self._position = event.position
        self.kinds.append(kind)
        self.positions += [record.position for record in message.batch.records]
        return event

    async def until(self, kind: str) -> Any:
        """Reads up to the next message of a kind."""
        while True:
            event = await self.next()
            if self.kinds[-1] == kind:
                return event

    def cancel(self) -> None:
        self._call.cancel()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats may be close together."""
    monkeypatch.setattr(following, "HEARTBEAT_SECONDS", (0.02, 0.02, 0.02))


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("wanted", [types.Filter(), NOTHING])
async def test_an_idle_log_however_small_gives_progress_at_every_heartbeat(
    stubs: Stubs, count: int, wanted: types.Filter
) -> None:
    await stubs.session()
    if count:
        await stubs.append(*(new_episode() for _ in range(count)))
    stream = Stream(stubs, filter=wanted)
    await stream.until("caught_up")
    progress = [await stream.until("progress") for _ in range(4)]
    assert stream.kinds[-4:] == ["progress"] * 4
    assert [(each.position, each.head_position) for each in progress] == [(count, count)] * 4
    stream.cancel()


@pytest.mark.usefixtures("often")
async def test_progress_grows_with_what_does_not_match_and_its_cursor_resumes_behind_it(stubs: Stubs) -> None:
    await stubs.session()
    stream = Stream(stubs, filter=types.Filter(kinds=["finding"]))
    await stream.until("caught_up")
    for position in range(1, 6):
        await stubs.append(new_episode())
        while (progress := await stream.until("progress")).position < position:
            pass
        assert progress.position == position
    await stubs.append(new_episode(kind="finding"))
    again = Stream(stubs, filter=types.Filter(), start=types.StartPoint(cursor=progress.cursor))
    await again.until("caught_up")
    assert again.positions == [6]
    await stream.until("batch")
    assert stream.positions == [6]
    stream.cancel()
    again.cancel()


async def test_each_window_that_is_read_without_a_match_gives_progress(
    stubs: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SPAN", 10)
    await stubs.session()
    await stubs.append(*(new_episode(kind="finding" if number == 25 else "note") for number in range(1, 36)))
    stream = Stream(stubs, filter=types.Filter(kinds=["finding"]))
    seen = [(await stream.next()).position for _ in range(5)]
    assert seen == [0, 10, 20, 30, 35]
    assert stream.kinds == ["started", "progress", "progress", "batch", "caught_up"]
    assert stream.positions == [25]
    stream.cancel()


async def test_a_reader_that_is_slower_than_writers_is_told_that_it_fell_behind_and_when_it_caught_up(
    stubs: Stubs, server_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "TAIL_RECORDS", 1)
    await stubs.session()
    async with grpc.aio.insecure_channel(server_address, options=SMALL_WINDOW) as channel:
        slow = Stream(Stubs(channel), max_batch_size=3)
        await slow.until("caught_up")
        for _ in range(6):
            await stubs.append(*(new_episode("words " * 5_000) for _ in range(10)))
        behind = await slow.until("fell_behind")
        assert behind.head_position > behind.position
        assert (await slow.until("caught_up")).position >= behind.head_position
        while len(slow.positions) < 60:
            await slow.next()
        assert slow.positions == list(range(1, 61))
        slow.cancel()


async def test_a_reader_is_not_caught_up_before_it_has_what_was_there_when_it_came(database_url: str) -> None:
    alone = settings(database_url, poll_seconds=10.0, listen=False)
    async with (
        running_server(settings(database_url), lambda _: None) as other,
        running_server(alone, lambda _: None) as unaware,
        grpc.aio.insecure_channel(address(other)) as writing,
        grpc.aio.insecure_channel(address(unaware)) as reading,
    ):
        await Stubs(writing).session()
        first = Stream(Stubs(reading))
        await first.until("caught_up")
        for count in (2, 4):
            await Stubs(writing).append(new_episode(), new_episode())
            stream = Stream(Stubs(reading), start=types.StartPoint(position=count - 2))
            assert (await stream.until("started")).head_position == count
            assert (await stream.until("caught_up")).position == count
            assert stream.positions == [count - 1, count]
            waited_for = await waited(Stubs(reading), start=types.StartPoint(position=count - 2))
            assert [record.position for record in waited_for.records] == [count - 1, count]
            stream.cancel()
        first.cancel()


# Bad input


def subscribed(stubs: Stubs, **fields: Any) -> Any:
    return stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(**fields), timeout=WAIT).read()


def waited(stubs: Stubs, **fields: Any) -> Any:
    request = pb.WaitEpisodesRequest(timeout=Duration(seconds=0), **fields)
    return stubs.episodes.WaitEpisodes(request, timeout=WAIT)


def sessions(count: int) -> types.Filter:
    return types.Filter(session_ids=[f"s{number}" for number in range(count)])


@pytest.mark.parametrize("call", [subscribed, waited])
async def test_257_sessions_in_a_filter_are_refused_and_256_are_not(stubs: Stubs, call: Any) -> None:
    refused = await refusal(call(stubs, filter=sessions(257)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert refused.fields == ["filter.session_ids"]
    await call(stubs, filter=sessions(256))


@pytest.mark.parametrize(
    ("seconds", "used"), [(0, 1.0), (-5, 1.0), (24 * 3_600, 60.0), (10**11, 60.0), (None, 10.0), (7, 7.0)]
)
async def test_a_heartbeat_out_of_range_is_clamped_and_told(stubs: Stubs, seconds: int | None, used: float) -> None:
    wish = {} if seconds is None else {"heartbeat_interval": Duration(seconds=seconds)}
    started = (await subscribed(stubs, **wish)).started
    assert started.heartbeat_interval.ToTimedelta() == dt.timedelta(seconds=used)


FAR_AHEAD: Sequence[types.StartPoint] = [
    types.StartPoint(position=1_000_000),
    types.StartPoint(position=2**62),
    types.StartPoint(position=2**63 - 1),
]


@pytest.mark.parametrize("start", FAR_AHEAD, ids=lambda start: str(start.position))
async def test_a_start_in_the_future_waits_for_it(stubs: Stubs, start: types.StartPoint) -> None:
    await stubs.session()
    await stubs.append(new_episode())
    stream = Stream(stubs, start=start)
    assert (await stream.until("started")).head_position == 1
    assert (await stream.until("caught_up")).position == start.position
    await stubs.append(new_episode())
    answer = await waited(stubs, start=start)
    assert (list(answer.records), answer.position) == ([], start.position)
    stream.cancel()


async def test_a_start_at_a_time_that_has_not_come_is_one_at_the_head(stubs: Stubs) -> None:
    await stubs.session()
    await stubs.append(new_episode())
    stream = Stream(stubs, start=types.StartPoint(time=Timestamp(seconds=32_503_680_000)))
    assert (await stream.until("caught_up")).position == 1
    await stubs.append(new_episode())
    await stream.until("batch")
    assert stream.positions == [2]
    stream.cancel()
