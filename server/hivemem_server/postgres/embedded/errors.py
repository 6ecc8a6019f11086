"""What can go wrong with the embedded database, said in one sentence with its cure."""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class EmbeddedPostgresError(Exception):
    """The embedded database cannot serve.

    `str()` is one line: what is wrong and what to do. `detail` may hold the end of PostgreSQL's log.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class DataDirectoryInUse(EmbeddedPostgresError):
    """Another server holds the data directory; `pid` names it, or is None when it has not said so yet."""

    def __init__(self, data_dir: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"The data directory {data_dir} is in use by {holder}: use that server, stop it, "
            "or choose another directory with --data-dir."
        )
        self.data_dir = data_dir
        self.pid = pid


# What PostgreSQL's programs print (always in English: the locale in account.py) → what to do about it.
_CURES = (
    ("No space left on device", "The disk is full: free some space and start again."),
    ("Check free disk space", "The disk is full: free some space and start again."),
    ("Disk quota exceeded", "The disk quota is used up: free some space and start again."),
    ("Read-only file system", "The file system is read-only: choose another directory with --data-dir."),
    ("Permission denied", "Give hivemem's user access to it, or choose another directory with --data-dir."),
    ("effective user ID", "The user id has no name: add it to /etc/passwd, or run as another user."),
    ("shared memory block", "Another PostgreSQL still runs on this directory: stop it, then start again."),
    ("Cannot allocate memory", "There is too little memory: free some and start again."),
    ("pg_control", "The directory is damaged: restore a backup, or choose another with --data-dir."),
    ("checkpoint record", "The directory is damaged: restore a backup, or choose another with --data-dir."),
)
_SERIOUS = re.compile(r"(?:PANIC|FATAL|ERROR|error):\s+(?!\s|the database system is )(.+)")
_DETAIL_LINES = 20


def failure_of(action: str, output: str, *, log: Path | None = None) -> EmbeddedPostgresError:
    """The error for a PostgreSQL program that failed at `action`, explained by what it printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = (_SERIOUS.findall(output) or lines[-1:] or ["it said nothing"])[0]  # the first is the cause
    otherwise = f"See {log}." if log else "Choose another directory with --data-dir."
    cure = next((cure for text, cure in _CURES if text in output), otherwise)
    return EmbeddedPostgresError(
        f"PostgreSQL failed to {action}: {said.strip().rstrip('.')}. {cure}", detail="\n".join(lines[-_DETAIL_LINES:])
    )


@contextmanager
def explaining(action: str, path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise EmbeddedPostgresError(f"Cannot {action} {path}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full. Free some space and start again."
    return f"{(error.strerror or str(error)).lower()}. Choose another directory with --data-dir."
