"""The commands that need the server: `hivemem serve` and `hivemem demo`."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import SecretStr, ValidationError
from rich.console import Console

from hivemem_server import __version__, logs
from hivemem_server.bootstrap import Running, StartError, running_server
from hivemem_server.demo.command import demo
from hivemem_server.settings import EmbedderKind, Settings

_screen = Console(stderr=True, highlight=False)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(serve)
    app.command()(demo)


def serve(
    host: Annotated[str | None, typer.Option(help="Loopback address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any.", show_default="7400")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the embedded database.", show_default="the user's data folder")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="PostgreSQL with pgvector to use.", show_default="an embedded one")
    ] = None,
    embedder: Annotated[
        EmbedderKind | None, typer.Option(help="Where vectors come from.", show_default="local")
    ] = None,
    embedding_url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint.")] = None,
    embedding_model: Annotated[str | None, typer.Option(help="Its model.")] = None,
    embedding_dimensions: Annotated[int | None, typer.Option(help="Length of its vectors.")] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    Every option is also a variable HIVEMEM_<OPTION> of the environment; the endpoint's key is HIVEMEM_EMBEDDING_KEY
    only.
    """
    logs.configure(log_level)
    settings = _settings(
        host=host,
        port=port,
        data_dir=data_dir,
        database_url=SecretStr(database_url) if database_url else None,
        embedder=embedder,
        embedding_url=embedding_url,
        embedding_model=embedding_model,
        embedding_dimensions=embedding_dimensions,
    )
    try:
        _run(settings)
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


def _run(settings: Settings) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(settings))
    else:
        uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    """Serves until a signal comes; one that comes while the server starts ends it as well."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    serving = asyncio.ensure_future(_until(stopped, settings))
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await serving


async def _until(stopped: asyncio.Event, settings: Settings) -> None:
    with _screen.status("Starting…") as status:
        async with running_server(settings, lambda step: status.update(f"{step}…")) as running:
            status.stop()
            _announce(running)
            await stopped.wait()
            _screen.print("Stopping…")
    _screen.print("Stopped.")


def _announce(running: Running) -> None:
    address = f"[{running.host}]:{running.port}" if ":" in running.host else f"{running.host}:{running.port}"
    _screen.print(f"[bold]hivemem {__version__}[/] listens on [bold green]{address}[/]", soft_wrap=True)
    for name, value in (("database", running.database), ("embedder", running.embedder)):
        _screen.print(f"  {name:9} {value}", markup=False, soft_wrap=True)
    _screen.print("  Ctrl-C stops it.", style="dim")
