"""Several server processes on one port: their parent starts them, watches them, replaces those that fail, ends them.

The parent holds the port, on which it never listens, and owns the embedded database. Each worker is a whole server. It
tells its parent every second, on a pipe, that its event loop turns, because a health check by way of a shared port
reaches any of them. One that dies, or is silent for SILENT_BEATS, is replaced; the others serve meanwhile. One that is
left without its parent drains and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, Self

import structlog

from hivemem_server.bootstrap import Progress, Running, StartError, ready_database, start_errors
from hivemem_server.duties import Duties
from hivemem_server.rpc.server import reserved_port
from hivemem_server.settings import Settings
from hivemem_server.worker import BEAT_SECONDS, Job

_log = structlog.get_logger()

# -P: the folder the server was started in must not shadow modules of the worker.
COMMAND = (sys.executable, "-P", "-m", "hivemem_server.worker")

START_SECONDS = 120.0
SILENT_BEATS = 5
END_SECONDS = 8.0  # besides what calls under way are given
STEADY_SECONDS = 60.0  # one that served for so long is replaced at once when it fails
PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # before one is started that failed again and again


@contextlib.asynccontextmanager
async def running_workers(settings: Settings, log_level: str, progress: Progress) -> AsyncIterator[Running]:
    """As many servers as the settings say, while the context is open; they drain when it is left. Raises StartError."""
    async with contextlib.AsyncExitStack() as stack:
        with start_errors():
            port = stack.enter_context(reserved_port(settings.host, settings.port))
        database = await stack.enter_async_context(ready_database(settings, progress))
        progress(f"starting {settings.workers} workers")
        job = Job(settings=settings.model_copy(update={"port": port}), database=database, log_level=log_level)
        places = [_Place(job) for _ in range(settings.workers)]
        stack.push_async_callback(_all_emptied, places)
        embedders = await _all_filled(places)
        pids = tuple(place.pid for place in places)
        duties = Duties()
        stack.push_async_callback(duties.end)
        for place in places:
            duties.begin("workers", place.keep_filled)
        yield Running(
            host=settings.host,
            port=port,
            database=database.where,
            database_url=database.url,
            embedder=embedders[0],
            workers=pids,
        )


async def _all_filled(places: list[_Place]) -> list[str]:
    """Fills them at once; the first that fails ends it."""
    filling = [asyncio.create_task(place.fill()) for place in places]
    try:
        return await asyncio.gather(*filling)
    except WorkerFailed as failure:
        raise StartError(f"a worker process {failure}: see what it printed") from failure
    finally:
        for task in filling:
            task.cancel()
        await asyncio.gather(*filling, return_exceptions=True)


async def _all_emptied(places: list[_Place]) -> None:
    await asyncio.gather(*(place.empty() for place in places))


class WorkerFailed(Exception):
    """A worker died, hangs, or does not start; the message is a clause that says which."""


class _Place:
    """The place of one worker, which one process after the other takes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._worker: Worker | None = None
        self._failures = 0

    @property
    def pid(self) -> int:
        """The process there, 0 if there is none."""
        return self._worker.pid if self._worker else 0

    async def fill(self) -> str:
        """Starts a process and waits until it serves; returns what it says of its embedder.

        Raises StartError with its reason if it refuses to start, WorkerFailed if it does not start for none.
        """
        self._worker = await Worker.start(self._job)
        return await self._worker.serves()

    async def keep_filled(self) -> None:
        """Replaces each process that fails, for ever."""
        while True:
            try:
                await self._hold()
            except (WorkerFailed, StartError) as failure:
                pause = PAUSES[min(self._failures, len(PAUSES) - 1)]
                self._failures += 1
                _log.error(
                    "a worker failed; another is started", pid=self.pid, reason=str(failure), pause_seconds=pause
                )
                await self.empty(patience=0.0)
                await asyncio.sleep(pause)

    async def _hold(self) -> None:
        """Fills the place if it is empty; raises when its process fails."""
        if self._worker is None:
            await self.fill()
            _log.info("a worker serves in the place of one that failed", pid=self.pid)
        assert self._worker is not None
        began = asyncio.get_running_loop().time()
        try:
            await self._worker.fails()
        finally:
            if asyncio.get_running_loop().time() - began > STEADY_SECONDS:
                self._failures = 0

    async def empty(self, patience: float | None = None) -> None:
        """Ends the process: it drains, within `patience` seconds if they are given."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop(self._job.settings.drain_seconds + END_SECONDS if patience is None else patience)


class Worker:
    """One worker process, as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._silent_beats = 0
        self._serves: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serves.add_done_callback(lambda serves: serves.exception())  # nobody may be there to hear of it
        self._exit = asyncio.create_task(process.wait(), name="worker's exit")
        self._listening = asyncio.create_task(self._listen(), name="worker's reports")

    @classmethod
    async def start(cls, job: Job) -> Self:
        """Starts a process with a job."""
        pipe = asyncio.subprocess.PIPE
        # In a group of its own, so that Ctrl-C is the parent's; in the parent's session, where a niceness counts.
        try:
            process = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, process_group=0)
        except OSError as error:
            raise WorkerFailed(f"cannot be started ({error})") from error
        assert process.stdin is not None
        process.stdin.write(job.line())
        return cls(process)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def serves(self) -> str:
        """Waits until it serves; returns what it says of its embedder. Raises StartError, WorkerFailed."""
        either: set[asyncio.Future[Any]] = {self._serves, self._listening}
        await asyncio.wait(either, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self._serves.done():
            return self._serves.result()
        if self._listening.done():
            raise WorkerFailed(f"{_how(await self._exit)} while it started")
        raise WorkerFailed(f"did not start within {START_SECONDS:g} s")

    async def fails(self) -> None:
        """Raises WorkerFailed when it dies, or when it hangs.

        Time is counted in turns of this event loop, so that a parent that was stopped for a while blames nobody.
        """
        while not self._exit.done():
            if self._silent_beats > SILENT_BEATS:
                raise WorkerFailed(f"hangs: its event loop has not turned for {SILENT_BEATS * BEAT_SECONDS:g} s")
            self._silent_beats += 1
            await asyncio.wait({self._exit}, timeout=BEAT_SECONDS)
        raise WorkerFailed(_how(self._exit.result()))

    async def stop(self, patience: float) -> None:
        """Lets it drain for so many seconds, then kills it."""
        if patience:
            self._send(signal.SIGTERM)
            await asyncio.wait({self._exit}, timeout=patience)
        if not self._exit.done():
            if patience:
                _log.error("a worker does not end; it is killed", pid=self.pid)
            self._send(signal.SIGKILL)
        await asyncio.wait({self._exit, self._listening})

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _listen(self) -> None:
        reports = self._process.stdout
        assert reports is not None
        async for line in reports:
            self._silent_beats = 0
            report = json.loads(line)
            if "refuses" in report:
                self._serves.set_exception(StartError(report["refuses"]))
            if "serves" in report:
                self._serves.set_result(report["serves"])


def _how(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
