"""`hivemem search`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from hivemem._models import Shortfall
from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected

if TYPE_CHECKING:
    from hivemem._client import Searching
    from hivemem._models import SearchResult

Many = list[str] | None

_SHORTFALLS = {
    Shortfall.MIN_SCORE: "hits below the lowest score were left out",
    Shortfall.INDEX_BEHIND: "the newest episodes were found by their words only",
    Shortfall.EMBEDDER_UNAVAILABLE: "the embedder does not answer: words alone decided",
    Shortfall.RESPONSE_SIZE: "the last hits were left out, they are too large for one answer",
}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(search)


def search(
    text: Annotated[str, typer.Argument(help="What to look for, in words.")],
    session: Annotated[Many, typer.Option("--session", help="Only in this session. May be repeated.")] = None,
    agent: Annotated[Many, typer.Option("--agent", help="Only what this agent wrote. May be repeated.")] = None,
    user: Annotated[Many, typer.Option("--user", help="Only sessions of this user. May be repeated.")] = None,
    kind: Annotated[Many, typer.Option("--kind", help="Only episodes of this kind. May be repeated.")] = None,
    tag: Annotated[Many, typer.Option("--tag", help="Only episodes with this tag. May be repeated.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="At most this many.")] = 10,
    address: Address = DEFAULT_ADDRESS,
    namespace: Namespace = "default",
    as_json: Json = False,
) -> None:
    """Shows the episodes that fit best, by meaning and by words."""
    choices: Searching = {
        "sessions": session or [],
        "agents": agent or [],
        "users": user or [],
        "kinds": kind or [],
        "tags": tag or [],
        "limit": limit,
    }
    result = asyncio.run(_search(address, namespace, text, choices))
    if as_json:
        _show.json_line(result)
    else:
        _print(result)


async def _search(address: str, namespace: str, text: str, choices: Searching) -> SearchResult:
    async with connected(address, namespace) as memory:
        return await memory.search(text, **choices)


def _print(result: SearchResult) -> None:
    page = _show.Page()
    for hit in result:
        page.episode(hit.episode, score=hit.score, snippet=hit.snippet)
    if not result:
        page.line("nothing found")
    for shortfall in result.shortfalls:
        if shortfall in _SHORTFALLS:
            page.line((f"note: {_SHORTFALLS[shortfall]}", "dim"))
