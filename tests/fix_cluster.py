"""A PostgreSQL of a test's own, on a port of its own: stopped, killed, started and promoted when the test says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest_asyncio
from fix_postgres import FAST
from hivemem_server.postgres.embedded import cluster as pgdata
from hivemem_server.postgres.embedded import postmaster
from hivemem_server.postgres.embedded.account import database_account, directory_argument
from hivemem_server.postgres.embedded.binaries import find_binaries
from hivemem_server.postgres.embedded.directory import DataDirectory, remove_socket_directory, socket_directory
from hivemem_server.postgres.embedded.postmaster import Postmaster
from hivemem_server.postgres.embedded.waiting import holds_within
from psycopg.pq import PGconn, Ping

WAIT = 30.0
FAST_STOP, IMMEDIATE_STOP, KILL = signal.SIGINT, signal.SIGQUIT, signal.SIGKILL
_EVERYBODY = "local all all trust\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"


class Cluster:
    """One data directory and, while it runs, its postmaster."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = _free_port()
        self._data = DataDirectory.open(root)
        self._account = database_account()
        self._binaries = find_binaries(self._account)
        self._postmaster: Postmaster | None = None

    @property
    def url(self) -> str:
        """Where it is, running or not."""
        return f"postgresql://{pgdata.ROLE}@127.0.0.1:{self.port}/postgres"

    @property
    def target(self) -> str:
        """Where it is, for a proxy."""
        return f"127.0.0.1:{self.port}"

    async def make(self) -> None:
        """Makes an empty one."""
        await pgdata.create(self._data, self._account, self._binaries)

    async def start(self, **settings: str) -> None:
        """Serves. What a killed one left behind may have to end first."""
        async with asyncio.timeout(WAIT):
            while not await self._starts(settings):  # noqa: ASYNC110 - another process ends
                await asyncio.sleep(0.1)

    async def stop(self, how: signal.Signals = FAST_STOP) -> None:
        """Ends the postmaster."""
        if self._postmaster is not None and self._postmaster.is_running():
            os.kill(self._postmaster.pid, how)
            assert await holds_within(WAIT, lambda: not self._running)
        postmaster.forget(self._data.cluster)

    async def close(self) -> None:
        """Leaves nothing behind."""
        await self.stop(IMMEDIATE_STOP)
        remove_socket_directory(self._socket)

    async def tell(self, statement: LiteralString, *params: object) -> list[tuple[Any, ...]]:
        """What a statement answers, in a session of its own."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            cursor = await connection.execute(statement, params or None)
            return await cursor.fetchall() if cursor.description else []

    @contextlib.asynccontextmanager
    async def standby(self, root: Path) -> AsyncIterator[Cluster]:
        """A copy that follows this one, serves reads, and can be promoted."""
        copy = Cluster(root)
        try:
            await self._copy_to(copy)
            await copy.start()
            yield copy
        finally:
            await copy.close()

    async def promote(self) -> None:
        """Makes it a server that takes writes."""
        await self.tell("SELECT pg_promote(wait => true)")

    async def caught_up_with(self, other: Cluster) -> None:
        """Waits until it has all that the other one has written so far."""
        ((place,),) = await other.tell("SELECT pg_current_wal_flush_lsn()::text")
        async with asyncio.timeout(WAIT):
            while (await self.tell("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", place)) != [(True,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    @property
    def _running(self) -> bool:
        return self._postmaster is not None and self._postmaster.is_running()

    @property
    def _socket(self) -> Path:
        return socket_directory(self._data, self._account)

    async def _starts(self, settings: dict[str, str]) -> bool:
        ours = {"listen_addresses": "'127.0.0.1'", "port": str(self.port)}
        pgdata.configure(self._data.cluster, self._account, socket=self._socket, settings=FAST | ours | settings)
        pgdata.write_owned(self._data.cluster / "pg_hba.conf", _EVERYBODY, self._account)
        self._postmaster = postmaster.spawn(self._data, self._account, self._binaries)
        while self._running:
            if await asyncio.to_thread(PGconn.ping, self.url.encode()) == Ping.OK:
                return True
            await asyncio.sleep(0.02)
        return False

    async def _copy_to(self, copy: Cluster) -> None:
        target = copy._data.cluster
        target.mkdir(mode=0o700)
        copy._account.own(target)
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        command: list[str | Path] = [
            self._binaries.program("pg_basebackup"), "-D", directory_argument(target), "-d", self.url, *options
        ]  # fmt: skip
        with copy._data.log.open() as log:
            child = copy._account.spawn(command, directory=target, output=log.fileno())
        assert await asyncio.to_thread(child.wait, WAIT) == 0, copy._data.log.since(0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """An empty one, serving."""
    made = Cluster(tmp_path / "cluster")
    try:
        await made.make()
        await made.start()
        yield made
    finally:
        await made.close()
