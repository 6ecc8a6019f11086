"""`hivemem stats`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected

if TYPE_CHECKING:
    import typer

    from hivemem._models import IndexStats, Stats


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(stats)


def stats(address: Address = DEFAULT_ADDRESS, namespace: Namespace = "default", as_json: Json = False) -> None:
    """Shows numbers about a namespace and the server."""
    numbers = asyncio.run(_stats(address, namespace))
    if as_json:
        _show.json_line(numbers)
    else:
        _print(numbers)


async def _stats(address: str, namespace: str) -> Stats:
    async with connected(address, namespace) as memory:
        return await memory.stats()


def _print(numbers: Stats) -> None:
    server, page = numbers.server, _show.Page()
    owner = "its own" if server.embedded_database else "given"
    rows = [
        ("namespace", numbers.namespace.name),
        ("positions", f"{numbers.namespace.first_position} to {numbers.namespace.head_position}"),
        ("sessions", f"{numbers.session_count}, {numbers.open_session_count} of them open"),
        ("agents", str(numbers.agent_count)),
        ("episodes", str(numbers.episode_count)),
        ("open threads", str(numbers.open_thread_count)),
        ("facts", str(numbers.fact_count)),
        *(("index", _index(index)) for index in numbers.indexes),
        ("server", f"hivemem {server.version}, since {_show.local(server.start_time)}"),
        ("database", f"PostgreSQL {server.database_version} ({owner}), {server.database_bytes / 1e6:,.1f} MB"),
        ("subscriptions", str(server.subscription_count)),
    ]
    for name, value in rows:
        page.line((f"{name:<14}", "dim"), value)


def _index(index: IndexStats) -> str:
    aside = f", {index.set_aside_count} set aside" if index.set_aside_count else ""
    current = "" if index.current else ", not in use"
    return f"{index.model} ({index.dimension}), up to {index.indexed_position}{aside}{current}"
