"""The data directory: what lies where in it, who holds it, and the private directory of its socket.

<data_dir>/lock            held with flock by the server that runs the database; holds its process id
<data_dir>/postgres        PGDATA, owned by the user that runs PostgreSQL
<data_dir>/postgres.log    what PostgreSQL printed; bounded, the part before is in postgres.log.1
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hivemem_server.postgres.embedded.errors import DataDirectoryInUse, EmbeddedPostgresError, explaining

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hivemem_server.postgres.embedded.account import Account

# A socket's whole path has to fit in 104 bytes (macOS) or 108 (Linux); a data directory's path may be longer.
_SOCKETS = Path("/tmp")  # noqa: S108 (our directory in it has mode 0700 and its owner is checked)
_SOCKET_PREFIX = "hivemem-"
_SOCKET_FILES = (".s.PGSQL.5432", ".s.PGSQL.5432.lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDirectory:
    """A directory that exists and that we may write to."""

    root: Path

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Take the directory at `path`, making it (0700) when it is missing."""
        with explaining("use the data directory", path):
            root = path.expanduser().resolve()
            if not root.exists():
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not root.is_dir():
                raise NotADirectoryError(20, "it is not a directory")
        return cls(root=root)

    @property
    def cluster(self) -> Path:
        """PGDATA."""
        return self.root / "postgres"

    @property
    def log(self) -> BoundedLog:
        """What PostgreSQL prints."""
        return BoundedLog(path=self.root / "postgres.log")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory; DataDirectoryInUse when somebody else does. Death releases it, even kill -9."""
        path = self.root / "lock"
        with explaining("lock", path):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(file)
            _held.add(file)
            yield
        finally:
            _held.discard(file)
            os.close(file)

    def _lock(self, file: int) -> None:
        try:
            with explaining("lock", self.root):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except EmbeddedPostgresError as error:
            if isinstance(error.__cause__, BlockingIOError):
                raise DataDirectoryInUse(self.root, _process_id(os.read(file, 32))) from None
            raise
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())


# A forked child would go on holding the lock after its parent's death, so it lets go at once.
_held: set[int] = set()


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


def _process_id(text: bytes) -> int | None:
    return int(text) if text.strip().isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedLog:
    """A file that PostgreSQL appends to and that never grows far beyond `limit` bytes.

    Not PostgreSQL's own collector: that would have to reach the file as its user, and bounds time, not size.
    """

    path: Path
    limit: int = 8 * 1024 * 1024

    def open(self) -> IO[bytes]:
        """The file, to be inherited by PostgreSQL. It appends, so that `trim` may cut the file under it."""
        return os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb", 0)

    def size(self) -> int:
        """How much there is now: a place to read from later."""
        return self.path.stat().st_size if self.path.exists() else 0

    def since(self, place: int) -> str:
        """What was printed after `place` (at most the last 64 KiB)."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(place if place <= end else 0, end - 65536))
            return file.read().decode(errors="replace")

    def trim(self) -> None:
        """Put what there is aside when it is too much. A line printed at this very moment may be lost."""
        if self.size() > self.limit:
            shutil.copyfile(self.path, self.path.with_name(self.path.name + ".1"))
            os.truncate(self.path, 0)


def socket_directory(data: DataDirectory, account: Account) -> Path:
    """A directory with a short path that only `account` (and root) can enter; the same at every start."""
    name = hashlib.sha256(f"{account.uid}:{data.root}".encode()).hexdigest()[:12]
    parent = _SOCKETS if os.access(_SOCKETS, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    path = parent / f"{_SOCKET_PREFIX}{name}"
    with explaining("make the socket directory", path):
        if open_socket_directory(path, account):
            return path
        strange = Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=parent))  # somebody squats on the name
        open_socket_directory(strange, account)
        return strange


def open_socket_directory(path: Path, account: Account) -> bool:
    """Make the directory, or take it when it is there and is ours; False when it is anybody else's."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), account.uid):
        return False
    path.chmod(0o700)
    account.own(path)
    return True


def clear_socket_directory(path: Path) -> None:
    """Drop what a killed PostgreSQL left. Only for a directory whose data nobody serves."""
    for name in _SOCKET_FILES:
        (path / name).unlink(missing_ok=True)


def remove_socket_directory(path: Path) -> None:
    """Leave nothing behind after a stop, of what we made (the database may have been started by hand)."""
    if not path.name.startswith(_SOCKET_PREFIX):
        return
    with contextlib.suppress(OSError):
        clear_socket_directory(path)
        path.rmdir()
