from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import grpc
import hivemem
import pytest
from fix_scripted import Answers, Refusal, Script, Silence, Unanswered
from hivemem.v1.error_reason_pb2 import ErrorReason
from hivemem.v1.types_pb2 import Failure, FieldViolation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ALL = Answers()
GONE = Refusal(code=grpc.StatusCode.UNAVAILABLE)
WAIT = 20.0


class Leave(Exception):
    """What a block is left with that has no reason to wait."""


@asynccontextmanager
async def left_at_once(writer: hivemem.Writer) -> AsyncIterator[hivemem.Writer]:
    """A writer whose block is left with an exception."""
    with suppress(Leave):
        async with writer:
            yield writer
            raise Leave


@pytest.fixture
async def client(script: Script) -> AsyncIterator[hivemem.Client]:
    # With a timeout longer than any test, what is done only when it is over counts as a hang.
    async with hivemem.Client(script.address, namespace="n", timeout=100.0) as client, asyncio.timeout(WAIT):
        yield client


@pytest.fixture
async def agent(client: hivemem.Client, script: Script) -> hivemem.Agent:
    script.calls = [None]
    return (await client.session("s")).agent("a")


def failure(reason: str, **metadata: str) -> Failure:
    return Failure(reason=ErrorReason.Value(f"ERROR_REASON_{reason}"), message="refused", metadata=metadata)


async def append(writer: hivemem.Writer, count: int) -> list[hivemem.PendingAppend[hivemem.Appended]]:
    return [await writer.append(summary=f"{number}") for number in range(count)]


def ids(pending: list[hivemem.PendingAppend[hivemem.Appended]]) -> list[str]:
    return [one.episode_ids[0] for one in pending]


async def test_appends_are_stored_in_order_and_each_says_where(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[ALL]]
    async with agent.writer(writer_fence=7) as writer:
        pending = await append(writer, 600)
        several = await writer.append_all([hivemem.NewEpisode(summary=f"{number}") for number in range(3)])
        assert [one.position for one in await several] == [601, 602, 603]
        assert [(await one).position for one in pending] == list(range(1, 601))
        assert (await pending[0]).episode_id == pending[0].episode_ids[0]
    assert script.append_ids == [[*ids(pending), several.episode_ids[0]]]
    opened = script.openings[0]
    assert (opened.namespace, opened.session_id, opened.agent_id, opened.writer_fence) == ("n", "s", "a", 7)


async def test_a_writer_that_writes_nothing_calls_nobody(agent: hivemem.Agent, script: Script) -> None:
    async with agent.writer() as writer:
        await writer.flush()
    assert script.openings == []


async def test_flush_waits_until_everything_before_it_is_durable(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[ALL]]
    async with agent.writer() as writer:
        pending = await append(writer, 50)
        await writer.flush()
        assert all(one.done() for one in pending)
        assert writer.pending == 0
        assert len(script.positions) == 50


async def test_leaving_waits_as_flush_does_and_ends_the_call(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[ALL]]
    async with agent.writer() as writer:
        pending = await append(writer, 50)
    assert all(one.done() for one in pending)
    await script.all_ended.wait()


# ---- bounds ------------------------------------------------------------------------------------------------


async def test_no_more_is_taken_than_may_be_pending(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Answers(2), Silence()]]
    async with left_at_once(agent.writer(max_pending=5)) as writer:
        pending = await append(writer, 7)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.append(summary="one too many"), 0.2)
        assert [one.done() for one in pending] == [True] * 2 + [False] * 5
        assert writer.pending == 5


async def test_no_more_bytes_are_taken_than_may_be_pending_but_a_large_one_goes_alone(
    agent: hivemem.Agent, script: Script
) -> None:
    script.append_streams = [[Answers(1), Silence()]]
    async with left_at_once(agent.writer(max_pending_bytes=10_000)) as writer:
        await (await writer.append(summary="large" * 10_000))
        await writer.append(summary="x" * 9_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.append(summary="x" * 1_000), 0.2)
        assert writer.pending == 1


async def test_those_that_wait_for_room_get_it_in_the_order_of_their_calls(
    agent: hivemem.Agent, script: Script
) -> None:
    script.append_streams = [[ALL]]
    names = [str(hivemem.uuid7()) for _ in range(50)]
    async with agent.writer(max_pending_bytes=2_000) as writer:
        await asyncio.gather(
            *(writer.append(summary="x" * (1 + n % 7 * 500), episode_id=i) for n, i in enumerate(names))
        )
    assert script.append_ids == [names]


async def test_an_append_larger_than_any_message_is_refused_alone(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[ALL]]
    async with agent.writer() as writer:
        before = await writer.append(summary="small")
        large = await writer.append(summary="x" * (9 << 20))
        after = await writer.append(summary="small")
        with pytest.raises(hivemem.TooLarge):
            await large
        assert [(await before).position, (await after).position] == [1, 2]


