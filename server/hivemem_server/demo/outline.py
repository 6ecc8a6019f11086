"""What the brief is to be about: sections, chosen by what the findings turn on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import hivemem
from hivemem import condense

_MOST_TOPICS = 3
_MOST_TERMS = 24
_OVERVIEW_TERMS = 4
_NUMBERING = re.compile(r"^\s*(?:\d+(?:\.\d+)*|[A-Z])[.)]\s+|\s*\([^()]*\)\s*$")


class Source(StrEnum):
    """What of the findings a section is made of."""

    LEADS = "leads"
    SUMMARIES = "summaries"
    DECISIONS = "decisions"
    OPEN_POINTS = "open-points"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section to be written. Its title is also what is searched for."""

    title: str
    source: Source


def outline(findings: Sequence[hivemem.Episode]) -> list[Section]:
    """The sections that the findings call for, at least one."""
    terms = condense.key_terms((finding.summary for finding in findings), most=_MOST_TERMS)
    overview = ", ".join(terms[:_OVERVIEW_TERMS]) or "what was found"
    sections = [Section(title=f"Overview: {overview}", source=Source.LEADS)]
    sections += [Section(title=topic, source=Source.SUMMARIES) for topic in _topics(findings, terms)]
    if any(finding.decisions for finding in findings):
        sections.append(Section(title="Rules and decisions", source=Source.DECISIONS))
    if any(finding.open_threads for finding in findings):
        sections.append(Section(title="What is open", source=Source.OPEN_POINTS))
    return sections


def _topics(findings: Sequence[hivemem.Episode], terms: Sequence[str]) -> list[str]:
    """Headings of the texts that have most of the terms, each with others; then terms alone."""
    weights = {stem: len(terms) - place for place, term in enumerate(terms) for stem in condense.stems(term)}
    candidates = list(dict.fromkeys(_headings(findings)))
    chosen: list[str] = []

    def weight(title: str) -> int:
        return sum(weights.get(stem, 0) for stem in set(condense.stems(title)))

    for _ in range(_MOST_TOPICS):
        pool = candidates if any(map(weight, candidates)) else [term.capitalize() for term in terms]
        best = max(pool, key=weight, default=None)
        if best is None or not weight(best):
            break
        chosen.append(best)
        for stem in condense.stems(best):
            weights.pop(stem, None)
    return chosen


def _headings(findings: Sequence[hivemem.Episode]) -> Iterator[str]:
    for finding in findings:
        for heading in str(finding.attributes.get("headings", "")).split(" / "):
            if title := _NUMBERING.sub("", heading).strip():
                yield title
