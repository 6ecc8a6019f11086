"""`hivemem resume`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected

if TYPE_CHECKING:
    from hivemem._models import Omission, PlanProgress, Resumed


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(resume)


def resume(
    session: Annotated[str | None, typer.Argument(help="The session to resume.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Resumes the latest open session of this user.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Who resumes: its own episodes come first.")] = None,
    address: Address = DEFAULT_ADDRESS,
    namespace: Namespace = "default",
    as_json: Json = False,
) -> None:
    """Shows what an agent needs to go on where a session stopped."""
    if (session is None) == (user is None):
        raise typer.BadParameter("resume takes a session or --user", param_hint="SESSION")
    resumed = asyncio.run(_resume(address, namespace, session, user, agent))
    if as_json:
        _show.json_line(resumed)
    else:
        _print(resumed)


async def _resume(
    address: str, namespace: str, session_id: str | None, user_id: str | None, agent_id: str | None
) -> Resumed:
    async with connected(address, namespace) as memory:
        return await memory.resume(session_id=session_id, user_id=user_id, agent_id=agent_id)


def _print(resumed: Resumed) -> None:
    page = _show.Page()
    if resumed.session is None:
        page.line("nothing to resume: this user has no session yet")
        return
    session = resumed.session
    page.line((session.session_id, "bold magenta"), f"  {session.state}", (f"  {session.goal}", "italic"))
    _print_messages(page, resumed)
    _print_state(page, resumed)


def _print_messages(page: _show.Page, resumed: Resumed) -> None:
    page.heading(f"Messages for the model (about {resumed.token_count} tokens)")
    for message in resumed.messages:
        page.line((f"  {message.role}:", "cyan"))
        page.block(message.content, indent=4)


def _print_state(page: _show.Page, resumed: Resumed) -> None:
    if resumed.decisions:
        page.heading("Decisions that stand")
    for standing in resumed.decisions:
        page.block(f"{standing.agent_id} at {standing.position}: {standing.decision.text}", indent=2)
    if resumed.open_threads:
        page.heading("Open threads")
    for thread in resumed.open_threads:
        holder = f", claimed by {thread.claim.agent_id}" if thread.claim else ""
        page.block(f"{thread.text}  [{thread.thread_id}{holder}]", indent=2)
    for plan in resumed.plans:
        page.line(f"  plan {plan.plan_id}: {_progress(plan)}")
    if resumed.episodes:
        page.heading("Last episodes")
    for episode in resumed.episodes:
        page.episode(episode)
    if resumed.summaries:
        page.heading("Other sessions of this user")
    for summary in resumed.summaries:
        page.block(f"{summary.session_id}: {summary.summary}", indent=2)
    for omission in resumed.omitted:
        page.line((f"note: {_note(omission)}", "dim"))


def _progress(plan: PlanProgress) -> str:
    if plan.current_step:
        return f"step {plan.current_step} of {plan.total_steps}"
    return f"no step is left, {plan.resolved_steps} of {plan.total_steps} are done"


def _note(omission: Omission) -> str:
    what, where = omission.what, "into the messages"
    if what.startswith("listed_"):
        what, where = what.removeprefix("listed_"), "into the list"
    return f"{omission.count} {what.replace('_', ' ')} did not fit {where}"
