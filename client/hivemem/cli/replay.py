"""`hivemem replay`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hivemem import condense
from hivemem.cli import _show
from hivemem.cli._options import DEFAULT_ADDRESS, Address, Json, Namespace, connected
from hivemem.replay import formats, player

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hivemem.replay.player import Played
    from hivemem.replay.recording import Recording


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(replay)


def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Recorded conversations.")],
    session: Annotated[
        str | None, typer.Option("--session", help="Where to, if it is one file.", show_default="named after the file")
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", help=f"What the files are, one of: {', '.join(formats.FORMATS)}.")
    ] = "auto",
    speed: Annotated[
        float | None,
        typer.Option("--speed", min=0.001, help="Keeps the pauses of the recording, so many times as fast."),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    namespace: Namespace = "default",
    as_json: Json = False,
) -> None:
    """Plays recorded conversations of several agents into sessions, one process for each agent.

    Every agent says its next turn when it has been shown the turn before, so that the order is that of the file.
    Playing a file again stores nothing twice: it goes on where an earlier replay stopped.

    Format `jsonl`: on each line an object with `agent` and `text`, and `time`, `kind`, `to`, `tags`, `decisions`,
    `open_threads`, `attributes` if you like.

    Format `openai`: a list of chat messages with `role`, `content`, `name`, `tool_calls`.

    Format `who-when`: logs of multi-agent runs with a `history`.
    """
    if session and len(files) > 1:
        raise typer.BadParameter("several files go to several sessions: give one file", param_hint="--session")
    if file_format not in formats.FORMATS:
        raise typer.BadParameter(f"one of: {', '.join(formats.FORMATS)}", param_hint="--format")
    recordings = [formats.read(file, file_format) for file in files]
    all_played = asyncio.run(_replay(address, namespace, recordings, session, speed))
    for recording, played in zip(recordings, all_played, strict=True):
        if as_json:
            _show.json_line(played)
        else:
            _print(played, _words(recording), _options(address, namespace))


async def _replay(
    address: str, namespace: str, recordings: Sequence[Recording], session_id: str | None, speed: float | None
) -> list[Played]:
    async with connected(address, namespace) as memory:
        with _progress() as progress:
            return [
                await player.play(one, memory, session_id=session_id, speed=speed, on_turn=_bar(progress, one))
                for one in recordings
            ]


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _bar(progress: Progress, recording: Recording) -> player.OnTurn:
    task = progress.add_task(_show.one_line(recording.name), total=len(recording.turns))

    def advance(turns: int) -> None:
        progress.update(task, completed=turns)

    return advance


def _options(address: str, namespace: str) -> str:
    """The options that lead other commands to the same place."""
    given = {"--address": (address, DEFAULT_ADDRESS), "--namespace": (namespace, "default")}
    return "".join(f" {name} {value}" for name, (value, usual) in given.items() if value != usual)


def _words(recording: Recording) -> str:
    """What it may be searched for: words that its turns turn on."""
    return " ".join(condense.key_terms((turn.summary for turn in recording.turns), most=3)) or "anything"


def _print(played: Played, words: str, options: str) -> None:
    page = _show.Page()
    page.line(
        (played.session_id, "bold magenta"),
        f"  {played.turns} turns of {len(played.agents)} agents"
        f" at positions {played.first_position} to {played.last_position}",
        (f"  ({played.repeated} were there already)" if played.repeated else "", "dim"),
    )
    page.block(", ".join(played.agents), indent=2, style="cyan")
    if played.condensed:
        page.line(f"  {played.condensed} longer than 32 KiB: condensed, the full length is in `original_bytes`")
    page.line("  next: ", (f"hivemem tail {played.session_id}{options}", "green"))
    page.line("        ", (f"hivemem search '{words}' --session {played.session_id}{options}", "green"))
