"""Following without asyncio: what does it here runs in a thread or a process beside the scripted server."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import hivemem
import pytest
from fix_scripted import Refusal, Script, Silence, batch, caught_up, cursor, going_away, progress, started

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

WAIT = 30.0
Value = TypeVar("Value")


async def in_a_thread(work: Callable[[], Value]) -> Value:
    async with asyncio.timeout(WAIT):
        return await asyncio.to_thread(work)


async def ended(script: Script) -> None:
    """Returns when the server has no stream open."""
    async with asyncio.timeout(WAIT):
        await script.all_ended.wait()


async def test_what_was_there_comes_as_a_list_does(script: Script) -> None:
    script.streams = [[started(), batch(1, 2), going_away(2)], [started(2), batch(3), caught_up(3), Silence()]]

    def work() -> list[int]:
        follower = hivemem.follow(script.address, session="s", exclude_agents=["me"], until_caught_up=True)
        return [episode.position for episode in follower]

    assert await in_a_thread(work) == [1, 2, 3]
    await ended(script)
    asked = script.requests[0].filter
    assert (list(asked.session_ids), list(asked.exclude_agent_ids)) == (["s"], ["me"])


async def test_a_wait_that_is_over_says_so_and_loses_nothing(script: Script) -> None:
    script.streams = [[started(heartbeat=0.3), batch(1), Silence()], [started(1), batch(2), Silence()]]

    def work() -> list[int]:
        with hivemem.follow(script.address, timeout=0.2) as follower:
            seen = [next(follower).position]
            with pytest.raises(TimeoutError, match=r"no episode within 0\.2 s"):
                next(follower)
            while len(seen) < 2:
                try:
                    seen.append(next(follower).position)
                except TimeoutError:
                    continue
        return seen

    assert await in_a_thread(work) == [1, 2]
    await ended(script)


async def test_a_wait_for_a_server_that_is_not_there_says_why(script: Script) -> None:
    script.streams = [[Refusal(code=grpc.StatusCode.UNAVAILABLE)]]

    def work() -> None:
        next(hivemem.follow(script.address, timeout=0.5))

    with pytest.raises(TimeoutError, match=rf"within 0\.5 s: cannot reach hivemem at {script.address}"):
        await in_a_thread(work)


async def test_leaving_the_loop_of_a_nameless_one_lets_go_of_everything(script: Script) -> None:
    script.streams = [[started(), batch(1, 2), Silence()]]

    def work() -> int:
        before = threading.active_count()
        for _ in range(20):
            for episode in hivemem.follow(script.address):
                assert episode.position == 1
                break
        return threading.active_count() - before

    assert await in_a_thread(work) == 0
    await ended(script)


async def test_leaving_the_loop_keeps_one_with_a_name_for_more_until_it_is_closed(script: Script) -> None:
    script.streams = [[started(), batch(1, 2), batch(3), Silence()]]

    def work() -> list[int]:
        follower, seen = hivemem.follow(script.address), []
        for _ in range(2):
            for episode in follower:
                seen.append(episode.position)
                break
        assert (follower.position, follower.cursor) == (1, cursor(0))
        follower.close()
        follower.close()
        return [*seen, *(episode.position for episode in follower)]

    assert await in_a_thread(work) == [1, 2]
    await ended(script)


async def test_another_thread_may_close_it_and_the_loop_ends(script: Script) -> None:
    script.streams = [[started(), batch(1), Silence()]]
    first = threading.Event()
    follower = await in_a_thread(lambda: hivemem.follow(script.address))

    def work() -> list[int]:
        seen = []
        for episode in follower:
            seen.append(episode.position)
            first.set()
        return seen

    reading = asyncio.create_task(in_a_thread(work))
    await in_a_thread(lambda: first.wait(WAIT))
    await in_a_thread(follower.close)
    assert await reading == [1]
    await ended(script)


async def test_closing_ends_a_pause_between_two_streams(script: Script) -> None:
    script.streams = [[Refusal(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_delay=3600)]]
    follower = await in_a_thread(lambda: hivemem.follow(script.address))
    reading = asyncio.create_task(in_a_thread(lambda: list(follower)))
    await script.arrived.wait()
    await ended(script)
    follower.close()
    assert await reading == []


async def test_records_come_with_their_scores(script: Script) -> None:
    script.streams = [[started(), batch(1, score=0.5), batch(2, score=0.25), caught_up(2), Silence()]]

    def work() -> list[tuple[int, float | None, float | None]]:
        with hivemem.follow(script.address, relevant_to="pricing", until_caught_up=True) as follower:
            return [(record.position, record.score, follower.score) for record in follower.records()]

    assert await in_a_thread(work) == [(1, 0.5, 0.5), (2, 0.25, 0.25)]
    assert script.requests[0].relevance.relevant_to == "pricing"


async def test_errors_that_trying_again_does_not_mend_end_it(script: Script) -> None:
    script.streams = [[started(), batch(1), Refusal(code=grpc.StatusCode.OUT_OF_RANGE, reason="CURSOR_EXPIRED")]]

    def work() -> list[int]:
        follower = hivemem.follow(script.address)
        seen = [next(follower).position]
        with pytest.raises(hivemem.CursorExpired):
            next(follower)
        return [*seen, *(episode.position for episode in follower)]

    assert await in_a_thread(work) == [1]


async def test_a_script_that_pauses_between_two_episodes_is_not_cut_off(script: Script) -> None:
    script.streams = [[started(heartbeat=0.1), batch(1), progress(1), Silence()]]
    follower = await in_a_thread(lambda: hivemem.follow(script.address, timeout=0.1))
    assert (await in_a_thread(lambda: next(follower))).position == 1
    with pytest.raises(TimeoutError):
        await in_a_thread(lambda: next(follower))
    await asyncio.sleep(0.5)  # the work of the script, longer than three heartbeats
    with pytest.raises(TimeoutError):
        await in_a_thread(lambda: next(follower))
    await in_a_thread(follower.close)
    assert len(script.requests) == 1


async def test_a_running_event_loop_is_not_blocked_but_told_what_to_use() -> None:
    with pytest.raises(RuntimeError, match="async for episode in memory"):
        hivemem.follow("127.0.0.1:1")
    follower = await asyncio.to_thread(lambda: hivemem.follow("127.0.0.1:1"))
    with pytest.raises(RuntimeError, match="block the event loop"):
        next(follower)


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_bound_that_leaves_no_time_is_a_mistake_of_the_caller(timeout: float) -> None:
    with pytest.raises(ValueError, match="seconds above 0"):
        hivemem.follow("127.0.0.1:1", timeout=timeout)


def test_an_unknown_word_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="sesion"):
        hivemem.follow("127.0.0.1:1", sesion="s")  # type: ignore[call-arg]


SCRIPT = """
import sys
import hivemem

