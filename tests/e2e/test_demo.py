"""`hivemem demo` as its users run it: real processes, a real kill, and a memory that can be looked at afterwards."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hivemem
import pytest
from fix_openai_server import OpenAIServer, Status
from fix_server import StartServer

RUN_SECONDS = 110.0
FILES = {
    "harbour.md": """# The harbour

## Arrivals

The harbour office keeps one log of arrivals for all piers of the harbour. Every ship reports by radio before it enters
the harbour. We use paper for the log instead of a database. Fog signals on the north pier have not been tested.

## Pilots

A pilot boards every ship that is longer than forty metres. The pilot must never leave the bridge during the passage.
Two pilots share one boat, which the harbour office pays for.
""",
    "rules/moorings.txt": """Moorings are given out by the harbour office in the order of arrival. A mooring must be
paid before noon. Who repairs the moorings of the south pier is an open question for the council of the harbour.""",
    "crane.py": '''"""The crane lifts cargo from the ships to the pier and back.

It is inspected by the harbour office once a year, and it has not been tested in a storm."""

def lift(cargo):
    """Lifts cargo; a load above nine tonnes is refused, because the pier must not carry more than that."""
''',
    "radio.proto": """// Radio messages of ships that are about to arrive. Each message names the ship, its length
// and its pilot.
// A message that names no ship must be answered with a question by the office of the harbour.
message Arrival {}
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with something to read."""
    for name, text in FILES.items():
        file = tmp_path / "texts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "texts"


async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "HIVEMEM_"))}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hivemem.cli", "demo", *arguments),
        env=clean | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    async with asyncio.timeout(RUN_SECONDS):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def demo(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Runs the command to its end: exit code, output, errors."""
    return await ended(await start(*arguments, **environment))


async def until(process: asyncio.subprocess.Process, pattern: str) -> str:
    """Reads what the demo prints until a line matches; returns everything so far."""
    assert process.stdout is not None
    said = ""
    async with asyncio.timeout(RUN_SECONDS):
        while not re.search(pattern, said):
            line = await process.stdout.readline()
            assert line, said
            said += line.decode()
    return said


def agents(out: str) -> list[tuple[str, int]]:
    """The processes that the screen has named."""
    return [(name, int(pid)) for name, pid in re.findall(r"^(\S+) is process (\d+)$", out, re.MULTILINE)]


async def command_lines() -> dict[int, str]:
    listing = await asyncio.create_subprocess_exec(
        "ps", "-A", "-ww", "-o", "pid=,command=", stdout=asyncio.subprocess.PIPE
    )
    rows = [line.split(maxsplit=1) for line in (await listing.communicate())[0].decode().splitlines()]
    return {int(row[0]): row[-1] for row in rows}


async def assert_nothing_runs(pids: Sequence[int], data_dir: Path) -> None:
    running = await command_lines()
    assert not [running[pid] for pid in pids if pid in running and "hivemem" in running[pid]]
    assert not [line for line in running.values() if str(data_dir) in line]


def words(text: str) -> str:
    """Words alone, so that line breaks, comment signs and emphasis do not matter."""
    return " ".join(re.findall(r"\w+", text))


async def kept(address: str) -> tuple[list[hivemem.Episode], list[hivemem.Thread]]:
    """The episodes and threads of the one session of a demo."""
    async with hivemem.Client(address) as memory:
        (info,) = [session async for session in memory.sessions()]
        session = await memory.get_session(info.session_id)
        return [episode async for episode in session.episodes()], [thread async for thread in session.threads()]


def statements(episodes: Sequence[hivemem.Episode]) -> list[tuple[str, list[int]]]:
    """The statements of the brief and the positions that they cite."""
    (brief,) = [episode.summary for episode in episodes if episode.kind == "brief"]
    body = brief.partition("## Sources")[0]
    lines = [line.removeprefix("- ") for line in body.splitlines() if line.strip() and not line.startswith("## ")]
    return [
        (re.sub(r"(?:\[\d+\])+$", "", line).strip(), [int(n) for n in re.findall(r"\[(\d+)\]", line)]) for line in lines
    ]


