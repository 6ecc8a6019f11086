"""`hivemem threads`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from hivemem._models import ThreadState
from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected

if TYPE_CHECKING:
    from hivemem._models import Thread

Many = list[str] | None

_UNFINISHED = [ThreadState.OPEN, ThreadState.CLAIMED]
_STATES: dict[str, list[ThreadState]] = {
    str(state): [state] for state in ThreadState if state is not ThreadState.UNKNOWN
}
_CHOICES: dict[str, list[ThreadState]] = {**_STATES, "unfinished": _UNFINISHED, "all": []}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(threads)


def threads(
    session: Annotated[Many, typer.Option("--session", help="Only of this session. May be repeated.")] = None,
    user: Annotated[Many, typer.Option("--user", help="Only of sessions of this user. May be repeated.")] = None,
    state: Annotated[str, typer.Option("--state", help=f"One of: {', '.join(_CHOICES)}.")] = "unfinished",
    address: Address = DEFAULT_ADDRESS,
    namespace: Namespace = "default",
    as_json: Json = False,
) -> None:
    """Lists threads: what is left to do, oldest first."""
    if state not in _CHOICES:
        raise typer.BadParameter(f"one of: {', '.join(_CHOICES)}", param_hint="--state")
    found = asyncio.run(_threads(address, namespace, session or [], user or [], _CHOICES[state]))
    if as_json:
        for thread in found:
            _show.json_line(thread)
        return
    rows = [(one.thread_id, _state(one), one.session_id, one.text) for one in found]
    _show.Page().table(("THREAD", "STATE", "SESSION", "TEXT"), rows)


def _state(thread: Thread) -> str:
    return f"{thread.state} by {thread.claim.agent_id}" if thread.claim else str(thread.state)


async def _threads(
    address: str, namespace: str, sessions: list[str], users: list[str], states: list[ThreadState]
) -> list[Thread]:
    async with connected(address, namespace) as memory:
        return [thread async for thread in memory.threads(sessions=sessions, users=users, states=states)]
