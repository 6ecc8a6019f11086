"""The test stand: a PostgreSQL with its normal settings, servers and echoes as processes, all ended with the bench."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import psycopg
from hivemem_server.postgres import schema
from hivemem_server.postgres.embedded import EmbeddedPostgres
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .bare_insert import OPEN, RESOLVED, BareLog, Placer, columns
from .talking import LINE_BYTES, Talker
from .texts import Texts

START_SECONDS, END_SECONDS = 60.0, 15.0
LISTENS = re.compile(rb"listens on (\S+)")
MEBIBYTE = 1 << 20
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", 8 * MEBIBYTE),
    ("grpc.max_receive_message_length", 8 * MEBIBYTE),
    ("grpc.use_local_subchannel_pool", 1),  # a channel is a connection
    ("grpc.enable_http_proxy", 0),
]

# How a filled log is shaped: so many sessions at a time, so many episodes in each, of four agents in turn.
PARALLEL_SESSIONS, SESSION_EPISODES, SESSION_AGENTS, AGENTS = 20, 200, 4, 64
FILL_STREAM, FILL_BATCH = 1_000, 1_000
UNFINISHED_EVERY = 10  # every other episode opens a thread; of those every fifth is still open


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A process that answers."""

    address: str
    pid: int


class Stand:
    """What measures need. `full` asks for full counts; `say` and `tick` tell the progress."""

    def __init__(self, postgres_url: str, *, full: bool, say: Callable[[str], None], tick: Callable[[], None]) -> None:
        self._postgres_url = postgres_url
        self._filled: dict[int, str] = {}
        self.full = full
        self.say = say
        self.tick = tick

    def count(self, usual: int, full: int) -> int:
        """How many: full counts take their time."""
        return full if self.full else usual

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """URL of a fresh database with the schema, on the one PostgreSQL of the stand."""
        url = await self._create()
        try:
            yield url
        finally:
            name = str(conninfo_to_dict(url)["dbname"])
            await self._run(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    async def filled(self, count: int) -> str:
        """URL of a database with a log of so many episodes, written as bare rows; made once, used by all measures."""
        if count not in self._filled:
            self.say(f"writing a log of {count:,} episodes")
            url = await self._create()
            await asyncio.to_thread(_fill, url, count, self.tick)
            self._filled[count] = url
        return self._filled[count]

    @contextlib.asynccontextmanager
    async def server(self, database_url: str, *options: str) -> AsyncIterator[str]:
        """Address of `hivemem serve` on a database."""
        async with self.serving(database_url, *options) as served:
            yield served.address

    @contextlib.asynccontextmanager
    async def serving(self, database_url: str, *options: str) -> AsyncIterator[Serving]:
        """`hivemem serve` on a database, for who wants to look at its process as well."""
        arguments = ("-m", "hivemem.cli", "serve", "--port", "0", "--embedder", "none", "--database-url", database_url)
        async with _process(*arguments, *options) as served:
            yield served

    @contextlib.asynccontextmanager
    async def echo(self) -> AsyncIterator[grpc.aio.Channel]:
        """A channel to a bare echo."""
        async with self.bare("bare_echo") as served, channel(served.address) as opened:
            yield opened

    @contextlib.asynccontextmanager
    async def bare(self, module: str) -> AsyncIterator[Serving]:
        """A bare server, by the name of its module."""
        async with _process("-m", f"tests.bench.{module}") as served:
            yield served

    @contextlib.asynccontextmanager
    async def talker(self, module: str, *arguments: str) -> AsyncIterator[Talker]:
        """A process of the bench that answers questions, by the name of its module."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"tests.bench.{module}", *arguments, stdin=pipe, stdout=pipe, limit=LINE_BYTES
        )
        try:
            yield Talker(process)
        finally:
            await _end(process)

    async def _create(self) -> str:
        name = f"bench_{uuid.uuid4().hex[:12]}"
        await self._run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        url = make_conninfo(self._postgres_url, dbname=name)
        await asyncio.to_thread(schema.upgrade, url)
        return url

    async def _run(self, statement: sql.Composed) -> None:
        async with await psycopg.AsyncConnection.connect(self._postgres_url, autocommit=True) as connection:
            await connection.execute(statement)


@contextlib.asynccontextmanager
async def standing(*, full: bool, say: Callable[[str], None], tick: Callable[[], None]) -> AsyncIterator[Stand]:
    """A stand; when it is left, everything has ended and its files are gone."""
    with tempfile.TemporaryDirectory(prefix="hivemem-bench-") as folder:
        say("starting PostgreSQL")
        async with EmbeddedPostgres(Path(folder) / "data") as postgres:
            await _check_durable(postgres.url)
            yield Stand(postgres.url, full=full, say=say, tick=tick)


def channel(address: str, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
    """A connection of its own."""
    return grpc.aio.insecure_channel(address, options=[*CHANNEL_OPTIONS, *options])


async def _check_durable(url: str) -> None:
    """Bare and ours commit to the same PostgreSQL; it must be one whose commits survive a power cut."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            row = await (await connection.execute("SELECT current_setting(%s)", [name])).fetchone()
            assert row == ("on",), f"{name} is {row}"


def _fill(url: str, count: int, tick: Callable[[], None]) -> None:
    texts, placer = Texts(FILL_STREAM), Placer()
    with BareLog(url) as log:
        log.prepare(sessions=-(-count // (PARALLEL_SESSIONS * SESSION_EPISODES)) * PARALLEL_SESSIONS, agents=AGENTS)
        for start in range(0, count, FILL_BATCH):
            numbers = range(start, min(start + FILL_BATCH, count))
            placed = [placer.placed(texts.episode(), *_stream(number), _thread_state(number)) for number in numbers]
            log.insert_many(columns(placed))
            tick()
        log.settle()


def _stream(number: int) -> tuple[int, int]:
    """Session and agent of the episode with this number."""
    block, place = divmod(number, PARALLEL_SESSIONS * SESSION_EPISODES)
    session = block * PARALLEL_SESSIONS + place % PARALLEL_SESSIONS + 1
    turn = place // PARALLEL_SESSIONS % SESSION_AGENTS
    return session, (session * SESSION_AGENTS + turn) % AGENTS + 1


def _thread_state(number: int) -> int:
    return OPEN if number % UNFINISHED_EVERY == 0 else RESOLVED


@contextlib.asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[Serving]:
    """A process that says on stderr where it listens; it is ended, by force if it must be."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={name: value for name, value in os.environ.items() if not name.startswith("HIVEMEM_")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        address = await _address(process)
        reading = asyncio.create_task(_read_on(process))
        yield Serving(address=address, pid=process.pid)
    finally:
        await _end(process)
    await reading


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = b""
    async with asyncio.timeout(START_SECONDS):
        async for line in process.stderr:
            if found := LISTENS.search(line):
                return found[1].decode()
            said += line
    raise RuntimeError(f"a process did not start: {said.decode(errors='replace')}")


async def _read_on(process: asyncio.subprocess.Process) -> None:
    """Keeps the pipe empty, and passes on what is said when something goes wrong."""
    assert process.stderr is not None
    async for line in process.stderr:
        if b"error" in line.lower() or b"warn" in line.lower():
            sys.stderr.buffer.write(line)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
