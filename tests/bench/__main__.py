"""Runs measures by name."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import TypeAlias

import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import append, reading, recall, redaction, subscribe
from .measuring import Result
from .stand import Stand, standing

Measure: TypeAlias = Callable[[Stand], Awaitable[Result]]

FAMILIES: dict[str, ModuleType] = {
    "append": append,
    "reading": reading,
    "subscribe": subscribe,
    "recall": recall,
    "redaction": redaction,
}
MEASURES: dict[str, Measure] = {
    name: measure for family in FAMILIES.values() for name, measure in family.MEASURES.items()
}
MEASURE_SECONDS = (180, 3_600)  # usual, full

_screen = Console(stderr=True, highlight=False)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Speed as ratios of ours and bare.")
    parser.add_argument(
        "name", choices=["all", *FAMILIES, *MEASURES], metavar="NAME", help="all, a family or a measure"
    )
    parser.add_argument("--full", action="store_true", help="full counts; takes a long time")
    given = parser.parse_args()
    try:
        uvloop.run(_run(_chosen(given.name), full=given.full))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("ended before its time")


def _chosen(name: str) -> dict[str, Measure]:
    if name == "all":
        return MEASURES
    return FAMILIES[name].MEASURES if name in FAMILIES else {name: MEASURES[name]}


async def _run(measures: dict[str, Measure], *, full: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    results = []
    # Without a thread that draws: it would take part in the race.
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=_screen, auto_refresh=False) as progress:
        shown = progress.add_task("")

        def say(what: str) -> None:
            progress.update(shown, description=what)
            progress.refresh()

        async with standing(full=full, say=say, tick=progress.refresh) as stand:
            for name, measure in measures.items():
                say(name)
                async with asyncio.timeout(MEASURE_SECONDS[full]):
                    results.append(await measure(stand))
                print(results[-1].line(), flush=True)
            say("ending")
    _screen.print(_table(results))


def _table(results: Sequence[Result]) -> Table:
    table = Table("measure", "ours", "bare", "unit", "ratio", "goal")
    for result in results:
        met = result.goal.met_by(result.ratio)
        table.add_row(
            result.measure,
            f"{result.ours:,.4g}",
            f"{result.bare:,.4g}",
            result.unit,
            f"{result.ratio:.3f}",
            str(result.goal),
            style="" if met else "red",
        )
    return table


if __name__ == "__main__":
    main()
