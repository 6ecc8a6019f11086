"""One running postmaster: found or started, asked whether it serves, and stopped."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
from psycopg.pq import PGconn, Ping

from hivemem_server.postgres.embedded.account import Account, directory_argument
from hivemem_server.postgres.embedded.cluster import ROLE, write_owned
from hivemem_server.postgres.embedded.waiting import holds_within

if TYPE_CHECKING:
    import subprocess

    from hivemem_server.postgres.embedded.binaries import Binaries
    from hivemem_server.postgres.embedded.directory import DataDirectory

_CONNECT_SECONDS = 10


def url_of(socket: Path, database: str) -> str:
    """Where the database is, for libpq. It holds no secret: the socket knows who connects."""
    return f"postgresql://{ROLE}@/{database}?host={quote(str(socket), safe='/')}&port=5432"


@dataclass(frozen=True, slots=True, kw_only=True)
class PidFile:
    """What `postmaster.pid` says of the process that wrote it, living or dead."""

    pid: int
    socket: Path

    @classmethod
    def read(cls, cluster: Path) -> PidFile | None:
        """The file's content (process 0 when it is unfinished or garbage), or None when there is none."""
        try:
            lines = (cluster / "postmaster.pid").read_text(errors="replace").splitlines()
            return cls(pid=abs(int(lines[0])), socket=Path(lines[4].strip()))
        except FileNotFoundError:
            return None
        except (ValueError, IndexError):
            return cls(pid=0, socket=cluster)

    def may_be_alive(self) -> bool:
        """Whether its writer, or somebody with the same process id, may be running."""
        return self.pid == 0 or process_exists(self.pid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Postmaster:
    """A postmaster that we started (`child`) or adopted (no child)."""

    pid: int
    child: subprocess.Popen[bytes] | None = None

    def is_running(self) -> bool:
        """Whether the process is there."""
        return process_exists(self.pid) if self.child is None else self.child.poll() is None

    async def stop(self, patience: float) -> None:
        """Fast shutdown; after `patience` seconds an immediate one, which costs a recovery later."""
        for number, seconds in ((signal.SIGINT, patience), (signal.SIGQUIT, 2.0), (signal.SIGKILL, 1.0)):
            if self.is_running():
                _send(self.pid, number)
                await holds_within(seconds, lambda: not self.is_running())


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def process_exists(pid: int) -> bool:
    """Whether there is such a process that is not a zombie waiting for a parent that never asks."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or no /proc here
        return True
    return state[0] != "Z"


def forget(cluster: Path) -> None:
    """Drop a pid file whose writer is gone."""
    (cluster / "postmaster.pid").unlink(missing_ok=True)


def spawn(data: DataDirectory, account: Account, binaries: Binaries) -> Postmaster:
    """Start a postmaster on the directory."""
    command: list[str | Path] = [binaries.program("postgres"), "-D", directory_argument(data.cluster)]
    with data.log.open() as log:
        child = account.spawn(command, directory=data.cluster, output=log.fileno())
    return Postmaster(pid=child.pid, child=child)


async def ping(socket: Path) -> Ping:
    """Whether a server answers there, and whether it takes connections already."""
    conninfo = f"{url_of(socket, 'postgres')}&connect_timeout=5"
    return Ping(await asyncio.to_thread(PGconn.ping, conninfo.encode()))


async def connect(socket: Path) -> psycopg.AsyncConnection[tuple[object, ...]]:
    """A connection for the life cycle's own few questions."""
    return await psycopg.AsyncConnection.connect(
        url_of(socket, "postgres"), autocommit=True, connect_timeout=_CONNECT_SECONDS
    )


async def serves(socket: Path, cluster: Path, account: Account) -> bool:
    """Whether the server behind `socket` works on this very directory.

    Process ids and paths prove nothing (ids come again, directories are copied while they are in use); that
    it can read what we have just written there does.
    """
    token, path = secrets.token_hex(16), cluster / "hivemem.token"
    write_owned(path, token, account)
    try:
        async with await connect(socket) as connection:
            cursor = await connection.execute("SELECT pg_read_file('hivemem.token', 0, 64, true)")
            return await cursor.fetchone() == (token,)
    except psycopg.Error:
        return False
    finally:
        path.unlink(missing_ok=True)
