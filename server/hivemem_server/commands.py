"""The commands that need the server: `hivemem serve` and `hivemem demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hivemem_server.demo.command import demo


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(serve)
    app.command()(demo)


def serve(
    host: Annotated[str | None, typer.Option(help="Loopback address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any.", show_default="7400")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the port.", show_default="1")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the embedded database.", show_default="the user's data folder")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="PostgreSQL with pgvector to use.", show_default="an embedded one")
    ] = None,
    listen: Annotated[
        bool | None,
        typer.Option("--listen/--no-listen", help="Hear of other servers by LISTEN.", show_default="listen"),
    ] = None,
    listen_url: Annotated[
        str | None, typer.Option(help="Direct way to the database, for LISTEN.", show_default="the database URL")
    ] = None,
    embedder: Annotated[
        Literal["local", "openai", "none"] | None, typer.Option(help="Where vectors come from.", show_default="local")
    ] = None,
    embedding_url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint.")] = None,
    embedding_model: Annotated[str | None, typer.Option(help="Its model.")] = None,
    embedding_dimensions: Annotated[int | None, typer.Option(help="Length of its vectors.")] = None,
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"], typer.Option(help="How much to log.", case_sensitive=False)
    ] = "INFO",
) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    Every option is also a variable HIVEMEM_<OPTION> of the environment; the endpoint's key is HIVEMEM_EMBEDDING_KEY
    only.
    """
    from hivemem_server import serving  # takes seconds to load, which other commands need not wait for

    serving.serve(
        log_level,
        host=host,
        port=port,
        workers=workers,
        data_dir=data_dir,
        database_url=database_url,
        listen=listen,
        listen_url=listen_url,
        embedder=embedder,
        embedding_url=embedding_url,
        embedding_model=embedding_model,
        embedding_dimensions=embedding_dimensions,
    )
