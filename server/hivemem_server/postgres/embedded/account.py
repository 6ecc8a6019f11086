"""The operating-system account that runs PostgreSQL, and how a program is started under it.

PostgreSQL refuses to run as root, so root lends it a system user without a login. That user can usually not
reach the data directory (under a home, or a temporary directory: all 0700), and opening other people's
parent directories is out of the question. The cure costs nothing: a child changes into the directory while it
is still root and only then becomes the other user. From there `/proc/self/cwd` names the directory without a
walk through its parents, whatever their permissions and however long the path, and the data stay where their
owner expects them.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hivemem_server.postgres.embedded.errors import EmbeddedPostgresError

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICE_USER = "hivemem"
_WORKING_DIRECTORY = Path("/proc/self/cwd")
# Nothing else of ours gets in: no PG* variable that changes a setting, no locale, no secret of the server.
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "NSS_WRAPPER_PASSWD", "NSS_WRAPPER_GROUP")
_BECOME = """
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
os.execv(sys.argv[3], sys.argv[3:])
"""
_NOLOGIN = "/usr/sbin/nologin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user that PostgreSQL may run as."""

    name: str
    uid: int
    gid: int

    def spawn(
        self, command: Sequence[str | Path], *, directory: Path, output: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        """Start a program in `directory` as this user, in its own session: Ctrl-C passes it by."""
        return subprocess.Popen(
            [*self._becoming(), *(os.fspath(part) for part in command)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | {"LC_ALL": "C"},
            umask=0o077,
            start_new_session=True,
        )

    def _becoming(self) -> list[str]:
        """What goes before a command, so that it runs as this user.

        Popen could change the user too, but then it forks this process, whose gRPC threads do not survive that; as it
        is, it only starts another program.
        """
        return [sys.executable, "-IS", "-c", _BECOME, str(self.uid), str(self.gid)] if os.geteuid() == 0 else []

    def own(self, path: Path) -> None:
        """Give this user a file that we have just made."""
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def directory_argument(directory: Path) -> str:
    """How a program started in `directory` names it (see the module's words)."""
    return str(_WORKING_DIRECTORY if _WORKING_DIRECTORY.is_dir() else directory)


def with_real_names(said: str, directory: Path) -> str:
    """What a program that was started in `directory` printed, for people."""
    return said.replace(str(_WORKING_DIRECTORY), str(directory))


def database_account() -> Account:
    """The account to run PostgreSQL as: our own, or a system user, made when missing, when we are root."""
    if os.geteuid() == 0:
        return _service_account()
    try:
        return _account(pwd.getpwuid(os.geteuid()))
    except KeyError:
        raise EmbeddedPostgresError(
            f"User id {os.geteuid()} has no name, which PostgreSQL needs: add it to /etc/passwd, "
            "run as another user, or give a database with --database-url."
        ) from None


def connecting_users(account: Account) -> frozenset[str]:
    """Who may connect: the user that runs the database, and root, which could become any user anyway."""
    return frozenset({account.name, pwd.getpwuid(0).pw_name})


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)


def _service_account() -> Account:
    said = ""
    for _ in range(10):
        try:
            return _account(pwd.getpwnam(SERVICE_USER))
        except KeyError:
            said = _add_service_user()
        time.sleep(0.2 if said else 0)  # two servers may start at once, and /etc/passwd has one lock
    raise EmbeddedPostgresError(
        f"PostgreSQL does not run as root, and the system user {SERVICE_USER!r} cannot be made ({said}): "
        "run hivemem as an ordinary user, or make that user yourself."
    )


def _add_service_user() -> str:
    """Make the user; what went wrong, or nothing."""
    command = _add_user_command()
    if command is None:
        return "neither useradd nor adduser is installed"
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    return done.stderr.strip() if done.returncode else ""


def _add_user_command() -> list[str] | None:
    if useradd := shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin"):
        options = ["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent", "--shell", _NOLOGIN]
        return [useradd, *options, SERVICE_USER]
    if adduser := shutil.which("adduser", path="/usr/sbin:/sbin:/usr/bin:/bin"):  # BusyBox
        return [adduser, "-S", "-D", "-H", "-h", "/nonexistent", "-s", _NOLOGIN, SERVICE_USER]
    return None
