"""Ids of episodes: UUIDs of version 7 (RFC 9562)."""

from __future__ import annotations

import secrets
import threading
import time
import uuid

_RANDOM_BITS = 74
_lock = threading.Lock()
_last = 0


def uuid7() -> uuid.UUID:
    """A new UUID of version 7, above every earlier one of this process.

    The 48 bits of milliseconds are followed by 74 random ones (RFC 9562, 6.2, method 2): within one
    millisecond, or when the clock steps back, the last value grows by a random step, so that a forked process
    does not repeat its parent.
    """
    global _last
    fresh = time.time_ns() // 1_000_000 << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    with _lock:
        _last = fresh if fresh > _last else _last + 1 + secrets.randbits(32)
        value = _last
    high, low = value >> 62, value & (1 << 62) - 1
    milliseconds, upper = high >> 12, high & 0xFFF
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | upper << 64 | 0b10 << 62 | low)


def new_episode_id() -> str:
    """A new id for an episode, in the canonical text form."""
    return str(uuid7())
