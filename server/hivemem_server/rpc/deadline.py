"""How long the caller of the call under way will wait."""

from __future__ import annotations

import time
from contextvars import ContextVar

_ends: ContextVar[float | None] = ContextVar("ends", default=None)

ANSWER_SECONDS = 0.2  # what an answer needs to arrive before the caller gives up


def begin(remaining: float | None) -> None:
    """Notes the caller's deadline, in seconds from now; None if it has none."""
    _ends.set(None if remaining is None else time.monotonic() + remaining)


def time_to_wait(most: float) -> float:
    """Seconds that may be waited so that the caller still gets the answer."""
    ends = _ends.get()
    return most if ends is None else max(0.0, min(most, ends - time.monotonic() - ANSWER_SECONDS))
