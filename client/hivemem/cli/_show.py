"""How things look: on a terminal for people, piped for programs that read lines, or as JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hivemem._models import Episode

# What agents wrote must not steer the terminal.
_HARMLESS = {code: "�" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
_NARROWEST_TEXT = 20


def json_line(value: object, **more: float | None) -> None:
    """Writes a value as one JSON document on a line of its own, with what more there is to say of it."""
    sys.stdout.write(json.dumps({**_plain(value), **more} if more else _plain(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """The value in terms of JSON: times as ISO 8601, spans in seconds, bytes in base64."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def harmless(text: str) -> str:
    """Text without control characters other than line ends and tabs."""
    return text.translate(_HARMLESS)


def one_line(text: str) -> str:
    """Text in one line."""
    return " ".join(harmless(text).split())


def local(moment: datetime | None) -> str:
    """A time on the clock of this machine."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves it to the command as a whole to end in silence."""
        raise BrokenPipeError


class Page:
    """Where output goes. On a terminal text is wrapped and lists are cut to the width; piped nothing is."""

    def __init__(self) -> None:
        self._console = _Console(highlight=False, soft_wrap=True, emoji=False)

    @property
    def _for_people(self) -> bool:
        return self._console.is_terminal

    def line(self, *parts: tuple[str, str] | str) -> None:
        """Writes a line of parts, each a text or a text with its style."""
        cleaned = [harmless(part) if isinstance(part, str) else (harmless(part[0]), part[1]) for part in parts]
        self._console.print(Text.assemble(*cleaned))

    def heading(self, text: str) -> None:
        """Writes a heading with an empty line before it."""
        self.line()
        self.line((text, "bold"))

    def block(self, text: str, *, indent: int = 0, style: str = "") -> None:
        """Writes text of any length, indented."""
        body = Text(harmless(text), style)
        if self._for_people:
            self._console.print(Padding(body, (0, 0, 0, indent)), soft_wrap=False)
            return
        for line in body.split(allow_blank=True):
            self._console.print(Text(" " * indent) + line)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Writes rows in columns. The last column takes what room there is, the others are never cut."""
        cells = [list(columns), *([one_line(cell) for cell in row] for row in rows)]
        widths = [max(cell_len(row[index]) for row in cells) for index in range(len(columns) - 1)]
        room = max(self._console.width - sum(widths) - 2 * len(widths), _NARROWEST_TEXT)
        for number, row in enumerate(cells):
            last = self._cut(row[-1], room)
            padded = [set_cell_size(cell, width) for cell, width in zip(row, widths, strict=False)]
            self._console.print(Text("  ".join([*padded, last]).rstrip(), style="" if number else "bold"))

    def _cut(self, text: str, room: int) -> str:
        if not self._for_people or cell_len(text) <= room:
            return text
        return set_cell_size(text, room - 1).rstrip() + "…"

    def episode(self, episode: Episode, *, score: float | None = None, snippet: str | None = None) -> None:
        """Writes an episode; with a snippet in place of its summary if there is one."""
        marks = [f"#{tag}" for tag in episode.tags] + [f"@{agent}" for agent in episode.to_agents]
        self.line(
            (f"{episode.position:>6}", "bold"),
            (f"  {local(episode.commit_time)}", "dim"),
            (f"  {episode.agent_id}", "cyan"),
            *([(f"  {episode.session_id}", "magenta"), (f"  {score:.3f}", "green")] if score is not None else []),
            f"  {episode.kind}",
            (f"  {' '.join(marks)}" if marks else "", "dim"),
        )
        self.block(snippet or episode.summary, indent=8)
        for decision in episode.decisions:
            self.block(f"decided: {decision.text}", indent=8, style="yellow")
        for opened in episode.open_threads:
            self.block(f"open: {opened.text}  [{opened.thread_id}]", indent=8, style="blue")
        for word, references in (("resolved", episode.resolves), ("dropped", episode.drops)):
            for reference in references:
                self.line((f"        {word}: {reference.thread_id}", "green"))