for episode in hivemem.follow(sys.argv[1]):
    print(episode.position, flush=True)
"""


async def test_ctrl_c_ends_a_script_at_once_with_nothing_but_its_own_traceback(script: Script) -> None:
    script.streams = [[started(), batch(1), Silence()]]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-c", SCRIPT, script.address,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(WAIT):
        assert await process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
    assert process.returncode == -signal.SIGINT
    text = said.decode()
    assert text.count("Traceback") == 1
    assert text.rstrip().endswith("KeyboardInterrupt")
    assert "asyncio" not in text
    await ended(script)


async def test_ctrl_c_before_the_wait_begins_leaves_nothing_behind(script: Script) -> None:
    begun: list[Coroutine[Any, Any, object]] = []

    def work() -> None:
        follower = hivemem.follow(script.address)
        run = follower._runner.run

        def interrupted(work: Coroutine[Any, Any, object]) -> object:
            begun.append(work)
            if len(begun) == 1:
                raise KeyboardInterrupt
            return run(work)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(follower._runner, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(follower)

    await in_a_thread(work)
    assert {inspect.getcoroutinestate(work) for work in begun} == {inspect.CORO_CLOSED}


async def test_a_script_that_ends_without_closing_it_ends_quietly(script: Script) -> None:
    script.streams = [[started(), batch(1, 2), Silence()]]
    code = "import sys, hivemem; follower = hivemem.follow(sys.argv[1]); print(next(follower).position)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-c", code, script.address,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(WAIT):
        assert await process.communicate() == (b"1\n", b"")
    assert process.returncode == 0
