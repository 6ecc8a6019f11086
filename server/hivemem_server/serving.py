"""Serving as a process: settings, signals, what is printed, and errors as one line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NoReturn, TypeAlias

import typer
from pydantic import ValidationError
from rich.console import Console

from hivemem_server import __version__, logs
from hivemem_server.bootstrap import Progress, Running, StartError, run, running_server
from hivemem_server.settings import Settings
from hivemem_server.workers import running_workers

Opening: TypeAlias = Callable[[Progress], AbstractAsyncContextManager[Running]]

_screen = Console(stderr=True, highlight=False)


def serve(log_level: str, **given: Any) -> None:
    """Serves with the settings given, the others from the environment, until a signal ends it."""
    logs.configure(log_level)
    settings = _settings(**given)
    try:
        if settings.workers > 1:  # the parent of workers has little to do, and starts processes in ways uvloop cannot
            asyncio.run(_serve(partial(running_workers, settings, log_level)))
        else:
            run(_serve(partial(running_server, settings)))
    except StartError as error:
        _fail(str(error))


def _settings(**given: Any) -> Settings:
    try:
        return Settings(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(map(str, first["loc"]))
        _fail(f"{name}: {first['msg']} (option --{name.replace('_', '-')} or HIVEMEM_{name.upper()})")


def _fail(message: str) -> NoReturn:
    _screen.print(f"hivemem: {message}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit(1)


async def _serve(opening: Opening) -> None:
    """Serves until a signal comes; one that comes while the server starts ends it as well."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    serving = asyncio.ensure_future(_until(stopped, opening))
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await serving


async def _until(stopped: asyncio.Event, opening: Opening) -> None:
    with _screen.status("Starting…") as status:
        async with opening(lambda step: status.update(f"{step}…")) as running:
            status.stop()
            _announce(running)
            await stopped.wait()
            _screen.print("Stopping…")
    _screen.print("Stopped.")


def _announce(running: Running) -> None:
    address = f"[{running.host}]:{running.port}" if ":" in running.host else f"{running.host}:{running.port}"
    _screen.print(f"[bold]hivemem {__version__}[/] listens on [bold green]{address}[/]", soft_wrap=True)
    lines = [("database", running.database), ("embedder", running.embedder)]
    if running.workers:
        lines.append(("workers", f"{len(running.workers)} (pids {', '.join(map(str, running.workers))})"))
    for name, value in lines:
        _screen.print(f"  {name:9} {value}", markup=False, soft_wrap=True)
    _screen.print("  Ctrl-C stops it.", style="dim")
