"""What can be a secret by its looks alone: known formats and random runs, both found in long words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hivemem.redaction._entropy import SHORTEST_RUN, random_runs
from hivemem.redaction._finding import Finding
from hivemem.redaction._formats import known_formats

if TYPE_CHECKING:
    from collections.abc import Iterator

# No known format is shorter. Prose has few such words; all that is between them is skipped in one step and not read
# again, which makes most text fast.
_ALPHABET = r"A-Za-z0-9_.:/+=~%$@-"
_LONG_WORD = re.compile(rf"(?:[{_ALPHABET}]{{0,19}}+(?:[^{_ALPHABET}]++|\Z))*+(?P<word>[{_ALPHABET}]{{20,}}+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Words of known formats, and runs that look drawn at random. They may overlap."""

    known: list[Finding]
    random: list[Finding]


def secret_words(text: str) -> Words:
    """What in the text looks like a secret."""
    words = Words(known=[], random=[])
    for start, end in long_words(text):
        words.known.extend(known_formats(text, start, end))
        if end - start >= SHORTEST_RUN:
            runs = random_runs(text, start, end)
            words.random.extend(Finding(kind="high-entropy", start=run[0], end=run[1]) for run in runs)
    return words


def long_words(text: str) -> Iterator[tuple[int, int]]:
    """Where at least twenty characters stand together that keys and tokens are made of."""
    return (found.span("word") for found in _LONG_WORD.finditer(text) if found["word"])
