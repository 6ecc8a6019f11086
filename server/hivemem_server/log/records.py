"""Records as followers share them, and the questions by which they do."""

from __future__ import annotations

from dataclasses import dataclass

from hivemem_server.domain.filters import Filter
from hivemem_server.domain.predicates import Matcher
from hivemem_server.domain.values import LogRecord


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record and its bytes on the wire."""

    record: LogRecord
    data: bytes


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Asked:
    """What a follower asks for, compared by identity: what matches, and how many records at once at most."""

    wanted: Filter
    matches: Matcher
    most: int
