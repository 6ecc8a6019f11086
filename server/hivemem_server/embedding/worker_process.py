"""The server's handle on one worker process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from array import array
from collections.abc import Coroutine, Sequence

from hivemem_server.embedding.frames import FrameBroken, Header, StreamEnded, frame, receive_frame

# -P: the folder the server was started in must not shadow modules of the worker.
COMMAND = (sys.executable, "-P", "-m", "hivemem_server.embedding.worker")

_STOP_SECONDS = 5.0
_NOISE_BYTES = 2_000
_FLOAT_BYTES = 4


class WorkerFailed(Exception):
    """The worker cannot start, has ended, answers nonsense or not in time; the message is a clause that says which."""


class WorkerProcess:
    """A worker that is ready. For one task at a time; after WorkerFailed or a cancelled call only `stop` is left."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._noise = b""
        self._listener = asyncio.create_task(self._listen(), name="embedding worker's noise")

    @classmethod
    async def start(cls, command: Sequence[str], *, seconds: float) -> WorkerProcess:
        """Starts one and waits until its model is loaded."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise WorkerFailed(f"could not be started ({error})") from error
        worker = cls(process)
        try:
            await worker._become_ready(seconds)
        except BaseException:
            await worker.stop()
            raise
        return worker

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def ask(self, texts: Sequence[str], *, seconds: float) -> list[list[float]]:
        """The vectors of the texts."""
        header, body = await self._within(seconds, self._exchange(texts))
        return _vectors(header, body, len(texts))

    async def stop(self) -> None:
        """Ends it at once: it has nothing to lose."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._ended()
        self._listener.cancel()
        await asyncio.wait([self._listener])
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _become_ready(self, seconds: float) -> None:
        header, _ = await self._within(seconds, self._receive())
        if error := header.get("error"):
            raise WorkerFailed(f"could not load its model ({error})")

    async def _exchange(self, texts: Sequence[str]) -> tuple[Header, bytes]:
        requests = self._process.stdin
        assert requests is not None
        # A worker that has gone is noticed by the answer that does not come, with what it said last. (Writing to it
        # is a ConnectionError to asyncio and a RuntimeError to uvloop.)
        with contextlib.suppress(ConnectionError, RuntimeError):
            requests.write(frame({"texts": list(texts)}))
            await requests.drain()
        return await self._receive()

    async def _receive(self) -> tuple[Header, bytes]:
        answers = self._process.stdout
        assert answers is not None
        return await receive_frame(answers)

    async def _within(
        self, seconds: float, exchange: Coroutine[None, None, tuple[Header, bytes]]
    ) -> tuple[Header, bytes]:
        try:
            async with asyncio.timeout(seconds):
                return await exchange
        except TimeoutError:
            raise WorkerFailed(f"did not answer within {seconds:g} s") from None
        except StreamEnded as error:
            raise WorkerFailed(await self._last_words()) from error
        except FrameBroken as error:
            raise WorkerFailed(f"answered nonsense ({error})") from error

    async def _last_words(self) -> str:
        status = await self._ended()
        if status is None:
            return "closed its output"
        await asyncio.wait([self._listener], timeout=_STOP_SECONDS)
        lines = self._noise.decode("utf-8", "replace").strip().splitlines()
        return f"ended with {_named(status)}" + (f" ({lines[-1]})" if lines else "")

    async def _ended(self) -> int | None:
        """Its exit status, or None if it does not end."""
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def _listen(self) -> None:
        """Keeps the end of what it prints, so that the pipe never fills."""
        noise = self._process.stderr
        assert noise is not None
        while data := await noise.read(_NOISE_BYTES):
            self._noise = (self._noise + data)[-_NOISE_BYTES:]


def _named(status: int) -> str:
    with contextlib.suppress(ValueError):
        if status < 0:
            return signal.Signals(-status).name
    return f"status {status}"


def _vectors(header: Header, body: bytes, count: int) -> list[list[float]]:
    rows, columns = header.get("rows"), header.get("columns")
    if rows != count or not columns or len(body) != rows * columns * _FLOAT_BYTES:
        raise WorkerFailed(f"answered nonsense ({rows} rows of {columns} in {len(body)} bytes for {count} texts)")
    floats = array("f", body)
    if sys.byteorder == "big":
        floats.byteswap()
    return [floats[start : start + columns].tolist() for start in range(0, len(floats), columns)]
