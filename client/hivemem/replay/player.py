"""Plays a recording: starts a process for each agent, follows what they say, and ends them whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hivemem._errors import HivememError, SessionNotFound
from hivemem._models import NewEpisode
from hivemem.replay.agent import APPEND_SECONDS, Job, Line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hivemem._client import Client
    from hivemem._session import Session
    from hivemem.replay.recording import Recording, Turn

MOST_AGENTS = 64  # each is a process
# Seconds in which something has to be said, beside the pauses of the recording. Starting the processes takes a while.
_SILENCE = 60.0
OnTurn: TypeAlias = Callable[[int], None]
# Seconds that a process has to end by itself when asked to.
_GRACE = 5.0


class ReplayFailed(HivememError):
    """A replay that did not come to its end; the message says why and what helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a replay has stored. `repeated` of its turns were there before."""

    session_id: str
    agents: tuple[str, ...]
    turns: int
    repeated: int
    condensed: int
    first_position: int
    last_position: int


async def play(
    recording: Recording,
    memory: Client,
    *,
    session_id: str | None = None,
    speed: float | None = None,
    on_turn: OnTurn = lambda _: None,
) -> Played:
    """Stores every turn of a recording, by its agent's own process, in the order of the recording.

    With a `speed` the pauses between the times of the turns are kept, so many times as fast. `on_turn` is told how many
    turns are stored. Playing again stores nothing twice and goes on where an earlier replay stopped. Raises
    ReplayFailed.
    """
    if len(recording.agents) > MOST_AGENTS:
        raise ReplayFailed(
            f"{recording.name} has {len(recording.agents)} agents, and at most {MOST_AGENTS} are started"
        )
    session = await _session(memory, session_id or recording.session_id, recording)
    jobs = _jobs(recording, memory, session.session_id, speed)
    stored: dict[int, dict[str, Any]] = {}
    async with contextlib.AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(_agent_process(job)) for job in jobs]
        async for told in _told(agents, jobs[0].silence + APPEND_SECONDS):
            stored[told["index"]] = told
            on_turn(len(stored))
    return _played(recording, session.session_id, [stored[turn.index] for turn in recording.turns])


async def _session(memory: Client, session_id: str, recording: Recording) -> Session:
    try:
        return await memory.get_session(session_id)
    except SessionNotFound:
        return await memory.session(session_id, goal=recording.goal or None, labels={"replay": recording.name[:100]})


def _played(recording: Recording, session_id: str, stored: list[dict[str, Any]]) -> Played:
    positions = [one["position"] for one in stored]
    if positions != sorted(positions):
        raise ReplayFailed(
            f"session {session_id} holds {recording.name} in another order than the file: choose another session"
        )
    return Played(
        session_id=session_id,
        agents=tuple(recording.agents),
        turns=len(stored),
        repeated=sum(one["deduplicated"] for one in stored),
        condensed=sum(turn.condensed for turn in recording.turns),
        first_position=positions[0],
        last_position=positions[-1],
    )


# ---- what each agent has to do -----------------------------------------------------------------------------------


def _jobs(recording: Recording, memory: Client, session_id: str, speed: float | None) -> list[Job]:
    lines = [_line(recording, session_id, turn, speed) for turn in recording.turns]
    silence = _SILENCE + max(line.pause for line in lines)
    return [
        Job(
            address=memory.address,
            namespace=memory.namespace,
            session_id=session_id,
            agent_id=agent,
            silence=silence,
            lines=[line for line, turn in zip(lines, recording.turns, strict=True) if turn.agent_id == agent],
        )
        for agent in recording.agents
    ]


def _line(recording: Recording, session_id: str, turn: Turn, speed: float | None) -> Line:
    earlier = recording.turns[turn.index - 1] if turn.index else None
    return Line(
        index=turn.index,
        episode=_episode(recording.episode_id(session_id, turn.index), turn),
        previous=recording.episode_id(session_id, earlier.index) if earlier else None,
        pause=_pause(earlier, turn) / speed if earlier and speed else 0.0,
    )


def _pause(earlier: Turn, turn: Turn) -> float:
    if not (earlier.event_time and turn.event_time):
        return 0.0
    return max((turn.event_time - earlier.event_time).total_seconds(), 0.0)


def _episode(episode_id: str, turn: Turn) -> NewEpisode:
    return NewEpisode(
        episode_id=episode_id,
        turn=turn.index + 1,
        summary=turn.summary,
        kind=turn.kind,
        tags=turn.tags,
        attributes=turn.attributes,
        event_time=turn.event_time,
        decisions=turn.decisions,
        open_threads=turn.open_threads,
        to_agents=turn.to_agents,
    )


# ---- their processes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AgentProcess:
    """One agent at work."""

    job: Job
    process: asyncio.subprocess.Process

    async def told(self) -> AsyncIterator[dict[str, Any]]:
        """What it tells of each of its turns. Raises ReplayFailed if it ends before the last one."""
        assert self.process.stdout is not None
        told = 0
        async for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise ReplayFailed(f"agent {self.job.agent_id}: {message['error']}")
            told += 1
            yield message
        code = await self.process.wait()
        if told < len(self.job.lines):
            raise ReplayFailed(self._obituary(code, told))

    def _obituary(self, code: int, told: int) -> str:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return (
            f"agent {self.job.agent_id} (process {self.process.pid}) {how} after {told} of its "
            f"{len(self.job.lines)} turns: run the same command again, and the replay goes on from there"
        )


@contextlib.asynccontextmanager
async def _agent_process(job: Job) -> AsyncIterator[_AgentProcess]:
    """An agent that has its job. It is ended when the context is left."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "hivemem.replay.agent"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the parent, which ends them in good order
    )
    assert process.stdin is not None
    try:
        process.stdin.write(job.encoded())
        with contextlib.suppress(ConnectionError):  # its end is told where its output is read
            await process.stdin.drain()
        yield _AgentProcess(job, process)
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()  # asks it to end
    try:
        async with asyncio.timeout(_GRACE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _told(agents: list[_AgentProcess], silence: float) -> AsyncIterator[dict[str, Any]]:
    """What all agents tell, as it comes. The first failure ends it; so does silence."""
    queue: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue(maxsize=len(agents))
    readers = [asyncio.create_task(_read(agent, queue)) for agent in agents]
    running = len(readers)
    try:
        while running:
            message = await _next(queue, silence)
            if isinstance(message, Exception):
                raise message
            if message is None:
                running -= 1
            else:
                yield message
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


async def _read(agent: _AgentProcess, queue: asyncio.Queue[dict[str, Any] | Exception | None]) -> None:
    try:
        async for message in agent.told():
            await queue.put(message)
        await queue.put(None)
    except (ReplayFailed, ValueError) as error:
        await queue.put(error)


async def _next(
    queue: asyncio.Queue[dict[str, Any] | Exception | None], silence: float
) -> dict[str, Any] | Exception | None:
    try:
        async with asyncio.timeout(silence):
            return await queue.get()
    except TimeoutError:
        return ReplayFailed(f"no agent has said anything for {silence:.0f} s: is the server well?")
