"""`hivemem tail`."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hivemem._models import Start
from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected

if TYPE_CHECKING:
    from hivemem._client import Subscribing


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(tail)


def tail(
    session: Annotated[str, typer.Argument(help="The session.")],
    agent: Annotated[
        list[str] | None, typer.Option("--agent", help="Only what this agent writes. May be repeated.")
    ] = None,
    start: Annotated[str, typer.Option("--from", help="`beginning`, `now`, or after a position.")] = "beginning",
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Whether to wait for more.")] = True,
    relevant_to: Annotated[
        str | None, typer.Option("--relevant-to", help="Only what is close to this in meaning, with its score.")
    ] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", min=0, max=1, help="How close, 0 to 1, with --relevant-to.")
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    namespace: Namespace = "default",
    as_json: Json = False,
) -> None:
    """Shows the episodes of a session as they come, until Ctrl-C."""
    if min_score is not None and relevant_to is None:
        raise typer.BadParameter("takes --relevant-to with it", param_hint="--min-score")
    choices: Subscribing = {
        "after": _point(start),
        "agents": agent or [],
        "until_caught_up": not follow,
        "relevant_to": relevant_to,
        "min_score": min_score,
    }
    _tell_of_lost_connections()
    asyncio.run(_tail(address, namespace, session, choices, as_json=as_json))


def _point(start: str) -> Start | int:
    if start in ("beginning", "now"):
        return Start(start)
    if start.isdecimal() and int(start) < 1 << 63:
        return int(start)
    raise typer.BadParameter("takes `beginning`, `now` or a position", param_hint="--from")


def _tell_of_lost_connections() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("hivemem: %(message)s"))
    logger = logging.getLogger("hivemem")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


async def _tail(address: str, namespace: str, session_id: str, choices: Subscribing, *, as_json: bool) -> None:
    page = _show.Page()
    async with connected(address, namespace) as memory:
        session = await memory.get_session(session_id)
        async with session.subscribe(**choices) as episodes:
            async for episode in episodes:
                if not as_json:
                    page.episode(episode, score=episodes.score)
                elif choices["relevant_to"] is None:
                    _show.json_line(episode)
                else:
                    _show.json_line(episode, score=episodes.score)
