"""Family `redaction`: what looking for secrets costs above one pass of one regular expression."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from hivemem.redaction import Redactor, Rules

from .measuring import MEGABYTES_PER_SECOND, Goal, Result, Side, median, taking_turns
from .stand import Stand
from .texts import Texts

EPISODES, ROUNDS, MEGABYTE = 3_000, 7, 1e6
DRAWN_AT_RANDOM = re.compile(r"[A-Za-z0-9+/]{32,}")


async def redaction(stand: Stand) -> Result:
    """Megabytes of summaries in a second by the default rules, against one bare pass."""
    summaries = [written.summary for written in Texts().episodes(EPISODES)]
    sides = (
        _rate(Redactor(Rules()).redact, summaries),
        _rate(lambda text: DRAWN_AT_RANDOM.sub("[REDACTED:secret]", text), summaries),
    )
    ours, bare = map(median, await taking_turns(ROUNDS, *sides, tick=stand.tick))
    return Result(
        measure="redaction",
        ours=ours,
        bare=bare,
        unit=MEGABYTES_PER_SECOND,
        goal=Goal(),
        detail={"summaries": EPISODES, "bytes": sum(map(len, summaries))},
    )


def _rate(redact: Callable[[str], str], summaries: Sequence[str]) -> Side:
    async def megabytes_per_second() -> float:
        begin = time.perf_counter()
        for summary in summaries:
            redact(summary)
        return sum(map(len, summaries)) / MEGABYTE / (time.perf_counter() - begin)

    return megabytes_per_second


MEASURES = {"redaction": redaction}
