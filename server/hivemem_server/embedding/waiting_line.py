"""Who waits for the local model, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from hivemem_server.domain.errors import EmbedderUnavailable

_QUERIES_IN_A_ROW = 16
_OVERLOAD_SECONDS = 1.0


class Call:
    """One call's texts, in batches that are computed one after the other, and its vectors so far."""

    def __init__(self, batches: Sequence[Sequence[str]]) -> None:
        self._batches = deque(batches)
        self._vectors: list[list[float]] = []
        self._answer: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()

    @property
    def batch(self) -> Sequence[str]:
        """What is to be computed next."""
        return self._batches[0]

    @property
    def is_over(self) -> bool:
        """Nobody waits for it any more."""
        return self._answer.done()

    async def answer(self) -> list[list[float]]:
        """All its vectors, waiting for them."""
        return await self._answer

    def advance(self, vectors: Sequence[list[float]]) -> None:
        """Takes the vectors of its batch."""
        self._batches.popleft()
        self._vectors.extend(vectors)
        if not self._batches and not self.is_over:
            self._answer.set_result(self._vectors)

    def fail(self, error: EmbedderUnavailable) -> None:
        """Ends it without an answer."""
        if not self.is_over:
            self._answer.set_exception(error)
            self._answer.exception()  # a caller that is cancelled at this moment never looks


class WaitingLine:
    """A bounded line for queries and one for passages.

    Queries go first, between the batches of a long call too; but after sixteen of them a batch of passages goes, so
    that indexing never stands still.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._queries: deque[Call] = deque()
        self._passages: deque[Call] = deque()
        self._queries_in_a_row = 0
        self._arrived = asyncio.Event()
        self._closed = False

    async def query(self, text: str) -> list[float]:
        """Waits for the vector of one text."""
        return (await self._wait(self._queries, [[text]]))[0]

    async def passages(self, batches: Sequence[Sequence[str]]) -> list[list[float]]:
        """Waits for the vectors of all texts of the batches."""
        return await self._wait(self._passages, batches)

    async def next(self) -> Call:
        """The call whose batch is to be computed now, waiting for one. It stays in line until it is over."""
        while (call := self._chosen()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        return call

    def close(self) -> None:
        """Fails all who wait and all who come."""
        self._closed = True
        for call in (*self._queries, *self._passages):
            call.fail(_closed())

    async def _wait(self, line: deque[Call], batches: Sequence[Sequence[str]]) -> list[list[float]]:
        if self._closed:
            raise _closed()
        if len(line) >= self._bound:
            raise EmbedderUnavailable(
                f"The local embedding model has {self._bound} calls waiting: try again later.", _OVERLOAD_SECONDS
            )
        call = Call(batches)
        line.append(call)
        self._arrived.set()
        try:
            return await call.answer()
        finally:
            line.remove(call)

    def _chosen(self) -> Call | None:
        query, passages = _first(self._queries), _first(self._passages)
        if query is not None and (passages is None or self._queries_in_a_row < _QUERIES_IN_A_ROW):
            self._queries_in_a_row += 1
            return query
        self._queries_in_a_row = 0
        return passages


def _first(line: deque[Call]) -> Call | None:
    return next((call for call in line if not call.is_over), None)


def _closed() -> EmbedderUnavailable:
    return EmbedderUnavailable("The local embedding model is not open.")
