"""PGDATA: made whole or not at all, checked before use, configured anew at every start."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hivemem_server.postgres.embedded.account import Account, connecting_users, directory_argument, with_real_names
from hivemem_server.postgres.embedded.errors import EmbeddedPostgresError, explaining, failure_of
from hivemem_server.postgres.embedded.waiting import holds_within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hivemem_server.postgres.embedded.binaries import Binaries
    from hivemem_server.postgres.embedded.directory import DataDirectory

ROLE = "hivemem"  # the only role, a superuser: the database is ours alone, and the migrations make an extension
_UNFINISHED = "postgres.new-"
_INITDB_SECONDS = 300
_MIB = 1024 * 1024
# The builtin provider (PostgreSQL 17 and later) sorts alike on every platform and in every version.
_INITDB = [
    f"--username={ROLE}",
    "--auth=peer",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--data-checksums",
]
_SETTINGS = {
    "listen_addresses": "''",  # no TCP
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "work_mem": "8MB",
    "random_page_cost": "1.1",
    "jit": "off",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    "lc_messages": "'C'",
    "logging_collector": "off",
    "log_destination": "'stderr'",
    "log_checkpoints": "off",
    "log_line_prefix": "'%m [%p] '",
    "cluster_name": "'hivemem'",
}


def is_missing(cluster: Path) -> bool:
    """Whether there is nothing to use or to lose at this place."""
    return not os.path.lexists(cluster) or (cluster.is_dir() and not any(cluster.iterdir()))


def check(cluster: Path, account: Account, binaries: Binaries) -> None:
    """Refuse what is not a database of ours, of this version and of this account, each with its cure."""
    _check_owner(cluster, account)
    version_file = cluster / "PG_VERSION"
    if not version_file.is_file():
        raise EmbeddedPostgresError(
            f"{cluster} is not a PostgreSQL data directory: move it away, or choose another with --data-dir."
        )
    major = version_file.read_text(errors="replace").strip()
    if major != binaries.major:
        raise EmbeddedPostgresError(
            f"{cluster} was made by PostgreSQL {major:.20}, and this hivemem brings {binaries.version}: "
            "move the data with pg_dump and the hivemem that made them, or choose another with --data-dir."
        )


def _check_owner(cluster: Path, account: Account) -> None:
    owner = cluster.stat().st_uid
    if owner != account.uid:
        raise EmbeddedPostgresError(
            f"{cluster} belongs to {_name_of(owner)}, and PostgreSQL would run as {account.name}: "
            f"run hivemem as its owner, or give it away: chown -R {account.name} {cluster}."
        )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"


async def create(data: DataDirectory, account: Account, binaries: Binaries) -> None:
    """Make PGDATA beside its place and rename it there: a kill at any moment leaves nothing half-made."""
    clear_unfinished(data)
    with explaining("write in", data.root):
        scratch = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=data.root))
    try:
        account.own(scratch)
        await _initdb(scratch, account, binaries)
        with explaining("write", data.cluster):
            _publish(scratch, data)
    finally:
        clear_unfinished(data)


def _publish(scratch: Path, data: DataDirectory) -> None:
    with (scratch / "postgresql.conf").open("a") as file:
        file.write("\ninclude 'hivemem.conf'\n# Settings below this line win over hivemem's.\n")
    scratch.rename(data.cluster)
    _sync(data.root)


def clear_unfinished(data: DataDirectory) -> None:
    """Remove what a killed start left half-made."""
    for path in data.root.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


async def _initdb(directory: Path, account: Account, binaries: Binaries) -> None:
    with tempfile.TemporaryFile() as output:
        command: list[str | Path] = [binaries.program("initdb"), "-D", directory_argument(directory), *_INITDB]
        child = account.spawn(command, directory=directory, output=output.fileno())
        try:
            await holds_within(_INITDB_SECONDS, lambda: child.poll() is not None)
        finally:
            if child.poll() is None:  # cancelled, or without end
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if child.returncode != 0:
            output.seek(0)
            said = with_real_names(output.read().decode(errors="replace"), directory)
            raise failure_of("make the database", said)


def _sync(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def configure(cluster: Path, account: Account, *, socket: Path, settings: Mapping[str, str]) -> None:
    """Write our settings, who may connect (nobody but us, over the socket), and strict permissions."""
    ours = _SETTINGS | _memory_settings() | {"unix_socket_directories": f"'{socket}'"} | dict(settings)
    lines = [f"{name} = {value}" for name, value in ours.items()]
    users = sorted(connecting_users(account))
    with explaining("configure", cluster):
        cluster.chmod(0o700)
        _write(cluster / "hivemem.conf", lines, account)
        _write(cluster / "pg_hba.conf", [f"local all {ROLE} peer map=hivemem"], account)
        _write(cluster / "pg_ident.conf", [f'hivemem "{user}" {ROLE}' for user in users], account)


def _write(path: Path, lines: list[str], account: Account) -> None:
    write_owned(path, "\n".join(["# Written by hivemem at every start.", *lines, ""]), account)


def write_owned(path: Path, text: str, account: Account) -> None:
    """Replace a file inside PGDATA. Never through a link that its owner could have laid for root."""
    file, name = tempfile.mkstemp(prefix="hivemem-", dir=path.parent)
    try:
        with os.fdopen(file, "w") as stream:
            stream.write(text)
        account.own(Path(name))
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _memory_settings() -> dict[str, str]:
    memory = _memory_mib()
    return {
        "shared_buffers": f"{min(512, max(64, memory // 8))}MB",
        "effective_cache_size": f"{max(256, memory // 2)}MB",
        "maintenance_work_mem": f"{min(512, max(64, memory // 32))}MB",
    }


def _memory_mib() -> int:
    """The machine's memory, or the container's when it is given less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        machine = min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return machine // _MIB
