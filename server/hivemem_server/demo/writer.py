"""The writer: is pushed the findings as they are logged, plans a brief, and writes it section by section.

python -m hivemem_server.demo.writer

Everything that it needs to go on stands in the memory: the plan as open threads, each section as an episode that
resolves one. A writer that starts resumes, whether there was one before it or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import hivemem
from hivemem import condense

from hivemem_server.demo import child
from hivemem_server.demo.outline import Source, outline
from hivemem_server.demo.researcher import FINDING, HANDOFF, PLAN
from hivemem_server.demo.voice import Note, Statement, Voice, without_citations

SECTION = "section"
BRIEF = "brief"

_SILENCE_SECONDS = 90.0  # so long may nothing be pushed
_INDEX_SECONDS = 15.0  # so long an index may take to catch up
_HOLD_SECONDS = 60.0  # so long the first writer waits for its end
_HITS = 20  # of which those with something to cite count, up to
_NOTES = 6
_RESUME_TOKENS = 700  # fills a screen


def half_way(steps: int) -> int:
    """The number of steps after which half of a plan is done."""
    return max(steps // 2, 1)


async def write(job: child.Job) -> None:
    """Resumes, and does what is left to do."""
    async with hivemem.Client(job["address"]) as memory:
        session = await memory.get_session(job["session"])
        writer = _Writer(session, job)
        resumed = await session.resume(agent_id=job["agent"], max_tokens=_RESUME_TOKENS)
        if any(plan.plan_id == writer.plan_id for plan in resumed.plans):
            _tell_resumed(resumed, writer.plan_id)
        else:
            await writer.plan(await writer.listen())
            resumed = await session.resume(agent_id=job["agent"])
        await writer.finish([thread for thread in resumed.open_threads if thread.plan_id == writer.plan_id])


def _tell_resumed(resumed: hivemem.Resumed, plan_id: str) -> None:
    plan = next(plan for plan in resumed.plans if plan.plan_id == plan_id)
    child.tell(
        "resumed",
        messages=[message.as_dict() for message in resumed.messages],
        tokens=resumed.token_count,
        done=plan.resolved_steps,
        steps=plan.total_steps,
    )


class _Writer:
    """The writer of one session."""

    def __init__(self, session: hivemem.Session, job: child.Job) -> None:
        self.plan_id = f"{session.session_id[:120]}/brief"
        self._session = session
        self._agent = session.agent(job["agent"])
        self._job = job
        self._voice: Voice = child.voice()
        self._indexed = 0

    async def listen(self) -> list[hivemem.Episode]:
        """The findings, as they are pushed, until every researcher has handed over."""
        findings: list[hivemem.Episode] = []
        busy = set(self._job["researchers"])
        async with self._session.subscribe(exclude_agents=[self._agent.agent_id]) as stream:
            while busy:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    episode = await anext(stream)
                child.tell("pushed", position=episode.position)
                if episode.kind == FINDING:
                    findings.append(episode)
                elif episode.kind == HANDOFF:
                    busy.discard(episode.agent_id)
        self._indexed = max((finding.position for finding in findings), default=0)
        return findings

    async def plan(self, findings: Sequence[hivemem.Episode]) -> None:
        """Logs which sections are to be written, as threads of a plan."""
        sections = outline(findings)
        threads = [
            hivemem.NewThread(text=one.title[:200], plan_id=self.plan_id, step=step, tags=[one.source])
            for step, one in enumerate(sections, 1)
        ]
        titles = "; ".join(section.title for section in sections)
        await self._agent.append(
            summary=f"The brief will have {len(sections)} sections: {titles}.", kind=PLAN, open_threads=threads
        )

    async def finish(self, threads: Sequence[hivemem.Thread]) -> None:
        """Writes the sections that are left, then the brief."""
        written = [e async for e in self._session.episodes(agents=[self._agent.agent_id], kinds=[SECTION])]
        said = {without_citations(line) for section in written for line in section.summary.splitlines()[1:]}
        hold_after = half_way(len(threads)) if self._job["hold"] else None
        for done, thread in enumerate(sorted(threads, key=lambda thread: thread.step or 0)):
            statements = await self._statements(thread, said)
            if done == hold_after:
                await asyncio.sleep(_HOLD_SECONDS)
            await self._store(thread, statements)
            said.update(statement.text for statement in statements)
            await asyncio.sleep(self._job["pace"])
        if hold_after == len(threads):
            await asyncio.sleep(_HOLD_SECONDS)
        await self._publish()

    async def _statements(self, thread: hivemem.Thread, said: set[str]) -> list[Statement]:
        source = Source(thread.tags[0])
        findings = [hit.episode for hit in await self._search(thread.text)]
        if source in (Source.DECISIONS, Source.OPEN_POINTS):  # the words of a rule need not be those of the title
            findings += [e async for e in self._session.episodes(kinds=[FINDING]) if e not in findings]
        notes = [note for finding in findings if (note := _note(finding, source)).sentences]
        return await self._voice.section(thread.text, notes[:_NOTES], said)

    async def _search(self, text: str) -> hivemem.SearchResult:
        """The findings that fit, by meaning too if the index comes that far in time."""
        if self._indexed:
            position, self._indexed = self._indexed, 0
            try:
                return await self._session.search(
                    text, kinds=[FINDING], limit=_HITS, wait_for_position=position, timeout=_INDEX_SECONDS
                )
            except hivemem.DeadlineExceeded:
                pass
        return await self._session.search(text, kinds=[FINDING], limit=_HITS)

    async def _store(self, thread: hivemem.Thread, statements: Sequence[Statement]) -> None:
        """Logs a section, which ends its thread. Without a statement the thread is dropped."""
        if not statements:
            await self._agent.append(summary=f"Nothing new was found on “{thread.text}”.", drops=[thread.thread_id])
            return
        cites = sorted({position for statement in statements for position in statement.cites})
        await self._agent.append(
            summary="\n".join([thread.text, *(f"- {statement}" for statement in statements)]),
            kind=SECTION,
            resolves=[thread.thread_id],
            attributes={"cites": ",".join(map(str, cites)), "step": thread.step or 0},
        )

    async def _publish(self) -> None:
        """Logs the brief as a whole, made of the sections in the memory, with its sources."""
        sections = [e async for e in self._session.episodes(agents=[self._agent.agent_id], kinds=[SECTION])]
        cited = {int(number) for section in sections for number in str(section.attributes["cites"]).split(",")}
        sources = [await self._source(position) for position in sorted(cited)]
        text = "\n\n".join([*(f"## {section.summary}" for section in sections), "\n".join(["## Sources", *sources])])
        await self._agent.append(summary=text, kind=BRIEF, tags=[BRIEF])

    async def _source(self, position: int) -> str:
        episode = (await self._session.episode(position)).episode
        return f"[{position}] {episode.agent_id}, {episode.attributes.get('file', episode.kind)}"


def _note(episode: hivemem.Episode, source: Source) -> Note:
    """What a section of this source may cite of an episode."""
    if source is Source.DECISIONS:
        return Note(position=episode.position, sentences=[decision.text for decision in episode.decisions])
    if source is Source.OPEN_POINTS:
        return Note(position=episode.position, sentences=[thread.text for thread in episode.open_threads])
    sentences = condense.split(episode.summary) or [episode.summary]
    return Note(position=episode.position, sentences=sentences[:1] if source is Source.LEADS else sentences)


if __name__ == "__main__":
    child.run(write)
