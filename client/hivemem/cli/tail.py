"""`hivemem tail`."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hivemem._models import Filter, PositionRange, Start
from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hivemem._models import Episode
    from hivemem._session import Session


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
    address: Address = DEFAULT_ADDRESS,
    namespace: Namespace = "default",
    as_json: Json = False,
) -> None:
    """Shows the episodes of a session as they come, until Ctrl-C."""
    _tell_of_lost_connections()
    asyncio.run(_tail(address, namespace, session, agent or [], _point(start), follow=follow, as_json=as_json))


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


async def _tail(
    address: str, namespace: str, session_id: str, agents: list[str], start: Start | int, *, follow: bool, as_json: bool
) -> None:
    page = _show.Page()
    async with connected(address, namespace) as memory:
        session = await memory.get_session(session_id)
        episodes = session.subscribe(after=start, agents=agents) if follow else _there(session, agents, start)
        async for episode in episodes:
            if as_json:
                _show.json_line(episode)
            else:
                page.episode(episode)


def _there(session: Session, agents: list[str], start: Start | int) -> AsyncIterator[Episode]:
    """What is there already, after the start."""
    after = {Start.BEGINNING: 0, Start.NOW: session.info.last_position}
    position = start if isinstance(start, int) else after[start]
    return session.episodes(agents=agents, filter=Filter(positions=PositionRange(after=position)))