async def test_a_killed_writer_is_followed_by_one_that_finishes_the_brief(
    folder: Path, tmp_path: Path, start_server: StartServer
) -> None:
    data_dir = tmp_path / "memory"

    code, out, err = await demo(str(folder), "--data-dir", str(data_dir))

    assert (code, err) == (0, "")
    names = [name for name, _ in agents(out)]
    pids = [pid for _, pid in agents(out)]
    assert names == ["researcher-1", "researcher-2", "writer", "writer"]
    assert len(set(pids)) == 4
    assert f"SIGKILL: the writer (process {pids[2]}) is dead, after 3 of" in out
    assert f"what process {pids[3]} gets from ResumeSession" in out
    assert "[RESUMED_SESSION] Last active:" in out
    await assert_nothing_runs(pids, data_dir)

    server = await start_server("--data-dir", str(data_dir), "--embedder", "none")
    episodes, threads = await kept(server.address)
    assert_brief_is_true(episodes)
    assert_plan_was_followed_once(episodes, threads)
    assert f"episodes   {len(episodes)} (" in out
    assert re.search(rf"^vectors    {len(episodes)} of ", out, re.MULTILINE)
    await assert_search_command_works(out, server.address)


def assert_brief_is_true(episodes: Sequence[hivemem.Episode]) -> None:
    """Every statement cites findings, and stands both in them and in a file, word for word."""
    findings = {episode.position: episode for episode in episodes if episode.kind == "finding"}
    files = {name: words(text) for name, text in FILES.items()}
    said = statements(episodes)
    assert len(said) >= 4
    assert len({text for text, _ in said}) == len(said)
    for text, cites in said:
        assert cites
        for position in cites:
            finding = findings[position]
            parts = [finding.summary, *(one.text for one in finding.decisions)]
            parts += [one.text for one in finding.open_threads]
            assert text in " ".join(parts)
            assert words(text) in files[str(finding.attributes["file"])]


def assert_plan_was_followed_once(episodes: Sequence[hivemem.Episode], threads: Sequence[hivemem.Thread]) -> None:
    (plan,) = [episode for episode in episodes if episode.agent_id == "writer" and episode.kind == "plan"]
    steps = [thread.thread_id for thread in plan.open_threads]
    ended_steps = [
        reference.thread_id for e in episodes for reference in (*e.resolves, *e.drops) if e.agent_id == "writer"
    ]
    assert ended_steps == steps
    titles = [episode.summary.splitlines()[0] for episode in episodes if episode.kind == "section"]
    assert len(set(titles)) == len(titles)
    assert {thread.state for thread in threads if thread.plan_id} <= {"resolved", "dropped"}
    assert "open" in {thread.state for thread in threads}
    revisions = [episode.revision for episode in episodes if episode.agent_id == "writer"]
    assert revisions == list(range(1, len(revisions) + 1))


async def assert_search_command_works(out: str, address: str) -> None:
    (line,) = re.findall(r"^hivemem (search .*?) +# in another$", out, re.MULTILINE)
    search = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hivemem.cli", *shlex.split(line), "--address", address), stdout=asyncio.subprocess.PIPE
    )
    found, _ = await search.communicate()
    assert search.returncode == 0
    assert b"researcher-" in found


def model_reply(messages: Sequence[dict[str, Any]]) -> str:
    """What a model might say: a finding, or statements of which one cites nothing and one cites too much."""
    notes = re.findall(r"^\[(\d+)\]", str(messages[1]["content"]), re.MULTILINE)
    if not notes:
        return "The model has read this.\nDECISION: The model decides so.\nOPEN: The model leaves this open."
    title = re.findall(r'"(.*?)"', str(messages[0]["content"]))[0]
    return f"- The model speaks of {title} [{notes[0]}].\nIt cites nothing.\nIt cites too much [9999]."


