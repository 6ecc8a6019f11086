"""What a measure gives, and how it is taken."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

AnyRequest = TypeVar("AnyRequest")
Side: TypeAlias = Callable[[], Awaitable[float]]

PER_SECOND, MEGABYTES_PER_SECOND, MILLISECONDS, MEBIBYTES = "1/s", "MB/s", "ms", "MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the ratio should be. A rate has a least, a time has a most; None: it is only told."""

    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        if self.least is not None:
            return f"at least {self.least:g}"
        return "" if self.most is None else f"at most {self.most:g}"

    def met_by(self, ratio: float) -> bool:
        """Whether the ratio is as it should be."""
        return (self.least is None or ratio >= self.least) and (self.most is None or ratio <= self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measure taken; `detail` says how, and has what else was seen."""

    measure: str
    ours: float
    bare: float
    unit: str
    goal: Goal
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Ours divided by bare; 0 if there is no bare."""
        return self.ours / self.bare if self.bare else 0.0

    def line(self) -> str:
        """The result as one line of JSON."""
        detail = {"goal": str(self.goal)} | self.detail | {"load": round(os.getloadavg()[0], 2)}
        content = {
            "measure": self.measure, "ours": self.ours, "bare": self.bare, "ratio": self.ratio, "unit": self.unit,
            "detail": detail,
        }  # fmt: skip
        return json.dumps(_rounded(content))


def _rounded(content: Any) -> Any:
    match content:
        case float():
            return float(f"{content:.4g}")
        case dict():
            return {key: _rounded(value) for key, value in content.items()}
        case list() | tuple():
            return [_rounded(value) for value in content]
    return content


FEWEST_ROUNDS, LONGEST_SECONDS = 3, 25.0


async def taking_turns(rounds: int, *sides: Side, tick: Callable[[], None]) -> list[list[float]]:
    """What each side gave in each round, after one that does not count; fewer rounds on a machine that is slow now.

    One that went first goes last in the next round.
    """
    for side in sides:
        await side()
        tick()
    given: list[list[float]] = [[] for _ in sides]
    order, end = list(range(len(sides))), time.monotonic() + LONGEST_SECONDS
    for number in range(rounds):
        if number >= FEWEST_ROUNDS and time.monotonic() > end:
            break
        for index in order:
            given[index].append(await sides[index]())
            tick()
        order.reverse()
    return given


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def percentile(values: Sequence[float], percent: int) -> float:
    """What so many percent of the values are not above."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def per_second(
    call: Callable[[AnyRequest], Awaitable[object]], requests: Sequence[AnyRequest], callers: int
) -> float:
    """Requests answered in a second, with that many callers, each sending its next one when the last is answered."""
    waiting = iter(requests)

    async def caller() -> None:
        for request in waiting:
            await call(request)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return len(requests) / (time.perf_counter() - begin)


async def milliseconds(call: Callable[[AnyRequest], Awaitable[object]], requests: Iterable[AnyRequest]) -> float:
    """The median time of a call, one after the other."""
    taken = []
    for request in requests:
        begin = time.perf_counter()
        await call(request)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1_000


def milliseconds_blocking(call: Callable[[AnyRequest], object], requests: Iterable[AnyRequest]) -> float:
    """The same for a call that blocks."""
    taken = []
    for request in requests:
        begin = time.perf_counter()
        call(request)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1_000
