"""`hivemem sessions`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from hivemem._models import SessionState
from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(sessions)


def sessions(
    user: Annotated[list[str] | None, typer.Option("--user", help="Only those of this user. May be repeated.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="Only those that are `open` or `closed`.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 100,
    address: Address = DEFAULT_ADDRESS,
    namespace: Namespace = "default",
    as_json: Json = False,
) -> None:
    """Lists sessions, newest first."""
    asyncio.run(_sessions(address, namespace, user or [], _known(state), limit, as_json=as_json))


def _known(state: str | None) -> SessionState | None:
    known = {str(one): one for one in (SessionState.OPEN, SessionState.CLOSED)}
    if state is None or state in known:
        return known.get(state or "")
    raise typer.BadParameter("a session is `open` or `closed`", param_hint="--state")


async def _sessions(
    address: str, namespace: str, users: list[str], state: SessionState | None, limit: int, *, as_json: bool
) -> None:
    found = []
    async with connected(address, namespace) as memory:
        async for session in memory.sessions(users=users, state=state):
            found.append(session)
            if len(found) == limit:
                break
    if as_json:
        for session in found:
            _show.json_line(session)
        return
    rows = [
        (one.session_id, one.user_id or "-", one.state, str(one.last_position), _show.local(one.create_time), one.goal)
        for one in found
    ]
    _show.Page().table(("SESSION", "USER", "STATE", "LAST", "MADE", "GOAL"), rows)
