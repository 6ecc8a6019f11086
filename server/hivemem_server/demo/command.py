"""`hivemem demo`."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hivemem_server.demo import folder, model, stage
from hivemem_server.demo.processes import DemoFailed
from hivemem_server.demo.screen import Screen, Stored

_PACE_SECONDS = 0.3  # so that people can follow
_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def demo(
    texts: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="What to read.", show_default="the documents of the project")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Folder of the memory, to be kept.", show_default="a temporary one"),
    ] = None,
    pace: Annotated[
        float | None,
        typer.Option("--pace", min=0, max=10, help="Seconds between episodes.", show_default="0.3 on a terminal"),
    ] = None,
) -> None:
    """Shows two researchers and a writer, each a process of its own, work through one shared memory.

    They read the files of a folder, log what they find, and write a brief; the writer is killed half-way and resumes.
    Without a model their words are quotes. OPENAI_API_KEY or OPENAI_BASE_URL lets a model speak (HIVEMEM_DEMO_MODEL).
    """
    screen = Screen()
    try:
        reading = folder.choose(texts, start=Path.cwd())
        screen.introduction(reading.description, len(reading.files), reading.left_out, _words())
        rest = _PACE_SECONDS if screen.is_watched else 0.0
        stored = _performed(reading, data_dir, rest if pace is None else pace, screen)
    except (DemoFailed, folder.NothingToRead) as error:
        Console(stderr=True, highlight=False).print(f"hivemem: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    screen.end(stored, temporary=data_dir is None)


def _words() -> str:
    asked_for = model.name()
    if asked_for is None:
        return "quotes from the files, word for word (no model: OPENAI_API_KEY and OPENAI_BASE_URL are not set)"
    return f"those of the model {asked_for}"


def _performed(reading: folder.Reading, data_dir: Path | None, pace: float, screen: Screen) -> Stored:
    """The demo in a data directory, which goes with a demo that fails if it was made for it."""
    where = data_dir or Path(tempfile.mkdtemp(prefix="hivemem-demo-"))
    try:
        return asyncio.run(_interruptible(stage.Play(reading=reading, data_dir=where.resolve(), pace=pace), screen))
    except BaseException:
        if data_dir is None:
            shutil.rmtree(where, ignore_errors=True)
        raise


async def _interruptible(play: stage.Play, screen: Screen) -> Stored:
    """The demo until its end or a signal. A second signal does not disturb the clearing away that follows the first."""
    performing = asyncio.ensure_future(stage.perform(play, screen))
    interrupted = asyncio.Event()

    def interrupt() -> None:
        if not interrupted.is_set():
            interrupted.set()
            performing.cancel()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    try:
        return await performing
    except asyncio.CancelledError:
        raise typer.Exit(_INTERRUPTED) from None
