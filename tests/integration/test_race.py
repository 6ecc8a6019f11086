"""Writers that stall between drawing a position and their commit, and writers that come upon each other's episodes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from fix_log import WAIT, DirectLog, new, written
from fix_server import address, settings
from fix_stubs import Stubs, new_episode, refusal
from hivemem.v1 import episode_service_pb2 as pb
from hivemem.v1 import types_pb2 as types
from hivemem_server.bootstrap import running_server
from hivemem_server.domain import errors
from hivemem_server.domain.appends import Append, Condition
from hivemem_server.domain.errors import HivememError
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.values import (
    AppendOutcome,
    Decision,
    Expectation,
    NewEpisode,
    OpenThread,
    StreamState,
    ThreadReference,
)
from hivemem_server.postgres.sessions import PostgresSessions

LAST = "the last one"


@pytest.fixture
async def replicas(database_url: str) -> AsyncIterator[tuple[Stubs, Stubs]]:
    """Stubs of two servers on one database."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for _ in range(2):
            running = await stack.enter_async_context(running_server(settings(database_url), lambda _: None))
            made.append(Stubs(await stack.enter_async_context(grpc.aio.insecure_channel(address(running)))))
        yield made[0], made[1]


# Delivered = committed


class Reads:
    """Counts what readers have read: the clock by which writers stall."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Condition()

    async def one_more(self) -> None:
        async with self._changed:
            self._count += 1
            self._changed.notify_all()

    async def pass_by(self, count: int) -> None:
        """Waits until so many more reads are done."""
        async with self._changed:
            goal = self._count + count
            await self._changed.wait_for(lambda: self._count >= goal)


class _GivesUp(Exception):
    """A writer rolls back."""


async def stalling_writer(direct: DirectLog, number: int, appends: int, reads: Reads) -> list[tuple[int, str]]:
    """Appends, stalls, and commits or rolls back; returns what it committed."""
    chance = random.Random(number)
    committed: list[tuple[int, str]] = []
    for _ in range(appends):
        append = direct.ready(*(new() for _ in range(chance.randint(1, 3))), agent_id=f"a{number}")
        with contextlib.suppress(_GivesUp):
            async with direct.held(append) as outcome:
                await reads.pass_by(chance.randint(0, 3))
                if chance.random() < 0.2:
                    raise _GivesUp
            committed += _rows(append, written(outcome))
    return committed


def _rows(append: Append, outcome: AppendOutcome) -> list[tuple[int, str]]:
    return [
        (stored.position, str(episode.episode_id))
        for stored, episode in zip(outcome.stored, append.episodes, strict=True)
    ]


async def queueing_writer(stubs: Stubs, agent_id: str, appends: int) -> list[tuple[int, str]]:
    """Appends through a server; returns what was acknowledged."""
    answers = [await stubs.append(new_episode(), agent_id=agent_id) for _ in range(appends)]
    return [(episode.position, episode.episode_id) for answer in answers for episode in answer.episodes]


async def page_reader(stubs: Stubs, reads: Reads, number: int) -> list[tuple[int, str]]:
    """Pages from the last position it saw, until it has seen the last episode."""
    chance, seen, summary = random.Random(number), list[tuple[int, str]](), ""
    while summary != LAST:
        after = types.PositionRange(after=seen[-1][0] if seen else 0)
        request = pb.ListEpisodesRequest(filter=types.Filter(positions=after), page_size=chance.randint(1, 9))
        for episode in (await stubs.episodes.ListEpisodes(request)).episodes:
            seen.append((episode.position, episode.episode_id))
            summary = episode.summary
        await reads.one_more()
    return seen


async def subscriber(stubs: Stubs, batch_size: int) -> list[tuple[int, str]]:
    """What a subscription delivers, up to the last episode."""
    call: Any = stubs.episodes.SubscribeEpisodes(pb.SubscribeEpisodesRequest(max_batch_size=batch_size))
    seen: list[tuple[int, str]] = []
    summary = ""
    while summary != LAST:
        message = await call.read()
        assert message is not grpc.aio.EOF, "the stream ended"
        for record in message.batch.records:
            seen.append((record.position, record.episode.episode_id))
            summary = record.episode.summary
    call.cancel()
    return seen


async def _race(direct: DirectLog, replicas: tuple[Stubs, Stubs], appends: int) -> None:
    one, two = replicas
    reads = Reads()
    async with asyncio.timeout(WAIT + appends), asyncio.TaskGroup() as group:
        readers = [group.create_task(page_reader(stubs, reads, number)) for number, stubs in enumerate(replicas)]
        readers += [group.create_task(subscriber(stubs, size)) for stubs in replicas for size in (1, 100)]
        async with asyncio.TaskGroup() as writing:
            writers = [writing.create_task(stalling_writer(direct, n, appends, reads)) for n in range(10)]
            writers += [writing.create_task(queueing_writer(stubs, "queued", appends)) for stubs in replicas]
        last = await one.append(new_episode(LAST))
    committed = sorted(row for writer in writers for row in writer.result())
    committed += [(episode.position, episode.episode_id) for episode in last.episodes]
    assert [position for position, _ in committed] == list(range(1, len(committed) + 1)), "positions are dense"
    for reader in readers:
        assert reader.result() == committed, "delivered = committed, in order"
    assert len(await two.positions()) == min(len(committed), 1_000)


async def test_what_readers_are_given_is_what_was_committed_though_writers_stall_before_their_commit(
    direct: DirectLog, replicas: tuple[Stubs, Stubs]
) -> None:
    await _race(direct, replicas, 12)


@pytest.mark.soak
async def test_what_readers_are_given_is_what_was_committed_by_3000_stalling_transactions(
    direct: DirectLog, replicas: tuple[Stubs, Stubs]
) -> None:
    await _race(direct, replicas, 300)


# What a writer finds that had to wait for another one's commit


FIRST = new(
    "first", open_threads=(OpenThread(thread_id="t", text="t"),), decisions=(Decision(decision_id="d", text="d"),)
)
SECOND = new("second")
ENDED = ThreadReference(thread_id="t")
NEWS = Condition(wanted=Filter(session_ids=("s",)), after=0)
OTHER_CONTENT = dataclasses.replace(SECOND, summary="something else")

# What follows on an append of FIRST and SECOND by agent `a`: what is sent, and the error that it meets.
OVERTAKEN: dict[str, tuple[Callable[[DirectLog], Append], type[HivememError]]] = {
    "a call that is partly known": (lambda d: d.ready(SECOND, new()), errors.PartialDuplicate),
    "a known id with other content": (lambda d: d.ready(OTHER_CONTENT), errors.EpisodeIdReused),
    "a known id of another agent": (lambda d: d.ready(SECOND, agent_id="b"), errors.EpisodeIdReused),
    "a stream that must not exist": (
        lambda d: d.ready(new(), expectation=Expectation(state=StreamState.NO_STREAM)), errors.RevisionConflict
    ),
    "a stream that has moved on": (
        lambda d: d.ready(new(), expectation=Expectation(state=StreamState.REVISION, revision=1)),
        errors.RevisionConflict,
    ),
    "news against its condition": (
        lambda d: d.ready(new(), agent_id="b", conditions=(NEWS,)), errors.ConditionFailed
    ),
    "a thread that is open already": (
        lambda d: d.ready(new(open_threads=FIRST.open_threads), agent_id="b"), errors.ThreadStateConflict
    ),
    "a decision that is known already": (
        lambda d: d.ready(new(decisions=FIRST.decisions), agent_id="b"), errors.InvalidField
    ),
}  # fmt: skip


@contextlib.asynccontextmanager
async def waiting(direct: DirectLog, first: Append, *others: Append) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """`first` is stored but not committed, the others wait for it; it commits when the context is left in peace."""
    async with direct.held(first) as outcome:
        written(outcome)
        tasks = [asyncio.create_task(direct.append(other)) for other in others]
        await direct.until_waiting(len(others))
        yield tasks


@pytest.mark.parametrize("what", OVERTAKEN)
async def test_a_writer_that_waited_for_a_commit_meets(direct: DirectLog, what: str) -> None:
    make, error = OVERTAKEN[what]
    async with waiting(direct, direct.ready(FIRST, SECOND), make(direct)) as (waiter,):
        pass
    assert isinstance(await waiter, error)
    assert written(await direct.append(direct.ready(new()))).stored[0].position == 3


@pytest.mark.parametrize("what", [what for what in OVERTAKEN if what != "a stream that has moved on"])
async def test_a_writer_that_waited_for_a_rollback_meets_nothing_of(direct: DirectLog, what: str) -> None:
    make, _ = OVERTAKEN[what]
    with contextlib.suppress(_GivesUp):
        async with waiting(direct, direct.ready(FIRST, SECOND), make(direct)) as (waiter,):
            raise _GivesUp
    assert written(await waiter).stored[0].position == 1


async def test_senders_that_waited_for_the_commit_of_the_same_episodes_are_given_their_positions(
    direct: DirectLog,
) -> None:
    append = direct.ready(FIRST, SECOND)
    async with direct.held(append) as outcome:
        first = written(outcome)
        tasks = [asyncio.create_task(direct.append(append)) for _ in range(8)]
        await direct.until_waiting(8)
    for other in await asyncio.gather(*tasks):
        assert written(other) == dataclasses.replace(first, deduplicated=True)
    assert (await direct.log.bounds(direct.namespace)).head.position == 2


async def test_a_sender_that_waited_for_a_rollback_of_the_same_episodes_stores_them(direct: DirectLog) -> None:
    append = direct.ready(FIRST, SECOND)
    with contextlib.suppress(_GivesUp):
        async with waiting(direct, append, append, append) as tasks:
            raise _GivesUp
    outcomes = [written(await task) for task in tasks]
    assert sorted(outcome.deduplicated for outcome in outcomes) == [False, True]
    assert {tuple(stored.position for stored in outcome.stored) for outcome in outcomes} == {(1, 2)}


async def test_one_of_two_that_end_the_same_thread_at_once_ends_it(direct: DirectLog) -> None:
    written(await direct.append(direct.ready(FIRST)))
    ending = direct.ready(new(resolves=(ENDED,)))
    async with waiting(direct, ending, direct.ready(new(drops=(ENDED,)), agent_id="b")) as (waiter,):
        pass
    assert isinstance(await waiter, errors.ThreadStateConflict)
    assert (await direct.log.bounds(direct.namespace)).head.position == 3


async def test_a_session_is_closed_after_the_append_that_it_waited_for_and_before_the_next(direct: DirectLog) -> None:
    sessions = PostgresSessions(direct.database)
    async with direct.held(direct.ready(FIRST)) as outcome:
        closing = asyncio.create_task(sessions.close(direct.namespace, "s"))
        await direct.until_waiting(1)
        assert not closing.done()
    assert written(outcome).stored[0].position == 1
    assert (await closing).last_position == 1
    assert isinstance(await direct.append(direct.ready(new())), errors.SessionClosed)


TWICE: dict[str, tuple[NewEpisode, type[HivememError]]] = {
    "an id": (OTHER_CONTENT, errors.EpisodeIdReused),
    "a thread": (new(open_threads=FIRST.open_threads), errors.ThreadStateConflict),
    "a decision": (new(decisions=FIRST.decisions), errors.InvalidField),
}


@pytest.mark.parametrize("what", TWICE)
async def test_the_second_of_one_batch_is_refused_for_what_the_first_has_taken(direct: DirectLog, what: str) -> None:
    again, error = TWICE[what]
    written(await direct.append(direct.ready(new())))  # an agent's first append goes alone
    batch = [direct.ready(FIRST, SECOND), direct.ready(again), direct.ready(new())]
    first, second, third = await direct.log.append(direct.namespace, batch)
    assert isinstance(second, error)
    assert [each.position for each in (*written(first).stored, *written(third).stored)] == [2, 3, 4]


# Many at once, to two replicas


async def outcomes_of(calls: list[Any]) -> list[Any]:
    """Answers and refusals of calls that are made at once."""

    async def outcome(call: Any) -> Any:
        task = asyncio.ensure_future(call)
        await asyncio.wait({task})
        return await refusal(task) if task.exception() else task.result()

    return await asyncio.gather(*map(outcome, calls))


async def test_each_compare_and_set_has_one_winner_of_many_callers_over_two_replicas(
    replicas: tuple[Stubs, Stubs],
) -> None:
    await replicas[0].session()
    for revision in range(12):
        expected = (
            pb.Expectation(revision=revision) if revision else pb.Expectation(no_stream=pb.Expectation.NoStream())
        )
        sent = [new_episode() for _ in range(16)]
        outcomes = await outcomes_of(
            [replicas[number % 2].append(episode, expectation=expected) for number, episode in enumerate(sent)]
        )
        winners = [outcome for outcome in outcomes if isinstance(outcome, pb.AppendEpisodesResponse)]
        assert [winner.episodes[0].revision for winner in winners] == [revision + 1]
        lost = [outcome for outcome in outcomes if outcome not in winners]
        assert {(each.reason, each.metadata["actual"]) for each in lost} == {("REVISION_CONFLICT", str(revision + 1))}
    assert await replicas[1].positions() == list(range(1, 13))


async def test_each_condition_has_one_winner_of_many_callers_over_two_replicas(replicas: tuple[Stubs, Stubs]) -> None:
    await replicas[0].session()
    for seen in range(12):
        condition = pb.AppendCondition(filter=types.Filter(kinds=["vote"]), after_position=seen)
        outcomes = await outcomes_of(
            [
                replicas[number % 2].append(new_episode(kind="vote"), agent_id=f"a{number}", conditions=[condition])
                for number in range(16)
            ]
        )
        winners = [outcome for outcome in outcomes if isinstance(outcome, pb.AppendEpisodesResponse)]
        assert [winner.episodes[0].position for winner in winners] == [seen + 1]
        lost = [outcome for outcome in outcomes if outcome not in winners]
        assert {(each.reason, each.metadata["conditions[0]"]) for each in lost} == {("CONDITION_FAILED", str(seen + 1))}


async def test_calls_that_overlap_store_each_episode_once_whichever_replica_they_meet(
    replicas: tuple[Stubs, Stubs],
) -> None:
    await replicas[0].session()
    chance = random.Random(1)
    pool = [new_episode(str(number)) for number in range(60)]
    calls = [sorted(chance.sample(range(60), chance.randint(1, 4))) for _ in range(160)]
    outcomes = await outcomes_of(
        [replicas[number % 2].append(*(pool[k] for k in call)) for number, call in enumerate(calls)]
    )
    stored: dict[str, set[int]] = {}
    for outcome in outcomes:
        if isinstance(outcome, pb.AppendEpisodesResponse):
            for episode in outcome.episodes:
                stored.setdefault(episode.episode_id, set()).add(episode.position)
        else:
            assert outcome.reason == "PARTIAL_DUPLICATE"
    assert all(len(positions) == 1 for positions in stored.values())
    positions = sorted(position for found in stored.values() for position in found)
    assert positions == list(range(1, len(stored) + 1)) == await replicas[1].positions()


async def test_one_content_of_an_id_is_stored_and_the_others_are_refused_whichever_replica_they_meet(
    replicas: tuple[Stubs, Stubs],
) -> None:
    await replicas[0].session()
    for position in range(1, 9):
        contents = [new_episode("one"), new_episode("two"), new_episode("three")]
        for content in contents:
            content.episode_id = contents[0].episode_id
        sent = [contents[number % 3] for number in range(18)]
        outcomes = await outcomes_of([replicas[number % 2].append(each) for number, each in enumerate(sent)])
        kept = {
            content.summary
            for content, outcome in zip(sent, outcomes, strict=True)
            if isinstance(outcome, pb.AppendEpisodesResponse)
        }
        assert len(kept) == 1
        for content, outcome in zip(sent, outcomes, strict=True):
            if content.summary in kept:
                assert outcome.episodes[0].position == position
            else:
                assert outcome.reason == "EPISODE_ID_REUSED"
