"""Family `recall`: what search and resume cost above the SQL that they cannot do without."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import psycopg
from google.protobuf.message import Message
from hivemem.v1.search_service_pb2 import SearchEpisodesRequest
from hivemem.v1.search_service_pb2_grpc import SearchServiceStub
from hivemem.v1.session_service_pb2 import ResumeSessionRequest
from hivemem.v1.session_service_pb2_grpc import SessionServiceStub

from .bare_echo import answering
from .bare_resume import resume as bare_resume
from .bare_search import search as bare_search
from .measuring import MILLISECONDS, Goal, Result, median, milliseconds, milliseconds_blocking, taking_turns
from .stand import PARALLEL_SESSIONS, Stand, channel
from .texts import queries

AnyRequest = TypeVar("AnyRequest", bound=Message)
AnyResponse = TypeVar("AnyResponse", bound=Message)

LOG_EPISODES = 100_000
CALLS, ROUNDS = 40, 7


async def search(stand: Stand) -> Result:
    """Median time of a search of the whole namespace by words, against reference SQL and a bare echo of the answer.

    The server has no embedder here, so neither side embeds.
    """
    asked = queries(CALLS)
    requests = [SearchEpisodesRequest(text=text) for text in asked]
    async with stand.server(await stand.filled(LOG_EPISODES)) as address, channel(address) as opened:
        call = SearchServiceStub(opened).SearchEpisodes
        return await _against_sql(stand, "search", Goal(most=1.3), call, requests, bare_search, asked)


async def resume(stand: Stand) -> Result:
    """Median time of resuming a session, against reference SQL, back to back, and a bare echo of the answer."""
    asked = [f"session-{key}" for key in itertools.islice(itertools.count(PARALLEL_SESSIONS, 3), CALLS)]
    requests = [ResumeSessionRequest(session_id=session_id) for session_id in asked]
    async with stand.server(await stand.filled(LOG_EPISODES)) as address, channel(address) as opened:
        call = SessionServiceStub(opened).ResumeSession
        return await _against_sql(stand, "resume", Goal(most=1.5), call, requests, bare_resume, asked)


async def _against_sql(
    stand: Stand,
    measure: str,
    goal: Goal,
    call: Callable[[AnyRequest], Awaitable[AnyResponse]],
    requests: Sequence[AnyRequest],
    statements: Callable[[psycopg.Connection, str], int],
    asked: Sequence[str],
) -> Result:
    sizes = [(await call(request)).ByteSize() for request in requests]
    typical = requests[sizes.index(statistics.median_low(sizes))]
    with psycopg.connect(await stand.filled(LOG_EPISODES), autocommit=True) as connection:
        async with stand.echo() as echo_channel:
            echo = await answering(echo_channel, type(typical), await call(typical))

            async def our_time() -> float:
                return await milliseconds(call, requests)

            async def echo_time() -> float:
                return await milliseconds(echo, requests)

            async def sql_time() -> float:
                return milliseconds_blocking(lambda text: statements(connection, text), asked)

            taken = await taking_turns(ROUNDS, our_time, echo_time, sql_time, tick=stand.tick)
    ours, echoes, statements_ = map(median, taken)
    return Result(
        measure=measure,
        ours=ours,
        bare=echoes + statements_,
        unit=MILLISECONDS,
        goal=goal,
        detail={"calls": CALLS * ROUNDS, "log": LOG_EPISODES, "sql": statements_, "echo": echoes}
        | {"answer_bytes": statistics.median_low(sizes)},
    )


MEASURES = {measure.__name__: measure for measure in (search, resume)}
