"""Streams of appends: nothing is stored behind an append whose outcome is not known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hivemem.v1 import episode_service_pb2 as pb
from hivemem_server.domain.errors import DatabaseUnavailable
from hivemem_server.domain.values import AppendOutcome
from hivemem_server.rpc.append_stream import Ready, append_stream

WAIT = 10.0


class Line:
    """Takes appends in, as the appender does; the test says what becomes of them. All but the first are held first."""

    def __init__(self) -> None:
        self.submitted: list[asyncio.Future[AppendOutcome]] = []
        self.held = asyncio.Event()
        self.go_on = asyncio.Event()

    async def prepare(self, _: pb.AppendEpisodesRequest) -> Ready:
        if self.submitted:
            self.held.set()
            await self.go_on.wait()
        return Ready(self._submit, lambda _: pb.AppendEpisodesResponse())

    def _submit(self) -> asyncio.Future[AppendOutcome]:
        self.submitted.append(asyncio.get_running_loop().create_future())
        return self.submitted[-1]


async def requests() -> AsyncIterator[pb.AppendEpisodeStreamRequest]:
    yield pb.AppendEpisodeStreamRequest(open=pb.AppendEpisodeStreamRequest.Open(session_id="s", agent_id="a"))
    for sequence in (1, 2):
        yield _item(sequence)


async def test_nothing_is_put_in_line_behind_an_append_whose_outcome_is_not_known() -> None:
    line = Line()
    answers = append_stream(requests(), line.prepare, asyncio.Event())
    async with asyncio.timeout(WAIT):
        answering = asyncio.ensure_future(anext(answers))
        await line.held.wait()
        line.go_on.set()  # the second one is about to be put in line when the first one fails
        line.submitted[0].set_exception(DatabaseUnavailable("nobody knows"))
        with pytest.raises(DatabaseUnavailable):
            await answering
        await answers.aclose()
    assert len(line.submitted) == 1


def _item(sequence: int) -> pb.AppendEpisodeStreamRequest:
    return pb.AppendEpisodeStreamRequest(append=pb.AppendEpisodeStreamRequest.Append(sequence=sequence))
