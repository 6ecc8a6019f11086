"""The plot: a server, two researchers, a writer that is killed half-way, and another one that goes on."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hivemem
from hivemem import condense

from hivemem_server.demo import folder, processes, researcher, writer
from hivemem_server.demo.child import Job
from hivemem_server.demo.processes import AgentProcess, DemoFailed, ServerProcess
from hivemem_server.demo.screen import Screen, Stored

RESEARCHERS = ("researcher-1", "researcher-2")
WRITER = "writer"
USER = "demo"
# Something has to happen at least this often; a model may take its time.
_SILENCE_SECONDS = 150.0
_INDEX_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What is to be shown: what is read, where the memory is, and the pause after each episode in seconds."""

    reading: folder.Reading
    data_dir: Path
    pace: float


async def perform(play: Play, screen: Screen) -> Stored:
    """Shows all of it, and says what is stored. Raises DemoFailed. Whatever it started has ended then."""
    async with contextlib.AsyncExitStack() as stack:
        with screen.waiting("Starting a server with a database of its own"):
            server = await stack.enter_async_context(processes.server(play.data_dir))
        memory = await stack.enter_async_context(hivemem.Client(server.address))
        try:
            async with asyncio.timeout(None) as patience:
                scene = _Scene(play, server, await _session(memory, play), screen, patience)
                await _first_of(scene.act(), scene.follow(), server.watch())
                stored = await _stored(memory, scene.session, play)
        except TimeoutError:
            raise DemoFailed(f"nothing has happened for {_SILENCE_SECONDS:.0f} s") from None
        except hivemem.HivememError as error:
            raise DemoFailed(str(error)) from error
        stack.enter_context(screen.waiting("Stopping the server"))
    return stored


async def _session(memory: hivemem.Client, play: Play) -> hivemem.Session:
    moment = dt.datetime.now(dt.UTC)
    return await memory.session(
        f"brief-{moment:%Y%m%d-%H%M%S}",
        user_id=USER,
        goal=f"A short brief on {play.reading.description}, in which every statement says where it comes from",
    )


async def _first_of(*work: Coroutine[Any, Any, None]) -> None:
    """Runs all until the first has ended, well or badly, and ends the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    failures = [task.exception() for task in sorted(tasks, key=lambda task: task not in done) if not task.cancelled()]
    for failure in filter(None, failures):
        raise failure


class _Scene:
    """What goes on in the session, and what the parent does about it."""

    def __init__(
        self, play: Play, server: ServerProcess, session: hivemem.Session, screen: Screen, patience: asyncio.Timeout
    ) -> None:
        self.session = session
        self._play = play
        self._server = server
        self._screen = screen
        self._patience = patience
        self._steps = 0
        self._done = 0
        self._half_way = asyncio.Event()
        self._published = asyncio.Event()
        self._touch()

    async def follow(self) -> None:
        """Shows the session as it fills, as a subscriber like any other."""
        async with self.session.subscribe() as stream:
            async for episode in stream:
                self._touch()
                self._screen.episode(episode)
                if episode.agent_id == WRITER:
                    self._note_progress(episode)

    def _note_progress(self, episode: hivemem.Episode) -> None:
        if episode.kind == researcher.PLAN:
            self._steps = len(episode.open_threads)
        self._done += len(episode.resolves) + len(episode.drops)
        if self._steps and self._done >= writer.half_way(self._steps):
            self._half_way.set()
        if episode.kind == writer.BRIEF:
            self._published.set()

    async def act(self) -> None:
        """Starts the agents, kills the first writer half-way, and starts another one."""
        self._screen.heading("The agents at work")
        with self._screen.streams([*RESEARCHERS, WRITER]):
            async with contextlib.AsyncExitStack() as stack:
                agents = [await stack.enter_async_context(processes.agent(*one)) for one in self._cast()]
                self._screen.started([(agent.name, agent.pid) for agent in agents])
                await _first_of(self._kill_half_way(agents[-1]), *[self._never_ends(agent) for agent in agents])
        self._screen.heading("A new writer resumes")
        with self._screen.streams([*RESEARCHERS, WRITER]):
            async with processes.agent("writer", self._writer_job(hold=False)) as second:
                self._screen.started([(second.name, second.pid)])
                await self._listen(second)
            await self._published.wait()

    def _cast(self) -> list[tuple[str, Job]]:
        """Who begins, with what to do."""
        reading = self._play.reading
        shares = folder.divide(reading.root, reading.files, len(RESEARCHERS))
        jobs = [
            {**self._job(name), "writer": WRITER, "root": str(reading.root), "share": share}
            for name, share in zip(RESEARCHERS, shares, strict=True)
        ]
        return [*(("researcher", job) for job in jobs), ("writer", self._writer_job(hold=True))]

    def _job(self, agent: str) -> Job:
        return {
            "address": self._server.address,
            "session": self.session.session_id,
            "agent": agent,
            "pace": self._play.pace,
        }

    def _writer_job(self, *, hold: bool) -> Job:
        return {**self._job(WRITER), "researchers": RESEARCHERS, "hold": hold}

    async def _kill_half_way(self, agent: AgentProcess) -> None:
        await self._half_way.wait()
        agent.kill()
        await agent.ended()
        self._screen.killed(agent.pid, self._done, self._steps)

    async def _never_ends(self, agent: AgentProcess) -> None:
        """Listens to an agent for as long as others are at work."""
        await self._listen(agent)
        await asyncio.Event().wait()

    async def _listen(self, agent: AgentProcess) -> None:
        async for message in agent.told():
            self._touch()
            if message["tells"] == "pushed":
                self._screen.pushed(agent.name)
            elif message["tells"] == "notice":
                self._screen.notice(agent.name, message["text"])
            elif message["tells"] == "resumed":
                self._screen.resumed(agent.pid, message)

    def _touch(self) -> None:
        self._patience.reschedule(asyncio.get_running_loop().time() + _SILENCE_SECONDS)


async def _stored(memory: hivemem.Client, session: hivemem.Session, play: Play) -> Stored:
    """What the memory holds at the end."""
    episodes = [episode async for episode in session.episodes()]
    with contextlib.suppress(hivemem.DeadlineExceeded):
        await session.search("brief", wait_for_position=episodes[-1].position, timeout=_INDEX_SECONDS)
    threads = Counter([str(thread.state) async for thread in session.threads()])
    stats = await memory.stats()
    findings = [episode.summary for episode in episodes if episode.kind == researcher.FINDING]
    return Stored(
        session_id=session.session_id,
        brief=next(episode.summary for episode in reversed(episodes) if episode.kind == writer.BRIEF),
        episodes=Counter(episode.agent_id for episode in episodes),
        decisions=sum(len(episode.decisions) for episode in episodes),
        threads=threads,
        vectors=sum(index.vector_count for index in stats.indexes if index.current),
        model=next((index.model for index in stats.indexes if index.current), ""),
        database=f"PostgreSQL {stats.server.database_version}",
        data_dir=play.data_dir,
        words=" ".join(condense.key_terms(findings, most=3)) or "brief",
    )
