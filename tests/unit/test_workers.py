"""The parent of workers, with processes that behave badly in their place; and the port that it holds for them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hivemem_server import workers
from hivemem_server.bootstrap import ReadyDatabase, StartError
from hivemem_server.postgres.embedded import cluster
from hivemem_server.rpc.server import AddressError, reserved_port
from hivemem_server.settings import EMBEDDED_CONNECTIONS, Settings
from hivemem_server.worker import Job
from hivemem_server.workers import Worker, WorkerFailed
from pydantic import SecretStr

WAIT = 30.0
SERVES = 'import sys, time, signal; print(\'{"serves": "words"}\', flush=True);'
HOST = "127.0.0.1"


@pytest.fixture
def job() -> Job:
    settings = Settings(
        port=1, data_dir=Path("/nowhere"), database_url=SecretStr("postgresql://u:p@h/d"), embedding_key=SecretStr("k")
    )
    return Job(settings=settings, database=ReadyDatabase(url="u", where="w", embedded=False), log_level="INFO")


def behaves(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Workers run this code instead."""
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, "-c", code))
    monkeypatch.setattr(workers, "BEAT_SECONDS", 0.02)


async def test_a_job_reaches_the_worker_whole(job: Job) -> None:
    assert Job.read(job.line()) == job


async def test_a_worker_that_says_nothing_any_more_hangs_though_it_lives(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaves(monkeypatch, SERVES + "time.sleep(600)")
    async with asyncio.timeout(WAIT):
        worker = await Worker.start(job)
        assert await worker.serves() == "words"
        with pytest.raises(WorkerFailed, match="hangs"):
            await worker.fails()
        os.kill(worker.pid, 0)  # it lives
        await worker.stop(0)
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)


async def test_a_worker_that_does_not_drain_is_killed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    behaves(monkeypatch, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVES + "time.sleep(600)")
    async with asyncio.timeout(WAIT):
        worker = await Worker.start(job)
        await worker.serves()
        await worker.stop(0.1)
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            await worker.fails()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "exit code 3 while it started"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL while it started"),
    ],
)
async def test_a_worker_that_dies_before_it_serves_ends_the_start(
    job: Job, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    behaves(monkeypatch, code)
    places = [workers._Place(job) for _ in range(2)]
    with pytest.raises(StartError, match=said):
        await workers._all_filled(places)
    await workers._all_emptied(places)


async def test_a_worker_that_never_serves_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    behaves(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(workers, "START_SECONDS", 0.1)
    worker = await Worker.start(job)
    with pytest.raises(WorkerFailed, match="did not start"):
        await worker.serves()
    await worker.stop(0)


async def test_a_process_that_cannot_be_started_is_a_failure_like_others(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "COMMAND", ("/nowhere/python",))
    with pytest.raises(WorkerFailed, match="cannot be started"):
        await Worker.start(job)


def test_a_reserved_port_is_kept_from_everybody_but_workers() -> None:
    with reserved_port(HOST, 0) as port:
        for reuse_address in (0, 1):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
                with pytest.raises(OSError, match="in use"):
                    other.bind((HOST, port))
        with pytest.raises(AddressError, match=str(port)), reserved_port(HOST, port):
            pass
        with socket.socket() as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            worker.bind((HOST, port))


def test_of_two_that_reserve_a_port_at_the_same_moment_one_gets_it() -> None:
    both = threading.Barrier(2, timeout=WAIT)

    def reserve(port: int) -> bool:
        both.wait()
        try:
            with reserved_port(HOST, port):
                both.wait()
        except AddressError:
            both.wait()
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for _ in range(200):
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                port = probe.getsockname()[1]
            assert sorted(pool.map(reserve, [port] * 2)) == [False, True]


def test_who_holds_a_port_gets_no_connection() -> None:
    with reserved_port(HOST, 0) as port:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))
        with socket.socket() as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            worker.bind((HOST, port))
            worker.listen()
            for _ in range(50):
                with socket.create_connection((HOST, port), timeout=WAIT):
                    worker.accept()[0].close()


def test_a_port_whose_last_connections_have_just_ended_can_be_reserved() -> None:
    with socket.create_server((HOST, 0)) as last:
        port = last.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            last.accept()[0].close()  # the side that closes first remembers the connection for a minute
            client.recv(1)
    with reserved_port(HOST, port) as reserved:
        assert reserved == port


def test_a_system_without_shared_ports_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(AddressError, match="--workers"), reserved_port(HOST, 0):
        pass


def test_the_embedded_database_has_the_connections_that_workers_may_have() -> None:
    assert int(cluster._SETTINGS["max_connections"]) > EMBEDDED_CONNECTIONS
