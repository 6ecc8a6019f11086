"""Replaces secrets in text by marks such as `[REDACTED:github-token]`, before the text is stored, sent or logged.

    redact("password=hunter2 for the board")     # 'password=[REDACTED:password] for the board'

Found are keys and tokens of known formats, private keys, passwords in addresses, headers and assignments, and long runs
of characters that look drawn at random. Digests, commits, UUIDs, paths and names are left alone. The time taken grows
with the length of the text, whatever it holds, and redacting what was redacted changes nothing.

The text itself is all that is looked at: nothing is read, sent, kept or logged here.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hivemem.redaction._anchored import anchored_secrets
from hivemem.redaction._finding import MARK, Finding, blank_marks, mark
from hivemem.redaction._patterns import compile_patterns, pattern_matches
from hivemem.redaction._personal import FINDERS
from hivemem.redaction._words import secret_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OPTIONAL_KINDS", "Finding", "Redactor", "Rules", "redact"]

OPTIONAL_KINDS = frozenset(FINDERS)

# What replaced a secret may uncover another; texts that go on like this are made for it.
_MOST_ROUNDS = 4
# A known format, in no row of this, comes second.
_FROM_TELLING_TO_VAGUE = (
    ("private-key",), (),
    ("authorization-header", "url-credentials", "cookie", "api-key", "token", "secret", "password", "signature"),
    ("high-entropy",), OPTIONAL_KINDS, ("custom",),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is replaced. By default: all that is known to be secret, and no personal data."""

    # Whether anything is replaced at all.
    enabled: bool = True
    # Kinds of personal data to replace too: any of OPTIONAL_KINDS.
    kinds: frozenset[str] | tuple[str, ...] = ()
    # Further regular expressions, in syntax that RE2 and Python share, whose matches are replaced as `custom`. At most
    # 64 of 1 KiB; without references, lookarounds and repeats whose time could grow faster than the text.
    patterns: tuple[str, ...] = ()


class Redactor:
    """Redacts by one set of rules. It may be shared by threads and tasks.

    ValueError if a kind is unknown or a pattern cannot be taken; the message says which, why, and what to do.
    """

    def __init__(self, rules: Rules = Rules()) -> None:
        unknown = sorted(set(rules.kinds) - OPTIONAL_KINDS)
        if unknown:
            known = ", ".join(sorted(OPTIONAL_KINDS))
            raise ValueError(f"`{unknown[0]}` is no kind of personal data; known are {known}.")
        self._enabled = rules.enabled
        self._personal = [FINDERS[kind] for kind in sorted(set(rules.kinds))]
        self._patterns = compile_patterns(rules.patterns)

    def redact(self, text: str) -> str:
        """The text with a mark in the place of each secret; the same object if there is none."""
        for _ in range(_MOST_ROUNDS):
            findings = self.finds(text)
            if not findings:
                break
            text = _replaced(text, findings)
        return text

    def finds(self, text: str) -> list[Finding]:
        """The secrets in the text as it stands, in order, apart from each other; marks are no secrets."""
        if not self._enabled or not text:
            return []
        plain = blank_marks(text)
        secrets = _secrets(plain)
        if not (self._personal or self._patterns):
            return secrets
        taken = [(secret.start, secret.end) for secret in secrets]
        personal = (finding for finder in self._personal for finding in finder(plain))
        return _apart([*secrets, *_outside(taken, personal), *self._custom(text, plain)])

    def _custom(self, text: str, plain: str) -> Iterator[Finding]:
        for start, end in _between_marks(text, plain):
            for pattern in self._patterns:
                for found in pattern_matches(pattern, plain, start, end):
                    yield Finding(kind="custom", start=found[0], end=found[1])


def redact(text: str, rules: Rules = Rules()) -> str:
    """The text with a mark in the place of each secret. ValueError as for a Redactor."""
    return _redactor(rules).redact(text)


@lru_cache(maxsize=64)
def _redactor(rules: Rules) -> Redactor:
    return Redactor(rules)


def _secrets(plain: str) -> list[Finding]:
    """All but personal data and the user's own, in order and apart."""
    anchored = anchored_secrets(plain)
    words = secret_words(plain)
    if not (anchored.secrets or words.known or words.random):
        return []
    return _apart([*anchored.secrets, *words.known, *_outside(anchored.public, words.random)])


def _between_marks(text: str, plain: str) -> Iterator[tuple[int, int]]:
    start = 0
    if text is not plain:
        for found in MARK.finditer(text):
            yield start, found.start()
            start = found.end()
    yield start, len(text)


def _outside(ranges: list[tuple[int, int]], findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings that touch none of the ranges; these are in order and apart."""
    starts = [start for start, _ in ranges]
    for finding in findings:
        before = bisect_left(starts, finding.end) - 1
        if before < 0 or ranges[before][1] <= finding.start:
            yield finding


def _apart(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in order; those that overlap are one, of the most telling kind."""
    apart: list[Finding] = []
    for finding in sorted(findings, key=lambda one: (one.start, -one.end)):
        if apart and finding.start < apart[-1].end:
            apart[-1] = _joined(apart[-1], finding)
        else:
            apart.append(finding)
    return apart


def _joined(first: Finding, second: Finding) -> Finding:
    kind = min(first.kind, second.kind, key=_rank)
    return Finding(kind=kind, start=first.start, end=max(first.end, second.end))


def _rank(kind: str) -> int:
    return next((rank for rank, kinds in enumerate(_FROM_TELLING_TO_VAGUE) if kind in kinds), 1)


def _replaced(text: str, findings: Iterable[Finding]) -> str:
    pieces: list[str] = []
    start = 0
    for finding in findings:
        pieces += (text[start : finding.start], mark(finding.kind))
        start = finding.end
    return "".join((*pieces, text[start:]))