async def test_a_model_speaks_if_there_is_one(
    folder: Path, tmp_path: Path, start_server: StartServer, openai_server: OpenAIServer
) -> None:
    openai_server.reply = model_reply
    data_dir = tmp_path / "memory"

    code, out, err = await demo(
        *(str(folder), "--data-dir", str(data_dir)),
        OPENAI_BASE_URL=openai_server.url,
        HIVEMEM_DEMO_MODEL="some-model",
        HIVEMEM_EMBEDDER="none",
    )

    assert (code, err) == (0, "")
    assert "those of the model some-model" in out
    assert {request.body["model"] for request in openai_server.requests} == {"some-model"}
    server = await start_server("--data-dir", str(data_dir), "--embedder", "none")
    episodes, _ = await kept(server.address)
    findings = {episode.position for episode in episodes if episode.kind == "finding"}
    said = statements(episodes)
    assert said
    assert all(text.startswith("The model speaks of ") for text, _ in said)
    assert all(findings.issuperset(cites) for _, cites in said)


async def test_a_model_that_fails_leaves_the_agents_to_quote(
    folder: Path, tmp_path: Path, openai_server: OpenAIServer
) -> None:
    openai_server.always(Status(401, "Incorrect API key provided: sk-secret"))

    code, out, err = await demo(
        *(str(folder), "--data-dir", str(tmp_path / "memory")),
        OPENAI_BASE_URL=openai_server.url,
        OPENAI_API_KEY="sk-secret",
        HIVEMEM_EMBEDDER="none",
    )

    assert (code, err) == (0, "")
    assert out.count("the model gpt-4o-mini does not answer") == 1
    assert "quoting from here on" in out
    assert "sk-secret" not in out
    assert "• " in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["missing"], "missing is not a folder"), (["."], "there is nothing to read in .: give a folder with Markdown")],
)
async def test_a_folder_without_texts_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)

    code, out, err = await demo(*arguments)

    assert (code, out) == (1, "")
    assert err.startswith(f"hivemem: {complaint}")
    assert err.count("\n") == 1


async def test_an_agent_that_dies_ends_the_demo_and_everything_with_it(folder: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "memory"
    process = await start(str(folder), "--data-dir", str(data_dir), "--pace", "5", HIVEMEM_EMBEDDER="none")
    started = agents(await until(process, r"writer is process \d+"))

    os.kill(started[0][1], signal.SIGKILL)
    code, _, err = await ended(process)

    assert code == 1
    assert err == f"hivemem: researcher-1 (process {started[0][1]}) was killed by SIGKILL\n"
    await assert_nothing_runs([pid for _, pid in started], data_dir)


async def test_a_server_that_stops_ends_the_demo(folder: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "memory"
    process = await start(str(folder), "--data-dir", str(data_dir), "--pace", "5", HIVEMEM_EMBEDDER="none")
    started = agents(await until(process, r"writer is process \d+"))
    (server,) = [pid for pid, line in (await command_lines()).items() if f"serve --data-dir {data_dir}" in line]

    os.kill(server, signal.SIGTERM)
    code, _, err = await ended(process)

    assert code == 1
    assert err.startswith("hivemem: ")
    assert err.count("\n") == 1
    await assert_nothing_runs([server, *(pid for _, pid in started)], data_dir)


async def test_an_interrupted_demo_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    process = await start(str(folder), "--pace", "5", HIVEMEM_EMBEDDER="none", TMPDIR=str(tmp_path / "tmp"))
    started = agents(await until(process, r"researcher-\d #1"))

    process.send_signal(signal.SIGINT)
    code, _, err = await ended(process)

    assert (code, err) == (130, "")
    assert list((tmp_path / "tmp").iterdir()) == []
    await assert_nothing_runs([pid for _, pid in started], tmp_path)
