"""What the demo shows: in colour and fitted to the width on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hivemem
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.status import Status
from rich.text import Text

_PIPED_WIDTH = 160
_COLOURS = {"researcher-1": "cyan", "researcher-2": "magenta", "writer": "yellow"}
_HARMLESS = {code: "�" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the memory holds when the demo is over."""

    session_id: str
    brief: str
    # By agent.
    episodes: Mapping[str, int]
    decisions: int
    # By state.
    threads: Mapping[str, int]
    vectors: int
    model: str
    database: str
    data_dir: Path
    # Something to search for.
    words: str


class Screen:
    """Shows the demo on a console."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, emoji=False)
        if not self._console.is_terminal:
            self._console.width = _PIPED_WIDTH
        self._status: Status | None = None
        self._written: Counter[str] = Counter()
        self._pushed = 0
        self._agents: Sequence[str] = ()
        self._notices: set[str] = set()

    @property
    def is_watched(self) -> bool:
        """Whether people look at it as it goes."""
        return self._console.is_terminal

    # ---- the course of things ------------------------------------------------------------------------------------

    def introduction(self, what: str, files: int, left_out: int, words: str) -> None:
        """Says what is going to happen."""
        self._line(("hivemem demo", "bold"), "  one shared memory, three agents, each a process of its own")
        more = f" ({left_out} more are left out)" if left_out else ""
        self._paragraph(f"They read {files} files: {what}{more}.")
        self._paragraph(f"Their words: {words}.")

    def heading(self, text: str) -> None:
        """Begins a part."""
        self._console.print()
        if self.is_watched:
            self._console.print(Rule(Text(text, "bold"), align="left", style="dim"))
        else:
            self._line(f"== {text}")

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Shows that something takes a while."""
        if not self.is_watched:
            self._line(f"{text} …")
            yield
            return
        with self._console.status(f"{text} …"):
            yield

    @contextlib.contextmanager
    def streams(self, agents: Sequence[str]) -> Iterator[None]:
        """Shows, below everything else, how far the stream of each agent has come."""
        if not self.is_watched:
            yield
            return
        with self._console.status(self._progress(agents)) as status:
            self._status, self._agents = status, agents
            try:
                yield
            finally:
                self._status = None

    def _progress(self, agents: Sequence[str]) -> Text:
        parts = [(f"{agent} {self._written[agent]}   ", _COLOURS.get(agent, "")) for agent in agents]
        return Text.assemble(*parts, (f"pushed to the writer: {self._pushed}", "dim"))

    def _refresh(self) -> None:
        if self._status is not None:
            self._status.update(self._progress(self._agents))

    def started(self, agents: Sequence[tuple[str, int]]) -> None:
        """Says which processes there are."""
        for name, pid in agents:
            self._line((name, _COLOURS.get(name, "")), f" is process {pid}")

    def episode(self, episode: hivemem.Episode) -> None:
        """Shows an episode that has just been delivered."""
        self._written[episode.agent_id] += 1
        what = str(episode.attributes.get("file", episode.kind)).rpartition("/")[2]
        self._short(
            (f"{episode.position:>4}  ", "bold"),
            (f"{episode.agent_id} #{episode.revision:<3}", _COLOURS.get(episode.agent_id, "")),
            (f" {what}  ", "green"),
            " ".join(episode.summary.split()),
        )
        for decision in episode.decisions[:1]:
            self._short(("        decided: ", "dim"), decision.text)
        for opened in episode.open_threads[:1]:
            self._short(("        open: ", "dim"), opened.text)
        self._refresh()

    def pushed(self, _agent: str) -> None:
        """Notes that an agent was pushed an episode."""
        self._pushed += 1
        self._refresh()

    def notice(self, agent: str, text: str) -> None:
        """Tells of something that did not go as hoped, once."""
        if text not in self._notices:
            self._notices.add(text)
            self._paragraph(f"{agent}: {text}", style="yellow")

    def killed(self, pid: int, done: int, steps: int) -> None:
        """Tells of the kill."""
        self._line((f"SIGKILL: the writer (process {pid}) is dead, after {done} of {steps} sections", "bold red"))
        self._line(f"It had been pushed {self._pushed} episodes while the researchers were at work.")

    def resumed(self, pid: int, message: Mapping[str, Any]) -> None:
        """Shows what a new process was given to go on with."""
        title = f"what process {pid} gets from ResumeSession (about {message['tokens']} tokens)"
        if self.is_watched:
            body = Text("\n").join(_text((f"{one['role']}: ", "bold"), one["content"]) for one in message["messages"])
            self._console.print(Panel(body, title=title, title_align="left", border_style="blue"))
        else:
            self._line(title)
            for one in message["messages"]:
                self._paragraph(f"{one['role']}: {one['content']}", indent=2)
        self._line(f"{message['done']} of {message['steps']} sections are done; it goes on with the next one.")

    # ---- the end -------------------------------------------------------------------------------------------------

    def end(self, stored: Stored, *, temporary: bool) -> None:
        """Shows the brief, what is stored, and what to try next."""
        self.heading("The brief")
        self._brief(stored.brief)
        self.heading("What is stored")
        self._figures(stored, temporary)
        self.heading("To try next")
        self._command(f"hivemem serve --data-dir {shlex.quote(str(stored.data_dir))}", "in one terminal")
        self._command(f"hivemem search {shlex.quote(stored.words)} --session {stored.session_id}", "in another")

    def _brief(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith("## "):
                self._line((line.removeprefix("## "), "bold"))
            elif line.startswith("- "):
                self._paragraph(f"• {line[2:]}", indent=2)
            else:
                self._line((f"  {line}" if line else "", "dim"))

    def _figures(self, stored: Stored, temporary: bool) -> None:
        by_agent = ", ".join(f"{agent} {count}" for agent, count in sorted(stored.episodes.items()))
        by_state = ", ".join(f"{count} {state}" for state, count in sorted(stored.threads.items()))
        where = f"{stored.data_dir}" + (" (temporary: remove it when you are done)" if temporary else "")
        rows = {
            "session": f"{stored.session_id} of user demo",
            "episodes": f"{sum(stored.episodes.values())} ({by_agent})",
            "decisions": str(stored.decisions),
            "threads": f"{sum(stored.threads.values())} ({by_state})",
            "vectors": f"{stored.vectors} of {stored.model}" if stored.model else "none: there is no embedder",
            "database": stored.database,
            "where": where,
        }
        for name, value in rows.items():
            self._line((f"{name:<11}", "dim"), value)

    def _command(self, command: str, where: str) -> None:
        self._line((command, "green"), (f"   # {where}", "dim"))

    # ---- lines ---------------------------------------------------------------------------------------------------

    def _line(self, *parts: tuple[str, str] | str) -> None:
        """Writes a line that may be copied: it is not broken."""
        self._console.print(_text(*parts), soft_wrap=True)

    def _paragraph(self, text: str, *, indent: int = 0, style: str = "") -> None:
        """Writes text of any length: on a terminal it is broken into lines."""
        if self.is_watched:
            self._console.print(Padding(Text(_harmless(text), style), (0, 0, 0, indent)))
            return
        for line in text.splitlines():
            self._line(" " * indent + line)

    def _short(self, *parts: tuple[str, str] | str) -> None:
        """Writes a line that is cut where the screen ends."""
        self._console.print(_text(*parts), overflow="ellipsis", no_wrap=True)


def _text(*parts: tuple[str, str] | str) -> Text:
    cleaned = [_harmless(part) if isinstance(part, str) else (_harmless(part[0]), part[1]) for part in parts]
    return Text.assemble(*cleaned)


def _harmless(text: str) -> str:
    """What agents wrote must not steer the terminal."""
    return text.translate(_HARMLESS)
