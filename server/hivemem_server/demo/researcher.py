"""A researcher: reads its share of the files and logs what it finds.

python -m hivemem_server.demo.researcher
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import hivemem
from hivemem import condense

from hivemem_server.demo import child, folder
from hivemem_server.demo.voice import Finding

FINDING = "finding"
HANDOFF = "handoff"
PLAN = "plan"


async def research(job: child.Job) -> None:
    """Reads, logs a finding for each part, and hands over to the writer."""
    voice = child.voice()
    async with hivemem.Client(job["address"]) as memory:
        session = await memory.get_session(job["session"])
        agent = session.agent(job["agent"])
        task = await _begin(agent, job)
        findings = []
        for file, index in job["share"]:
            part = folder.parts(Path(job["root"]), file)[index]
            finding = await voice.finding(part.text)
            await _log(agent, part, finding)
            findings.append(finding)
            await asyncio.sleep(job["pace"])
        await _hand_over(agent, job, findings, task)


async def _begin(agent: hivemem.Agent, job: child.Job) -> str:
    """Logs what is to be done; the id of the thread is returned."""
    files = _files(job)
    text = f"Read {_counted(len(files), 'file')} and log what they say" if files else "Nothing to read: help the writer"
    begun = await agent.append(summary=f"I read {', '.join(files) or 'nothing'}.", kind=PLAN, open_threads=[text])
    return begun.thread_ids[0]


async def _log(agent: hivemem.Agent, part: folder.Part, finding: Finding) -> None:
    await agent.append(
        summary=finding.summary,
        kind=FINDING,
        tags=[condense.cut(part.file, 128)],
        decisions=list(finding.decisions),
        open_threads=list(finding.open_points),
        attributes={"file": part.file, "headings": " / ".join(part.headings)[:500]},
    )


async def _hand_over(agent: hivemem.Agent, job: child.Job, findings: list[Finding], task: str) -> None:
    decisions = sum(len(finding.decisions) for finding in findings)
    left_open = sum(len(finding.open_points) for finding in findings)
    await agent.append(
        summary=f"I have read {_counted(len(_files(job)), 'file')}: {_counted(len(findings), 'finding')} with "
        f"{_counted(decisions, 'decision')} and {_counted(left_open, 'open point')}. Over to you.",
        kind=HANDOFF,
        to_agents=[job["writer"]],
        resolves=[task],
    )


def _files(job: child.Job) -> list[str]:
    return list(dict.fromkeys(file for file, _ in job["share"]))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


if __name__ == "__main__":
    child.run(research)
