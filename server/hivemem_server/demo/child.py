"""What a process of the demo needs: its job, a way to tell its parent something, and an end when that is gone.

The job is one line of JSON on standard input, which stays open as long as the parent lives. What the process has to
tell goes to standard output, one line of JSON each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import hivemem

from hivemem_server.demo import model
from hivemem_server.demo.voice import Quoting, Speaking, Voice

Job: TypeAlias = dict[str, Any]


def tell(what: str, **details: Any) -> None:
    """Tells the parent something."""
    sys.stdout.write(json.dumps({"tells": what, **details}) + "\n")
    sys.stdout.flush()


def voice() -> Voice:
    """The voice that the environment asks for."""
    asked_for = model.name()
    if asked_for is None:
        return Quoting()
    return Speaking(model.Model(asked_for), lambda sentence: tell("notice", text=sentence))


def run(work: Callable[[Job], Awaitable[None]]) -> None:
    """Does the work of this process to its end. Errors are told to the parent; the exit code is 1 then."""
    sys.exit(asyncio.run(_run(work, json.loads(sys.stdin.buffer.readline()))))


async def _run(work: Callable[[Job], Awaitable[None]], job: Job) -> int:
    working = asyncio.ensure_future(work(job))
    alone = asyncio.create_task(_until_left_alone())
    await asyncio.wait({working, alone}, return_when=asyncio.FIRST_COMPLETED)
    alone.cancel()
    if not working.done():
        working.cancel()
        return 1
    try:
        working.result()
    except (hivemem.HivememError, OSError) as error:
        tell("error", text=" ".join(str(error).split()))
        return 1
    return 0


async def _until_left_alone() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1 << 16):
        pass
