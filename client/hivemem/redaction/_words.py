"""What can be a secret by its looks alone: known formats and random runs, both found in long words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hivemem.redaction._entropy import random_runs
from hivemem.redaction._finding import Finding
from hivemem.redaction._formats import known_formats

if TYPE_CHECKING:
    from collections.abc import Iterator

# No known format is shorter. Prose has few such words, so that most text is passed over by this expression alone.
_LONG_WORD = re.compile(r"[A-Za-z0-9_.:/+=~%$@-]{20,}")


def secret_words(text: str) -> Iterator[Finding]:
    """Known formats and random runs of the text; they may overlap."""
    for word in _LONG_WORD.finditer(text):
        yield from known_formats(text, word.start(), word.end())
        for start, end in random_runs(text, word.start(), word.end()):
            yield Finding(kind="high-entropy", start=start, end=end)
