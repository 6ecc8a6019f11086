"""What a reader of a log is told, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hivemem_server.domain.values import Point
from hivemem_server.log.records import Encoded


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class Batch:
    """Records, in order; everything that matches up to `point` has been delivered with them.

    Followers that ask the same share it while it is sent. `messages` is room for what carries it, made by the first who
    sends it.
    """

    records: Sequence[Encoded]
    point: Point
    messages: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Everything that was there has been delivered; what follows is live."""

    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBehind:
    """More is written than the reader takes; delivery goes on in order."""

    point: Point
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Nothing that matches up to `point` was missed."""

    point: Point
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingAway:
    """The server ends the stream in good order; the reader comes again after so many seconds."""

    point: Point
    retry_seconds: float


Event: TypeAlias = Batch | CaughtUp | FellBehind | Progress | GoingAway
