"""Processes of the bench that are told what to do, and tell what they saw, in lines of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

LINE_BYTES = 1 << 24

Method = Callable[..., Awaitable[dict[str, Any]]]


class Talker:
    """The bench's end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._questions = process.stdin
        self._answers = process.stdout

    async def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Calls a method of the process. One call at a time."""
        self._questions.write(json.dumps([method, arguments]).encode() + b"\n")
        await self._questions.drain()
        line = await self._answers.readline()
        if not line:
            raise RuntimeError(f"a process of the bench ended instead of answering `{method}`")
        answer: dict[str, Any] = json.loads(line)
        return answer


async def answering(methods: Mapping[str, Method]) -> None:
    """The process' end: answers until stdin ends. An error that nobody waits for ends the process as well."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the bench ends us
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_give_up)
    questions = asyncio.StreamReader(limit=LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    async for line in questions:
        method, arguments = json.loads(line)
        print(json.dumps(await methods[method](**arguments)), flush=True)


def _give_up(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    loop.default_exception_handler(context)
    os._exit(1)  # the bench waits for an answer
