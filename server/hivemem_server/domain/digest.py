"""The digest by which a resent episode is told from another one with the same id."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple

from hivemem_server.domain.values import NewEpisode

_VERSION = b"\x01"


def episode_digest(key: bytes, session_id: str, agent_id: str, episode: NewEpisode) -> bytes:
    """33 bytes: a version, then a keyed hash of everything that the client sent, as it was received.

    Keyed, so that a stolen digest does not confirm a guess of what was redacted or erased. Versioned, so that episodes
    stored under an older rule can still be compared by it.
    """
    content = [session_id, agent_id, *astuple(episode)]
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
    return _VERSION + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32, key=key).digest()
