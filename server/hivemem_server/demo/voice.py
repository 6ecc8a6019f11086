"""How the agents find their words: by quoting what they read, or through a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hivemem import condense

from hivemem_server.demo.model import Model, ModelFailed

SUMMARY_SENTENCES = 3
MOST_DECISIONS = 3
_SUMMARY_BYTES = 4_000
MOST_OPEN_POINTS = 2
MOST_STATEMENTS = 3
_LONGEST_STATEMENT = 320
_SHORTEST_STATEMENT = 40
_READ_CHARACTERS = 12_000  # of a part, by a model
_CITATIONS = re.compile(r"\[(\d+(?:\s*,\s*\d+)*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an agent makes of something it has read."""

    summary: str
    decisions: Sequence[str]
    open_points: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that may be cited: what an episode says, by its position."""

    position: int
    sentences: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A sentence of the brief, and the positions of the episodes that it comes from: at least one."""

    text: str
    cites: Sequence[int]

    def __str__(self) -> str:
        return " ".join([self.text, "".join(f"[{position}]" for position in self.cites)])


def without_citations(line: str) -> str:
    """The text of a statement as it was before it was written down in a list."""
    return " ".join(_CITATIONS.sub(" ", line).split()).removeprefix("- ")


class Voice(Protocol):
    """Where the words come from. It never raises: a voice that fails falls back on quoting, and tells it once."""

    async def finding(self, text: str) -> Finding:
        """What a text says, decides and leaves open."""
        ...

    async def section(self, title: str, notes: Sequence[Note], said: Collection[str]) -> list[Statement]:
        """Statements about a title, each from one or more of the notes; nothing again that was said before."""
        ...


class Quoting:
    """Quotes word for word."""

    async def finding(self, text: str) -> Finding:
        """As the port says."""
        return Finding(
            summary=condense.summarise(text, sentences=SUMMARY_SENTENCES, most_bytes=_SUMMARY_BYTES),
            decisions=_short(condense.decisions(text))[:MOST_DECISIONS],
            open_points=_short(condense.open_questions(text))[:MOST_OPEN_POINTS],
        )

    async def section(self, title: str, notes: Sequence[Note], said: Collection[str]) -> list[Statement]:
        """As the port says: from each note the sentence that has most to do with the title."""
        wanted = set(condense.stems(title))
        best: dict[str, int] = {}
        for note in notes:
            fresh = [one for one in _short(note.sentences) if one not in said and one not in best]
            if fresh:
                sentence = max(fresh, key=lambda one: _shared(wanted, one))
                best[sentence] = _shared(wanted, sentence)
        fitting = [sentence for sentence, shared in best.items() if shared] or list(best)
        return [
            Statement(text=text, cites=[note.position for note in notes if text in _short(note.sentences)])
            for text in fitting[:MOST_STATEMENTS]
        ]


def _short(sentences: Sequence[str]) -> list[str]:
    """The sentences of a length that reads well, if there are any."""
    fitting = [sentence for sentence in sentences if _SHORTEST_STATEMENT <= len(sentence) <= _LONGEST_STATEMENT]
    return fitting or [condense.cut(sentence, _LONGEST_STATEMENT) for sentence in sentences]


def _shared(wanted: set[str], sentence: str) -> int:
    return len(wanted.intersection(condense.stems(sentence)))


class Speaking:
    """Lets a model say it."""

    def __init__(self, model: Model, notice: Callable[[str], None]) -> None:
        self._model: Model | None = model
        self._notice = notice
        self._quoting = Quoting()

    async def finding(self, text: str) -> Finding:
        """As the port says."""
        answer = await self._ask(_FINDING_PROMPT, text[:_READ_CHARACTERS])
        return _finding(answer) or await self._quoting.finding(text)

    async def section(self, title: str, notes: Sequence[Note], said: Collection[str]) -> list[Statement]:
        """As the port says. A line of the model that cites nothing it was given is left out."""
        given = "\n".join(f"[{note.position}] {' '.join(note.sentences)}" for note in notes)
        answer = await self._ask(_SECTION_PROMPT.format(title=title), given[:_READ_CHARACTERS])
        known = {note.position for note in notes}
        statements = [one for one in _statements(answer, known) if one.text not in said]
        return statements[:MOST_STATEMENTS] or await self._quoting.section(title, notes, said)

    async def _ask(self, instruction: str, text: str) -> str:
        """The model's answer; empty if it has none. A model that fails is not asked again."""
        if self._model is None:
            return ""
        try:
            return await self._model.answer(instruction, text)
        except ModelFailed as error:
            self._model = None
            self._notice(f"{error}: quoting from here on")
            return ""


_FINDING_PROMPT = """\
You read part of a document for a colleague who writes a brief. Answer in plain lines and nothing else.
First one to three sentences that say what the text says. Then, if the text has them: up to three lines that begin with
"DECISION: ", each a decision or rule that the text states; up to two lines that begin with "OPEN: ", each something
that the text leaves open. Say nothing that the text does not say."""

_SECTION_PROMPT = """\
You write the section "{title}" of a short brief from the numbered notes of your colleagues. Answer with one to three
sentences, each on a line of its own, each ending with the numbers of the notes that it comes from in brackets, as in
[12] or [3][7]. Use the notes alone. If they say nothing about the title, say what they do say."""


def _finding(answer: str) -> Finding | None:
    lines = [line.strip().lstrip("-*• ") for line in answer.splitlines()]
    kept = {mark: [line.removeprefix(mark).strip() for line in lines if line.startswith(mark)] for mark in _MARKS}
    summary = " ".join(line for line in lines if line and not line.startswith(_MARKS))
    if not summary:
        return None
    decisions, open_points = ([one for one in kept[mark] if one] for mark in _MARKS)
    return Finding(
        summary=condense.cut(summary, _SUMMARY_BYTES),
        decisions=[condense.cut(one, 1_000) for one in decisions][:MOST_DECISIONS],
        open_points=[condense.cut(one, 1_000) for one in open_points][:MOST_OPEN_POINTS],
    )


_MARKS = ("DECISION:", "OPEN:")


def _statements(answer: str, known: Collection[int]) -> Iterator[Statement]:
    for line in answer.splitlines():
        numbers = [int(number) for group in _CITATIONS.findall(line) for number in group.split(",")]
        cites = [number for number in dict.fromkeys(numbers) if number in known]
        text = " ".join(_CITATIONS.sub(" ", line).split()).lstrip("-*• ").replace(" .", ".")
        if cites and text:
            yield Statement(text=condense.cut(text, 1_000), cites=cites)
