"""One of several server processes on one port: `python -m hivemem_server.worker`, for its parent alone.

The parent is `hivemem_server.workers`. What it wants done is one line of JSON on standard input, which stays open as
long as the parent lives. The worker tells on standard output, one line of JSON each: that its event loop turns, every
BEAT_SECONDS; that it serves; or why it cannot start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Self

from pydantic import SecretStr

from hivemem_server import logs
from hivemem_server.bootstrap import ReadyDatabase, StartError, run, serving
from hivemem_server.settings import Settings

BEAT_SECONDS = 1.0
LAST_SECONDS = 12.0  # to end in, besides what calls under way are given, when the parent is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker has to do; its line holds secrets."""

    settings: Settings
    database: ReadyDatabase
    log_level: str

    def line(self) -> bytes:
        """The job as one line."""
        revealed = {name: _revealed(value) for name, value in self.settings}
        job = {"settings": revealed, "database": asdict(self.database), "log_level": self.log_level}
        return json.dumps(job, default=str).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """The job of a line."""
        job = json.loads(line)
        settings, database = Settings(**job["settings"]), ReadyDatabase(**job["database"])
        return cls(settings=settings, database=database, log_level=job["log_level"])


def _revealed(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


class Parent:
    """Who hears what this process tells."""

    def __init__(self) -> None:
        """Standard output is for the parent alone from now on: what else is printed goes to standard error."""
        self._output = os.dup(1)
        os.dup2(2, 1)
        os.set_blocking(self._output, False)

    def tell(self, **report: Any) -> None:
        """Tells it, and never waits: a parent that is stopped, or gone, holds nobody up."""
        with contextlib.suppress(OSError):
            os.write(self._output, json.dumps(report).encode() + b"\n")

    async def hears_the_beat(self) -> None:
        """Tells for ever that the event loop turns."""
        while True:
            self.tell()
            await asyncio.sleep(BEAT_SECONDS)


def main() -> int:
    """Serves until the parent wants its end, or is gone; returns the exit status."""
    parent = Parent()
    job = Job.read(sys.stdin.buffer.readline())
    logs.configure(job.log_level, worker=os.getpid())
    return run(_work(job, parent))


async def _work(job: Job, parent: Parent) -> int:
    beating = asyncio.create_task(parent.hears_the_beat())
    stopped = _told_to_stop(job.settings.drain_seconds + LAST_SECONDS)
    try:
        async with serving(job.settings, job.database, shared_port=True) as running:
            parent.tell(serves=running.embedder)
            await stopped.wait()
    except StartError as error:
        parent.tell(refuses=str(error))
        return 1
    finally:
        beating.cancel()
    return 0


def _told_to_stop(seconds: float) -> asyncio.Event:
    """An event that a signal sets, or the parent's end. After the latter the process ends in so many seconds at most,
    also when its event loop does not turn any more: it would keep its share of the port."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)

    def wait_for_the_end() -> None:
        while os.read(0, 1):
            pass
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(stopped.set)
        time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=wait_for_the_end, name="parent", daemon=True).start()
    return stopped


if __name__ == "__main__":
    sys.exit(main())
