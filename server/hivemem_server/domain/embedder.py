"""What the domain needs from an embedding model, as a contract. Adapters are in `hivemem_server.embedding`.

Vectors are plain lists of floats: that is what pgvector's half-precision type packs fastest and what a ranking in pure
code can read, so nothing here depends on an array library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingModel:
    """Whose vectors these are. Vectors compare only with vectors of an equal model.

    `digest` changes whenever the same text could get another vector (weights, vocabulary, settings); it is empty if
    that cannot be known, as with a remote endpoint.
    """

    name: str
    dimension: int
    digest: str


class EmbedderRejected(Exception):
    """The model refused its input, or its answer is nonsense; the same request would fail again. Not for callers.

    `texts_refused` says whose fault it is. True: of one of these texts (others pass): ask for halves to find it, and
    set it aside. False: of the endpoint or of its settings (key, model, dimension, count, order): no text is to blame,
    so set none aside.
    """

    def __init__(self, message: str, *, texts_refused: bool) -> None:
        super().__init__(message)
        self.message = message
        self.texts_refused = texts_refused


class Embedder(Protocol):
    """Turns texts into vectors of unit length, so that the inner product is the cosine.

    All or nothing: a call that fails says nothing of any one of its texts. It raises EmbedderUnavailable if trying
    again can help, now or after its `retry_after` seconds (the model does not answer, is overloaded, is closed or has
    too many calls waiting), and EmbedderRejected if it cannot. Every call ends within a time that the adapter bounds,
    may be cancelled at any point, and many may run at once. A long text counts with its beginning only, as far as the
    model reads; an empty one has a valid vector that is near to nothing in particular.
    """

    @property
    def model(self) -> EmbeddingModel:
        """The model; the same from opening to closing."""
        ...

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts that are to be found, one a text and in their order. No texts: no vectors."""
        ...

    async def embed_query(self, text: str) -> list[float]:
        """The vector of a text that finds. It overtakes passages wherever the adapter has a line of its own."""
        ...

    async def aclose(self) -> None:
        """Ends it: what waits fails with EmbedderUnavailable. Again is harmless."""
        ...


@dataclass(slots=True)
class EmbedderSlot:
    """The server's embedder, which may come later than the server: None while it does not answer, or if there is none.

    `configured` tells the two apart.
    """

    configured: bool
    embedder: Embedder | None = None

    @property
    def model(self) -> EmbeddingModel | None:
        """The model of the embedder, if it is there."""
        return self.embedder.model if self.embedder else None