# ---- refusals ----------------------------------------------------------------------------------------------


async def test_a_refused_append_has_its_typed_error_and_the_others_go_on(agent: hivemem.Agent, script: Script) -> None:
    wrong = failure("INVALID_FIELD")
    wrong.violations.append(FieldViolation(field="episodes[0].summary", description="is empty"))
    conflict = failure("REVISION_CONFLICT", expected="3", actual="5")
    script.append_streams = [[Answers(1), wrong, conflict, ALL]]
    async with agent.writer() as writer:
        first, second, third, fourth = await append(writer, 4)
        assert (await first).position == 1
        with pytest.raises(hivemem.InvalidField) as invalid:
            await second
        with pytest.raises(hivemem.RevisionConflict) as conflicting:
            await third
        assert (await fourth).position == 2
    assert invalid.value.violations[0].field == "episodes[0].summary"
    assert (conflicting.value.expected, conflicting.value.actual) == ("3", 5)
    assert len(script.append_ids) == 1


async def test_a_refusal_that_nobody_has_looked_at_is_raised_on_leaving(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Answers(1), failure("REVISION_CONFLICT"), failure("SESSION_CLOSED"), ALL]]
    with pytest.raises(hivemem.RevisionConflict) as caught:
        async with agent.writer() as writer:
            pending = await append(writer, 4)
    assert caught.value.__notes__ == [
        f"in the append of {pending[1].episode_ids[0]}",
        "1 more appends of this writer were refused",
    ]
    with pytest.raises(hivemem.SessionClosed):
        await pending[2]
    assert (await pending[3]).position == 2


async def test_flush_raises_a_refusal_once(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[failure("SESSION_CLOSED"), ALL]]
    async with agent.writer() as writer:
        await append(writer, 2)
        with pytest.raises(hivemem.SessionClosed):
            await writer.flush()
        await writer.flush()


async def test_refusals_that_nobody_looks_at_do_not_pile_up(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[*[failure("SESSION_CLOSED")] * 1_000]]
    async with left_at_once(agent.writer(max_pending=10)) as writer:
        with pytest.raises(hivemem.SessionClosed):
            await append(writer, 1_000)
    assert len(script.append_ids[0]) <= 20


async def test_a_reason_that_only_a_newer_server_knows_is_an_error(agent: hivemem.Agent, script: Script) -> None:
    unknown = Failure(message="refused")
    unknown.reason = 999  # type: ignore[assignment]
    script.append_streams = [[unknown]]
    async with agent.writer() as writer:
        with pytest.raises(hivemem.HivememError, match="refused"):
            await (await writer.append(summary="x"))


async def test_what_is_wrong_here_already_is_raised_at_once(agent: hivemem.Agent, script: Script) -> None:
    async with agent.writer() as writer:
        with pytest.raises(TypeError):
            await writer.append(summary="x", tags="one")
    assert script.openings == []


# ---- lost streams ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        GONE,
        Refusal(code=grpc.StatusCode.CANCELLED),
        Refusal(code=grpc.StatusCode.INTERNAL),
        Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_delay=0.01),
        Refusal(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="SLOW_CONSUMER"),
        failure("DATABASE_UNAVAILABLE"),
        None,
    ],
    ids=["gone", "cancelled", "core", "draining", "stalled", "in-band", "end"],
)
async def test_what_was_not_answered_is_sent_again_in_order_and_not_doubled(
    agent: hivemem.Agent, script: Script, loss: Refusal | Failure | None
) -> None:
    end = [] if loss is None else [loss]
    script.append_streams = [[Answers(3), Unanswered(), Unanswered(), *end], [Answers(1), *end], [ALL]]
    async with agent.writer() as writer:
        pending = await append(writer, 10)
        done = [await one for one in pending]
    names = ids(pending)
    assert done[3].deduplicated
    assert [one.position for one in done] == list(range(1, 11))
    assert list(script.positions) == names
    for sent, again in pairwise([[names.index(one) for one in stream] for stream in script.append_ids]):
        assert again[0] <= sent[-1] + 1
        assert again == list(range(again[0], again[0] + len(again)))


async def test_a_stream_that_ends_while_nothing_is_pending_is_no_trouble(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Answers(1), GONE], [ALL]]
    async with agent.writer() as writer:
        await (await writer.append(summary="1"))
        await script.all_ended.wait()
        assert (await (await writer.append(summary="2"))).position == 2


async def test_a_stream_that_is_refused_for_good_fails_what_waits_and_no_more(
    agent: hivemem.Agent, script: Script
) -> None:
    script.append_streams = [[Refusal(code=grpc.StatusCode.NOT_FOUND, reason="NAMESPACE_NOT_FOUND")], [ALL]]
    async with agent.writer() as writer:
        for one in await append(writer, 3):
            with pytest.raises(hivemem.NamespaceNotFound):
                await one
        assert (await (await writer.append(summary="x"))).position == 1


