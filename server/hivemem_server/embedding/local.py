"""The default embedder: a small model that comes with the installation and needs no network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import structlog

from hivemem_server.domain.embedder import EmbeddingModel
from hivemem_server.domain.errors import EmbedderUnavailable
from hivemem_server.domain.tokens import estimated_tokens
from hivemem_server.embedding.minilm import MAX_CHARACTERS, MAX_TOKENS, MODEL
from hivemem_server.embedding.waiting_line import WaitingLine
from hivemem_server.embedding.worker_process import COMMAND, WorkerFailed, WorkerProcess

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0
_TOKENS_AROUND = 2

log = structlog.get_logger(__name__)


class LocalEmbedder:
    """An Embedder whose model runs in a process of its own, at the lowest priority.

    Opening starts the process and does not wait for it. At most `max_waiting` queries and as many calls with passages
    wait; more are refused with EmbedderUnavailable. A process that ends, or takes longer than `batch_seconds` for a
    batch (half a second's work on a slow processor), is replaced and the batch tried once more; while replacing fails,
    calls fail at once, and a new process is tried after a pause that grows to a minute.
    """

    def __init__(
        self,
        *,
        max_waiting: int = 64,
        batch_seconds: float = 30.0,
        start_seconds: float = 60.0,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._line = WaitingLine(max_waiting)
        self._workers = _Workers(command, start_seconds)
        self._batch_seconds = batch_seconds
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._serve(), name="local embedder")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def model(self) -> EmbeddingModel:
        """The model; known before opening too."""
        return MODEL

    @property
    def worker_pid(self) -> int | None:
        """The process that runs the model, if there is one now."""
        return self._workers.pid

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        """As the port says; the same text has the same vector, bit for bit, whatever comes with it."""
        batches = _batches([text[:MAX_CHARACTERS] for text in texts])
        return await self._line.passages(batches) if batches else []

    async def embed_query(self, text: str) -> list[float]:
        """As the port says; it waits for one batch at most besides the queries before it."""
        return await self._line.query(text[:MAX_CHARACTERS])

    async def aclose(self) -> None:
        """As the port says; the process has ended when this returns."""
        self._line.close()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])

    async def _serve(self) -> None:
        try:
            with contextlib.suppress(EmbedderUnavailable):
                await self._workers.ready()
            while True:
                call = await self._line.next()
                try:
                    call.advance(await self._vectors(call.batch))
                except EmbedderUnavailable as error:
                    call.fail(error)
        except Exception:
            log.exception("the local embedder stopped")
            raise
        finally:
            self._line.close()
            await self._workers.drop()

    async def _vectors(self, batch: Sequence[str]) -> list[list[float]]:
        try:
            return await self._ask(batch)
        except WorkerFailed:
            pass
        try:
            return await self._ask(batch)
        except WorkerFailed as error:
            raise _unavailable(error, None) from error

    async def _ask(self, batch: Sequence[str]) -> list[list[float]]:
        worker = await self._workers.ready()
        try:
            vectors = await worker.ask(batch, seconds=self._batch_seconds)
        except WorkerFailed as failure:
            await self._workers.failed(failure)
            raise
        self._workers.succeeded()
        return vectors


class _Workers:
    """The one process there is at a time, and the pauses between those that fail in a row."""

    def __init__(self, command: Sequence[str], start_seconds: float) -> None:
        self._command = command
        self._start_seconds = start_seconds
        self._worker: WorkerProcess | None = None
        self._failures = 0
        self._last_failure = ""
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        return self._worker.pid if self._worker else None

    async def ready(self) -> WorkerProcess:
        """The running process, or a new one; EmbedderUnavailable if it cannot start, or within the pause after that."""
        if self._worker is None:
            self._worker = await self._start()
        return self._worker

    async def failed(self, failure: WorkerFailed) -> None:
        """Ends the process. The first failure is followed at once by a new one, each further by a longer pause."""
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + _pause(self._failures)
        if str(failure) != self._last_failure:
            log.warning("the embedding worker failed", reason=str(failure), next_try_seconds=_pause(self._failures))
        self._last_failure = str(failure)
        await self.drop()

    def succeeded(self) -> None:
        """Forgets the failures before."""
        self._failures = 0
        self._last_failure = ""

    async def drop(self) -> None:
        """Ends the process, if there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    async def _start(self) -> WorkerProcess:
        pause = self._not_before - asyncio.get_running_loop().time()
        if pause > 0:
            raise _unavailable(self._last_failure, pause)
        try:
            worker = await WorkerProcess.start(self._command, seconds=self._start_seconds)
        except WorkerFailed as failure:
            await self.failed(failure)
            raise _unavailable(failure, _pause(self._failures)) from failure
        log.info("the embedding worker is ready", model=MODEL.name, pid=worker.pid)
        return worker


def _pause(failures: int) -> float:
    return 0.0 if failures < 2 else min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (failures - 2))


def _unavailable(reason: object, retry_after: float | None) -> EmbedderUnavailable:
    return EmbedderUnavailable(f"The local embedding model is not available: its process {reason}.", retry_after)


def _batches(texts: Sequence[str]) -> list[list[str]]:
    """The texts in their order, in batches of at most one longest text's work, which is what a query may wait for."""
    batches: list[list[str]] = []
    room = 0
    for text in texts:
        work = min(MAX_TOKENS, estimated_tokens(text) + _TOKENS_AROUND)
        if work > room:
            batches.append([])
            room = MAX_TOKENS
        batches[-1].append(text)
        room -= work
    return batches
