from __future__ import annotations

import asyncio
import socket

import grpc
import hivemem
import pytest
from fix_scripted import Refusal, Script

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def test_a_call_is_tried_again_while_the_server_is_unavailable(script: Script) -> None:
    busy = Refusal(code=UNAVAILABLE, reason="OVERLOADED", retry_delay=0.01)
    script.calls = [busy, Refusal(code=UNAVAILABLE), Refusal(code=grpc.StatusCode.CANCELLED), None]
    async with hivemem.Client(script.address) as memory:
        assert (await memory.session("s")).created
    assert script.call_count == 4


async def test_the_last_error_is_raised_when_the_timeout_is_over(script: Script) -> None:
    script.calls = [Refusal(code=UNAVAILABLE, reason="OVERLOADED", retry_delay=0.01)]
    async with hivemem.Client(script.address, timeout=0.3) as memory:
        with pytest.raises(hivemem.Overloaded) as caught:
            await memory.session("s")
    assert caught.value.retry_delay == 0.01
    assert script.call_count > 1


async def test_a_delay_beyond_the_timeout_is_not_waited_for(script: Script) -> None:
    script.calls = [Refusal(code=UNAVAILABLE, reason="OVERLOADED", retry_delay=0.9)]
    async with hivemem.Client(script.address, timeout=0.5) as memory:
        with pytest.raises(hivemem.Overloaded):
            await memory.session("s")
    assert script.call_count == 1


async def test_other_errors_are_raised_at_once(script: Script) -> None:
    script.calls = [Refusal(code=grpc.StatusCode.ALREADY_EXISTS, reason="SESSION_EXISTS")]
    async with hivemem.Client(script.address) as memory:
        with pytest.raises(hivemem.SessionExists, match="refused by the script"):
            await memory.session("s")
    assert script.call_count == 1


async def test_a_method_that_the_server_lacks_is_unimplemented(script: Script) -> None:
    async with hivemem.Client(script.address) as memory:
        with pytest.raises(hivemem.Unimplemented, match=f"{script.address} answered UNIMPLEMENTED: "):
            await memory.stats()


async def test_a_server_that_is_not_there_is_named_with_the_cure() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with hivemem.Client(address, timeout=0.3) as memory:
            with pytest.raises(hivemem.ConnectionFailed, match=f"{address}.*`hivemem serve`") as caught:
                await memory.session("s")
    assert caught.value.reason == "CONNECTION_FAILED"
    assert caught.value.__cause__ is None


async def test_a_server_that_does_not_answer_costs_the_timeout_and_no_more() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        async with hivemem.Client(f"127.0.0.1:{mute.getsockname()[1]}", timeout=0.3) as memory:
            with pytest.raises(hivemem.DeadlineExceeded, match="did not answer in time"):
                await memory.session("s")


async def test_a_closed_client_says_so(script: Script) -> None:
    memory = hivemem.Client(script.address)
    await memory.aclose()
    await memory.aclose()
    with pytest.raises(hivemem.Closed, match="async with"):
        await memory.session("s")


async def test_a_client_that_is_closed_during_a_call_does_not_cancel_the_caller() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        mute.setblocking(False)
        memory = hivemem.Client(f"127.0.0.1:{mute.getsockname()[1]}")
        calling = asyncio.create_task(memory.session("s"))
        await asyncio.get_running_loop().sock_accept(mute)
        await memory.aclose()
        with pytest.raises(hivemem.Closed):
            await calling


async def test_a_cancelled_caller_is_cancelled(script: Script) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        async with hivemem.Client(f"127.0.0.1:{mute.getsockname()[1]}") as memory:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await memory.session("s")


def test_the_address_comes_from_the_environment_and_may_lack_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIVEMEM_ADDRESS", raising=False)
    assert hivemem.Client().address == "127.0.0.1:7400"
    monkeypatch.setenv("HIVEMEM_ADDRESS", "memory.example:9000")
    assert hivemem.Client().address == "memory.example:9000"
    assert hivemem.Client("memory.example").address == "memory.example:7400"
