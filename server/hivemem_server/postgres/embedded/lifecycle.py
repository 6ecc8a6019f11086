"""The life of the embedded database, from an empty directory to an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import TYPE_CHECKING, Self

import psycopg
import structlog
from psycopg import sql
from psycopg.pq import Ping

from hivemem_server.postgres.embedded import cluster, postmaster
from hivemem_server.postgres.embedded.account import Account, database_account, with_real_names
from hivemem_server.postgres.embedded.binaries import Binaries, find_binaries
from hivemem_server.postgres.embedded.directory import (
    DataDirectory,
    clear_socket_directory,
    remove_socket_directory,
    socket_directory,
)
from hivemem_server.postgres.embedded.errors import EmbeddedPostgresError, explaining, failure_of
from hivemem_server.postgres.embedded.postmaster import PidFile, Postmaster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from pathlib import Path
    from types import TracebackType

DATABASE = "hivemem"
_READY_SECONDS = 600.0  # recovery after a kill replays the log since the last checkpoint
_SILENCE_SECONDS = 2.0  # how long a live process may answer nothing before it is taken for somebody else
_ORPHANS_SECONDS = 90.0  # a postmaster that lost its pid file ends itself within a minute
_WATCH_SECONDS = 0.25
_STEADY_SECONDS = 60.0
_LONGEST_PAUSE = 5.0

_STILL_IN_USE = ("pre-existing shared memory block", 'lock file "postmaster.pid" already exists')

logger = structlog.get_logger(__name__)


class EmbeddedPostgres:
    """A PostgreSQL of our own in `data_dir`, serving while the context is open.

    Entering makes the database when there is none, adopts the postmaster that a killed server left running,
    and waits for recovery; it raises EmbeddedPostgresError, or DataDirectoryInUse when another server holds
    the directory. Inside, a postmaster that dies is started again at the same `url`. Leaving stops it,
    whoever started it; it takes `stop_patience` and 3 seconds at most.

    `progress` is told of each step in a sentence; nothing is printed. `settings` are added to the
    configuration that the next start of the postmaster reads (as in postgresql.conf). `package` replaces the wheel.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        progress: Callable[[str], None] | None = None,
        settings: Mapping[str, str] | None = None,
        stop_patience: float = 6.0,
        package: Path | None = None,
    ) -> None:
        self._path = data_dir
        self._progress = progress or (lambda _: None)
        self._settings = dict(settings or {})
        self._stop_patience = stop_patience
        self._package = package
        self._exits = contextlib.AsyncExitStack()
        self._postmaster: Postmaster | None = None
        self._started = 0.0
        self._adopted = False
        self._version = ""
        self._told: set[str] = set()  # what the log was told since PostgreSQL died
        self._data: DataDirectory
        self._account: Account
        self._binaries: Binaries
        self._socket: Path

    @property
    def url(self) -> str:
        """Where the database `hivemem` is: a libpq URL of a unix socket, without a secret.

        This user's processes can use it (and root's); nobody else's can.
        """
        return postmaster.url_of(self._socket, DATABASE)

    @property
    def adopted(self) -> bool:
        """Whether the postmaster was found running when the context was entered."""
        return self._adopted

    @property
    def version(self) -> str:
        """PostgreSQL's version, such as "18.6"."""
        return self._version

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None between its death and its return."""
        running = self._postmaster is not None and self._postmaster.is_running()
        return self._postmaster.pid if self._postmaster and running else None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as exits:
            exits.enter_context(explaining("use the data directory", self._path))
            self._data = DataDirectory.open(self._path)
            exits.enter_context(self._data.locked())
            await self._prepare()
            exits.push_async_callback(self._stop)
            await self._find_or_start()
            self._adopted = self._postmaster is not None and self._postmaster.child is None
            await self._prepare_database()
            await exits.enter_async_context(_background(self._watch()))
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    async def _prepare(self) -> None:
        self._account = await asyncio.to_thread(database_account)
        self._binaries = await asyncio.to_thread(find_binaries, self._account, self._package)
        if cluster.is_missing(self._data.cluster):
            self._progress(f"making a database in {self._data.root}")
            await cluster.create(self._data, self._account, self._binaries)
        cluster.clear_unfinished(self._data)
        cluster.check(self._data.cluster, self._account, self._binaries)
        self._socket = socket_directory(self._data, self._account)

    async def _find_or_start(self) -> None:
        """Serve, by the postmaster that a killed server left or by a new one, however long recovery takes."""
        began = time.monotonic()
        while True:
            if found := await self._find_running():
                self._progress(f"PostgreSQL is running already (process {found.pid})")
                self._socket, self._postmaster = found.socket, Postmaster(pid=found.pid)
                self._started = time.monotonic()
                return
            if await self._start(patient=time.monotonic() - began < _ORPHANS_SECONDS):
                return
            await asyncio.sleep(0.25)

    async def _find_running(self) -> PidFile | None:
        """The postmaster on this directory, once it serves; None when there is none, or when it has ended."""
        asked = heard = time.monotonic()
        while (found := PidFile.read(self._data.cluster)) and found.may_be_alive():
            answer, now = await postmaster.ping(found.socket), time.monotonic()
            if answer == Ping.OK and await postmaster.serves(found.socket, self._data.cluster, self._account):
                return found
            heard = now if answer == Ping.REJECT else heard  # it starts up, or shuts down
            if now - heard > _SILENCE_SECONDS:
                # The process is somebody else, to whom the id came again. PostgreSQL would refuse to start
                # over this file. Were it ours after all, its shared memory still keeps a second one away.
                postmaster.forget(self._data.cluster)
            if now - asked > _READY_SECONDS:
                raise self._too_slow()
            await asyncio.sleep(0.25)
        return None

    async def _start(self, *, patient: bool) -> bool:
        """True when a new one serves; False when another, or what is left of one, has to end first."""
        self._progress(f"starting PostgreSQL {self._binaries.version}")
        place = self._data.log.size()
        self._postmaster = self._spawn()
        self._started = time.monotonic()
        if await self._serves_at_last(self._postmaster):
            return True
        said = self._data.log.since(place)
        if patient and any(words in said for words in _STILL_IN_USE):
            return False
        raise failure_of("start", with_real_names(said, self._data.cluster), log=self._data.log.path)

    def _spawn(self) -> Postmaster:
        data, account = self._data, self._account
        self._socket = socket_directory(data, account)  # it may have been swept away meanwhile
        with explaining("start PostgreSQL in", data.root):
            clear_socket_directory(self._socket)
            cluster.configure(data.cluster, account, socket=self._socket, settings=self._settings)
            return postmaster.spawn(data, account, self._binaries)

    async def _serves_at_last(self, started: Postmaster) -> bool:
        told = began = time.monotonic()
        while started.is_running():
            answer, now = await postmaster.ping(self._socket), time.monotonic()
            if answer == Ping.OK:
                return True
            if now - began > _READY_SECONDS:
                raise self._too_slow()
            if now - told > 5:
                self._progress(f"PostgreSQL is recovering from an unclean stop ({now - began:.0f} s)")
                told = now
            await asyncio.sleep(0.02 if now - began < 1 else 0.5)
        return False

    def _too_slow(self) -> EmbeddedPostgresError:
        return EmbeddedPostgresError(
            f"PostgreSQL did not come up in {_READY_SECONDS:.0f} s: see {self._data.log.path}, then try again."
        )

    async def _prepare_database(self) -> None:
        try:
            async with await postmaster.connect(self._socket) as connection:
                self._version = str(connection.info.parameter_status("server_version")).split()[0]
                cursor = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
                if await cursor.fetchone() is None:
                    await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        except psycopg.Error as error:
            raise failure_of("open the database", str(error), log=self._data.log.path) from error

    async def _watch(self) -> None:
        """Bring back a postmaster that dies, ever more slowly when it keeps dying; keep the log bounded."""
        pause = 0.0
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with contextlib.suppress(OSError):
                self._data.log.trim()
            if self._postmaster is not None and self._postmaster.is_running():
                continue
            if time.monotonic() - self._started > _STEADY_SECONDS:
                pause = 0.0
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, max(0.5, pause * 2))
            await self._revive()

    async def _revive(self) -> None:
        self._progress("PostgreSQL has died; starting it again")
        if self._is_news("it died"):
            logger.warning("postgres_died", data_dir=str(self._data.root), log=str(self._data.log.path))
        try:
            await self._find_or_start()
        except (EmbeddedPostgresError, OSError) as error:
            if self._is_news(str(error)):
                detail = getattr(error, "detail", "")
                logger.error("postgres_restart_failed", error=str(error), detail=detail, trying_again=True)
        else:
            self._told.clear()
            self._progress("PostgreSQL is back")
            logger.info("postgres_restarted", pid=self.pid)

    def _is_news(self, what: str) -> bool:
        """Whether the log has not been told since PostgreSQL died, of this process or of another."""
        what = re.sub(r"\d+", "", what)
        known = what in self._told
        self._told.add(what)
        return not known

    async def _stop(self) -> None:
        if self._postmaster is not None:
            await self._postmaster.stop(self._stop_patience)
        remove_socket_directory(self._socket)


@contextlib.asynccontextmanager
async def _background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run `work` beside the context and end it with the context."""
    task = asyncio.create_task(work, name="embedded-postgres-watch")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
