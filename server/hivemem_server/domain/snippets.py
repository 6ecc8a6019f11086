"""The part of an episode that fits a query best, with the query's words marked."""

from __future__ import annotations

import re

from hivemem_server.domain.values import Episode

LONGEST = 240
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_ENDINGS = ("ing", "es", "ed", "s", "e")


def snippet(episode: Episode, query: str) -> str:
    """The sentence with most of the query's words of four letters and more, those between « and »; else the first."""
    wanted = {_stem(word) for word in _WORD.findall(query) if len(word) > 3}
    texts = [episode.summary, *(d.text for d in episode.decisions), *(t.text for t in episode.open_threads)]
    sentences = [part for text in texts for part in _SENTENCE_END.split(text) if part.strip()]
    best = max(sentences, key=lambda sentence: len(wanted & _stems(sentence)), default="")
    return _WORD.sub(lambda match: f"«{match[0]}»" if _stem(match[0]) in wanted else match[0], _cut(best, wanted))


def _cut(sentence: str, wanted: set[str]) -> str:
    """At most LONGEST characters, around the first wanted word."""
    text = " ".join(sentence.split())
    if len(text) <= LONGEST:
        return text
    first = next((match.start() for match in _WORD.finditer(text) if _stem(match[0]) in wanted), 0)
    start = max(0, min(first - LONGEST // 4, len(text) - LONGEST))
    return ("…" if start else "") + text[start : start + LONGEST].strip() + ("…" if start + LONGEST < len(text) else "")


def _stems(text: str) -> set[str]:
    return {_stem(word) for word in _WORD.findall(text)}


def _stem(word: str) -> str:
    """Price, prices and pricing are one; more is not needed to mark words."""
    lowered = word.lower()
    for ending in _ENDINGS:
        if lowered.endswith(ending) and len(lowered) - len(ending) > 2:
            return lowered.removesuffix(ending)
    return lowered
