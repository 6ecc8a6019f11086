"""One secret in a text, and the mark that takes its place."""

from __future__ import annotations

import re
from dataclasses import dataclass

MARK = re.compile(r"\[REDACTED:[a-z0-9-]{1,40}\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A secret of a kind, from `start` up to but not including `end`, in characters."""

    kind: str
    start: int
    end: int


def mark(kind: str) -> str:
    """What is written instead of a secret of this kind."""
    return f"[REDACTED:{kind}]"


def blank_marks(text: str) -> str:
    """The text with NUL for each character of a mark: no secret holds one, and all offsets stay."""
    return MARK.sub(lambda found: "\0" * len(found.group()), text) if "[REDACTED:" in text else text
