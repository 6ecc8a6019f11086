"""Episodes to write: the same for every run, with lengths and words as agents write them.

A summary has about 300 bytes; an episode has one decision, and every other one opens a thread. Words follow Zipf's
law, so that a search finds many matches for one word and few for another.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from hivemem.v1 import types_pb2

SEED = 7
WORDS = 6_000
SENTENCES = 4_000
_OFTEN = [
    "the",
    "of",
    "and",
    "to",
    "a",
    "in",
    "for",
    "is",
    "on",
    "that",
    "with",
    "as",
    "was",
    "by",
    "it",
    "from",
    "at",
    "an",
    "be",
    "are",
    "this",
    "which",
    "or",
    "we",
    "not",
    "have",
    "has",
]
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in ("a", "e", "i", "o", "u", "an", "er")]
_FIRST_MILLISECOND = 1_750_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One episode, before it is a message or a row."""

    episode_id: UUID
    turn: int
    summary: str
    decision: str
    thread: str | None


class Texts:
    """An endless supply. Two with the same stream number give the same; two with others share no id."""

    def __init__(self, stream: int = 0) -> None:
        self._random = random.Random(SEED + stream)
        self._stream = stream
        self._sentences = _sentences()
        self._count = itertools.count(1)

    def episode(self) -> Written:
        """The next episode."""
        number = next(self._count)
        return Written(
            episode_id=self._id(number),
            turn=number,
            summary=" ".join(self._random.choices(self._sentences, k=4)),
            decision=self._random.choice(self._sentences),
            thread=self._random.choice(self._sentences) if number % 2 else None,
        )

    def episodes(self, count: int) -> list[Written]:
        """The next ones."""
        return [self.episode() for _ in range(count)]

    def message(self) -> types_pb2.NewEpisode:
        """The next episode as it is sent."""
        return message(self.episode())

    def messages(self, count: int) -> list[types_pb2.NewEpisode]:
        """The next ones."""
        return [self.message() for _ in range(count)]

    def _id(self, number: int) -> UUID:
        """Of version 7: ids grow with time, as those of real clients do."""
        low = self._random.getrandbits(46) << 16 | self._stream
        return UUID(int=(_FIRST_MILLISECOND + number) << 80 | 0x7 << 76 | 0b10 << 62 | low)


def message(written: Written) -> types_pb2.NewEpisode:
    """An episode as it is sent."""
    return types_pb2.NewEpisode(
        episode_id=str(written.episode_id),
        turn=written.turn,
        summary=written.summary,
        decisions=[types_pb2.NewDecision(text=written.decision)],
        open_threads=[types_pb2.NewThread(text=written.thread)] if written.thread else [],
    )


def queries(count: int) -> list[str]:
    """What agents look for: four words each, none too common and none too rare."""
    chooser = random.Random(SEED)
    return [" ".join(chooser.sample(_vocabulary()[100:1_000], k=4)) for _ in range(count)]


def _sentences() -> list[str]:
    chooser = random.Random(SEED)
    weights = list(itertools.accumulate(1 / rank for rank in range(1, WORDS + 1)))
    vocabulary = _vocabulary()

    def sentence() -> str:
        words = chooser.choices(vocabulary, cum_weights=weights, k=chooser.randint(9, 15))
        return " ".join(words).capitalize() + "."

    return [sentence() for _ in range(SENTENCES)]


def _vocabulary() -> list[str]:
    return _OFTEN + list(itertools.islice(_made_words(), WORDS - len(_OFTEN)))


def _made_words() -> Iterator[str]:
    chooser, known = random.Random(SEED), set(_OFTEN)
    while True:
        word = "".join(chooser.choices(_SYLLABLES, k=chooser.randint(2, 4)))
        if word not in known:
            known.add(word)
            yield word