async def test_a_silent_stream_is_taken_for_dead(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Answers(1), Unanswered(), Silence()], [ALL]]
    async with agent.writer(timeout=2.0) as writer:
        pending = await append(writer, 3)
        assert [(await one).position for one in pending] == [1, 2, 3]


async def test_nothing_to_wait_for_is_no_silence(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[ALL]]
    async with agent.writer(timeout=0.2) as writer:
        await (await writer.append(summary="1"))
        await asyncio.sleep(0.6)  # the work of the writer's owner, longer than the timeout
        assert (await (await writer.append(summary="2"))).position == 2
    assert len(script.openings) == 1


# ---- giving up ---------------------------------------------------------------------------------------------


async def test_what_waits_longer_than_the_timeout_fails_with_the_last_error(
    agent: hivemem.Agent, script: Script
) -> None:
    drained = Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING")
    script.append_streams = [[Answers(1), drained], [drained]]
    async with agent.writer(timeout=0.5) as writer:
        assert (await (await writer.append(summary="first"))).position == 1
        for one in await append(writer, 3):
            with pytest.raises(hivemem.Draining):
                await one
        script.append_streams = [[ALL]]
        assert (await (await writer.append(summary="later"))).position == 2


async def test_a_server_that_never_answers_is_given_up(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Silence()]]
    with pytest.raises(hivemem.ConnectionFailed, match="cannot reach"):
        async with agent.writer(timeout=0.4) as writer:
            await append(writer, 3)
    await script.all_ended.wait()


async def test_leaving_with_an_exception_lets_go_at_once(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Answers(1), Silence()]]
    async with left_at_once(agent.writer(max_pending=4)) as writer:
        pending = await append(writer, 5)
        await pending[0]
        waiting = asyncio.create_task(writer.append(summary="waits for room"))
        await asyncio.sleep(0)
    for one in pending[1:]:
        with pytest.raises(hivemem.Closed):
            await one
    with pytest.raises(hivemem.Closed):
        await waiting
    await script.all_ended.wait()


async def test_being_cancelled_on_leaving_lets_go_at_once(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Silence()]]

    async def write() -> None:
        async with agent.writer() as writer:
            await append(writer, 3)

    writing = asyncio.create_task(write())
    await script.arrived.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await script.all_ended.wait()


async def test_leaving_does_not_wait_for_a_pause_between_streams(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_delay=0.9)]]
    async with left_at_once(agent.writer()) as writer:
        await append(writer, 3)
        await script.arrived.wait()
        await script.all_ended.wait()


async def test_cancelling_one_that_waits_for_an_answer_changes_nothing(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Answers(1), GONE], [ALL]]
    async with agent.writer() as writer:
        pending = await append(writer, 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await pending[1]
        assert (await pending[1]).position == 2


async def test_closing_the_client_ends_the_writer(client: hivemem.Client, agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[Answers(1), Silence()]]
    async with left_at_once(agent.writer()) as writer:
        pending = await append(writer, 2)
        await pending[0]
        await client.aclose()
        with pytest.raises(hivemem.Closed):
            await pending[1]
        with pytest.raises(hivemem.Closed, match="this client is closed"):
            await writer.append(summary="too late")


async def test_a_writer_is_for_one_block(agent: hivemem.Agent, script: Script) -> None:
    script.append_streams = [[ALL]]
    writer = agent.writer()
    with pytest.raises(hivemem.Closed, match="async with"):
        await writer.append(summary="too early")
    async with writer:
        await writer.append(summary="x")
    with pytest.raises(hivemem.Closed, match="async with"):
        await writer.append(summary="too late")
    with pytest.raises(hivemem.Closed, match="another one"):
        await writer.__aenter__()


async def test_nothing_is_left_behind(agent: hivemem.Agent, script: Script) -> None:
    before = asyncio.all_tasks()
    script.append_streams = [[Answers(2), GONE], [Answers(2)], [Answers(1), Silence()], [ALL]]
    async with agent.writer(timeout=1.0) as writer:
        await append(writer, 20)
    await script.all_ended.wait()
    ours = [task for task in asyncio.all_tasks() - before if is_of_client(task)]
    await asyncio.gather(*ours)
    assert [task.get_name() for task in ours if task.get_name().startswith("hivemem")] == []
    assert sum(channel.streams for channel in agent._client._connection._channels) == 0


def is_of_client(task: asyncio.Task[object]) -> bool:
    """Whether the client started it, or gRPC to send its requests."""
    return task.get_name().startswith("hivemem") or "_consume_request_iterator" in repr(task.get_coro())
