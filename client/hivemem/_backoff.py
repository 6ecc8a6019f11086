"""Pauses between attempts."""

from __future__ import annotations

import random


class Backoff:
    """Pauses in seconds that double up to a bound, each shortened by up to half at random.

    A delay that the server asks for is kept, and lengthened by up to a quarter. The jitter keeps clients that lost the
    same server from coming back in step.
    """

    def __init__(self, *, first: float = 0.1, longest: float = 5.0) -> None:
        self._first = first
        self._longest = longest
        self._pause = first

    def next(self, at_least: float | None = None) -> float:
        """The next pause; never below `at_least`, a delay that the server asked for."""
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, self._longest)
        return max(pause, (at_least or 0.0) * random.uniform(1.0, 1.25))

    def reset(self) -> None:
        """Starts again with the shortest pause."""
        self._pause = self._first
