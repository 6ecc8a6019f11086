"""`hivemem append`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from hivemem._errors import SessionNotFound
from hivemem._models import NewEpisode
from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected

Many = list[str] | None


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(append)


def append(
    session: Annotated[str, typer.Argument(help="The session. It is made if it is not there.")],
    agent: Annotated[str, typer.Option("--agent", help="Who writes.")],
    summary: Annotated[str, typer.Option("--summary", help="What happened; `-` reads it from stdin.")],
    decision: Annotated[Many, typer.Option("--decision", help="What was decided. May be repeated.")] = None,
    thread: Annotated[Many, typer.Option("--thread", help="What is left open. May be repeated.")] = None,
    resolve: Annotated[Many, typer.Option("--resolve", help="Id of a thread that is done. May be repeated.")] = None,
    tag: Annotated[Many, typer.Option("--tag", help="A label to find it by. May be repeated.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="What sort of episode it is. [default: note]")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Whose session it is, if it has to be made.")] = None,
    address: Address = DEFAULT_ADDRESS,
    namespace: Namespace = "default",
    as_json: Json = False,
) -> None:
    """Appends an episode."""
    episode = NewEpisode(
        summary=sys.stdin.read().rstrip("\n") if summary == "-" else summary,
        decisions=decision or [],
        open_threads=thread or [],
        resolves=resolve or [],
        tags=tag or [],
        kind=kind,
    )
    asyncio.run(_append(address, namespace, session, user, agent, episode, as_json=as_json))


async def _append(
    address: str,
    namespace: str,
    session_id: str,
    user: str | None,
    agent_id: str,
    episode: NewEpisode,
    *,
    as_json: bool,
) -> None:
    async with connected(address, namespace) as memory:
        try:
            session = await memory.get_session(session_id)
        except SessionNotFound:
            session = await memory.session(session_id, user_id=user)
        (done,) = await session.agent(agent_id).append_all([episode])
    if as_json:
        _show.json_line(done)
        return
    page = _show.Page()
    page.line(f"episode {done.episode_id} at position {done.position}, revision {done.revision} of {agent_id}")
    for thread_id, opened in zip(done.thread_ids, episode.open_threads, strict=False):
        page.line(f"thread {thread_id}: {_show.one_line(str(opened))}")
