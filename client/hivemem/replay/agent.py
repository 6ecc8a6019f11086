"""The process of one agent of a replay: it says its turns, each once it has been shown the turn before.

    python -m hivemem.replay.agent

It reads one line from standard input, the job, and answers on standard output with a line of JSON for each of its turns
or for what went wrong. When standard input ends, whoever started it is gone: it ends as well.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from hivemem._client import Client
from hivemem._errors import HivememError
from hivemem._models import NewEpisode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hivemem._models import Appended
    from hivemem._subscription import Subscription

APPEND_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A turn of this agent, and the episode that has to be there before it; `pause` is how many seconds before."""

    index: int
    episode: NewEpisode
    previous: str | None
    pause: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an agent is given. `silence` is how long nothing may happen in the session, in seconds."""

    address: str
    namespace: str
    session_id: str
    agent_id: str
    silence: float
    lines: Sequence[Line]

    def encoded(self) -> bytes:
        """The job in a line of JSON."""
        return json.dumps(dataclasses.asdict(self), default=datetime.isoformat).encode() + b"\n"

    @classmethod
    def decoded(cls, line: bytes) -> Job:
        """The job that `encoded` has written down."""
        fields: dict[str, Any] = json.loads(line)
        return cls(**{**fields, "lines": [_decoded(**one) for one in fields["lines"]]})


def _decoded(*, episode: dict[str, Any], **fields: Any) -> Line:
    if episode["event_time"]:
        episode["event_time"] = datetime.fromisoformat(episode["event_time"])
    return Line(episode=NewEpisode(**episode), **fields)


Say: TypeAlias = "Callable[[dict[str, Any]], None]"


async def perform(job: Job, say: Say) -> None:
    """Appends the turns of a job in order and tells of each."""
    async with Client(job.address, namespace=job.namespace) as memory:
        session = await memory.get_session(job.session_id)
        agent = session.agent(job.agent_id)
        async with session.subscribe() as stream:
            audience = _Audience(stream, {line.previous for line in job.lines if line.previous}, job.silence)
            for line in job.lines:
                await audience.hear(line.previous)
                await asyncio.sleep(line.pause)
                (done,) = await agent.append_all([line.episode], timeout=APPEND_SECONDS)
                say(_told(line.index, done))


def _told(index: int, done: Appended) -> dict[str, Any]:
    return {"index": index, "position": done.position, "revision": done.revision, "deduplicated": done.deduplicated}


class _Audience:
    """Listens to the session for the episodes that matter to an agent."""

    def __init__(self, stream: Subscription, awaited: Iterable[str], silence: float) -> None:
        self._stream = stream
        self._awaited = set(awaited)
        self._silence = silence

    async def hear(self, episode_id: str | None) -> None:
        """Waits until an episode has been seen, now or before."""
        while episode_id in self._awaited:
            try:
                async with asyncio.timeout(self._silence):
                    seen = await anext(self._stream)
            except TimeoutError:
                raise TimeoutError(f"nothing was said in the session for {self._silence:.0f} s") from None
            self._awaited.discard(seen.episode_id)


async def _until_left_alone() -> None:
    """Returns when standard input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1 << 16):
        pass


async def _main(job: Job) -> int:
    performing = asyncio.create_task(perform(job, _say))
    alone = asyncio.create_task(_until_left_alone())
    await asyncio.wait({performing, alone}, return_when=asyncio.FIRST_COMPLETED)
    alone.cancel()
    if not performing.done():
        performing.cancel()
        return 1
    try:
        performing.result()
    except (HivememError, OSError) as error:
        _say({"error": " ".join(str(error).split())})
        return 1
    return 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(Job.decoded(sys.stdin.buffer.readline()))))
