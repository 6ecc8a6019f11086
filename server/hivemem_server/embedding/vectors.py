"""What makes numbers from outside vectors that can be stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hivemem_server.domain.embedder import EmbedderRejected

_SHORTEST = 1e-9


def in_order(rows: object, count: int) -> list[object]:
    """The rows by their `index`, which has to name each of `count` texts once; else EmbedderRejected."""
    if not isinstance(rows, list) or len(rows) != count:
        found = len(rows) if isinstance(rows, list) else "no"
        raise EmbedderRejected(f"answers with {found} vectors for {count} texts", texts_refused=False)
    by_index = {getattr(row, "index", None): row for row in rows}
    if set(by_index) != set(range(count)):
        raise EmbedderRejected("does not say which vector belongs to which text", texts_refused=False)
    return [by_index[index] for index in range(count)]


def unit_vectors(rows: Sequence[object], dimension: int | None) -> list[list[float]]:
    """The rows at unit length; EmbedderRejected if they cannot be. None takes any dimension."""
    try:
        matrix = np.array(rows, np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    if matrix.ndim != 2:
        raise EmbedderRejected("answers with vectors that are no lists of numbers of one length", texts_refused=False)
    if dimension is not None and matrix.shape[1] != dimension:
        raise EmbedderRejected(
            f"answers with vectors of {matrix.shape[1]} numbers instead of {dimension}: set the dimensions to "
            f"{matrix.shape[1]}, or name the model that has {dimension}",
            texts_refused=False,
        )
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > _SHORTEST)).all():
        raise EmbedderRejected("answers with a vector without direction (NaN, infinite or zeros)", texts_refused=True)
    vectors: list[list[float]] = (matrix / lengths).tolist()
    return vectors
