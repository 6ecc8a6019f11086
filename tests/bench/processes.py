"""What a process costs, as Linux tells it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

MEBIBYTE = 1 << 20
SAMPLE_SECONDS, STEADY_SAMPLES, STEADY_MEBIBYTES, LONGEST_SAMPLES = 0.2, 10, 1.0, 200


def processor_seconds(pid: int) -> float:
    """How long it has been computing, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """MiB of memory that it has now."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


async def steady_resident(pid: int) -> float:
    """The same once it does not change any more; the highest of the last samples if it goes on changing."""
    samples: list[float] = []
    for _ in range(LONGEST_SAMPLES):
        samples.append(resident(pid))
        last = samples[-STEADY_SAMPLES:]
        if len(last) == STEADY_SAMPLES and max(last) - min(last) < STEADY_MEBIBYTES:
            break
        await asyncio.sleep(SAMPLE_SECONDS)
    return max(samples[-STEADY_SAMPLES:])
