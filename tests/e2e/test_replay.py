"""`hivemem replay` as its users run it: a command, a server of its own process, a process for each agent."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hivemem
import pytest
from fix_server import StartServer
from hivemem.redaction import redact

RUN_SECONDS = 90.0


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hivemem.cli", "replay", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def replay(*arguments: str) -> tuple[int, str, str]:
    """Runs the command to its end: exit code, output, errors."""
    process = await start(*arguments)
    async with asyncio.timeout(RUN_SECONDS):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def agent_processes(parent: int) -> list[int]:
    """Ids of the processes that a replay has started."""
    listing = await asyncio.create_subprocess_exec(
        "ps", "-A", "-ww", "-o", "pid=,ppid=,command=", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await listing.communicate()
    rows = [line.split(maxsplit=2) for line in out.decode().splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == parent and "hivemem.replay.agent" in row[2]]


def written(path: Path, turns: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, turns)))
    return str(path)


def talk(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"agent": f"agent-{number % 3}", "text": f"Turn number {number}.", **more} for number in range(count)]


async def test_a_recorded_run_is_stored_as_the_file_has_it(
    start_server: StartServer, database_url: str, data_folder: Path
) -> None:
    address = (await start_server("--database-url", database_url, "--embedder", "none")).address
    file = data_folder / "who_when" / "Hand-Crafted" / "12.json"
    history = json.loads(file.read_text())["history"]

    code, out, err = await replay(str(file), "--session", "run", "--address", address)

    assert (code, err) == (0, "")
    assert f"{len(history)} turns of {len({step['role'] for step in history})} agents" in out
    async with hivemem.Client(address) as memory:
        session = await memory.get_session("run")
        episodes = [episode async for episode in session.episodes()]
        assert [episode.summary for episode in episodes] == [redact(step["content"]) for step in history]
        assert [episode.attributes["role"] for episode in episodes] == [step["role"] for step in history]
        assert [episode.position for episode in episodes] == list(range(1, len(history) + 1))
        assert [episode.turn for episode in episodes] == list(range(1, len(history) + 1))
        for agent in {episode.agent_id for episode in episodes}:
            stream = [episode.revision for episode in episodes if episode.agent_id == agent]
            assert stream == list(range(1, len(stream) + 1))
        await assert_search_finds(session, history)


async def assert_search_finds(session: hivemem.Session, history: list[dict[str, Any]]) -> None:
    """Words that only one turn of the file has lead to that turn."""
    words = [set(re.findall(r"[a-z]{6,}", step["content"].lower())) for step in history]
    only = {
        index: sorted(own - set().union(*(other for place, other in enumerate(words) if place != index)))
        for index, own in enumerate(words)
    }
    asked = {index: " ".join(found[:5]) for index, found in only.items() if len(found) >= 5}
    assert asked
    for index, text in asked.items():
        hits = await session.search(text, limit=3)
        assert hits[0].episode.turn == index + 1


async def test_replaying_again_doubles_nothing(server_address: str, tmp_path: Path) -> None:
    file = written(tmp_path / "talk.jsonl", talk(12))

    first = await replay(file, "--address", server_address, "--json")
    again = await replay(file, "--address", server_address, "--json")

    assert (first[0], again[0]) == (0, 0)
    assert json.loads(first[1])["repeated"] == 0
    assert json.loads(again[1])["repeated"] == 12
    async with hivemem.Client(server_address) as memory:
        assert (await memory.stats()).episode_count == 12


async def test_several_files_go_to_several_sessions(server_address: str, tmp_path: Path) -> None:
    files = [
        written(tmp_path / "one.jsonl", [{"goal": "First"}, *talk(4)]),
        written(tmp_path / "two.jsonl", talk(5, time="2025-01-01T10:00:00Z", to=["agent-0"])),
    ]

    code, out, _ = await replay(*files, "--address", server_address)

    assert code == 0
    commands = re.findall(r"hivemem tail (\S+)", out)
    async with hivemem.Client(server_address) as memory:
        one, two = [await memory.get_session(session_id) for session_id in commands]
        assert one.info.goal == "First"
        assert [e.summary async for e in two.episodes()] == [turn["text"] for turn in talk(5)]
        assert {e.event_time async for e in two.episodes()} == {datetime(2025, 1, 1, 10, tzinfo=UTC)}


async def test_a_killed_agent_ends_the_replay_which_then_goes_on_from_there(
    server_address: str, tmp_path: Path
) -> None:
    turns = [{**turn, "time": 1_700_000_000 + number} for number, turn in enumerate(talk(9))]
    file = written(tmp_path / "talk.jsonl", turns)
    async with hivemem.Client(server_address) as memory:
        session = await memory.session("s")
        slow = await start(file, "--session", "s", "--speed", "2", "--address", server_address)
        async with session.subscribe() as stream, asyncio.timeout(RUN_SECONDS):
            while (await anext(stream)).position < 4:
                pass
        agents = await agent_processes(slow.pid)
        os.kill(agents[-1], signal.SIGKILL)
        async with asyncio.timeout(RUN_SECONDS):
            _, err = await slow.communicate()

        assert (slow.returncode, len(agents)) == (1, 3)
        assert re.fullmatch(
            r"hivemem: agent agent-\d \(process \d+\) was killed by SIGKILL after \d of its 3 turns: .*\n", err.decode()
        )
        assert not await running(agents)
        code, out, _ = await replay(file, "--session", "s", "--address", server_address, "--json")
        assert code == 0
        assert 4 <= json.loads(out)["repeated"] < 9
        assert [episode.summary async for episode in session.episodes()] == [turn["text"] for turn in turns]


async def running(pids: list[int]) -> list[int]:
    alive = []
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        alive.append(pid)
    return alive


async def all_ended(pids: list[int]) -> None:
    """Waits for processes that are not ours, whose end nobody tells."""
    async with asyncio.timeout(RUN_SECONDS):
        while await running(pids):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_agents_end_when_the_replay_is_killed(server_address: str, tmp_path: Path) -> None:
    file = written(tmp_path / "talk.jsonl", [{**t, "time": n * 3_600} for n, t in enumerate(talk(6))])
    async with hivemem.Client(server_address) as memory:
        session = await memory.session("s")
        stuck = await start(file, "--session", "s", "--speed", "1", "--address", server_address)
        async with session.subscribe() as stream, asyncio.timeout(RUN_SECONDS):
            await anext(stream)
    agents = await agent_processes(stuck.pid)
    stuck.kill()
    await stuck.communicate()

    assert len(agents) == 3
    await all_ended(agents)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bad.jsonl"], "bad.jsonl: line 2: needs `text`"),
        (["missing.jsonl"], "missing.jsonl: No such file or directory"),
        (["good.jsonl", "--address", "127.0.0.1:1"], "cannot reach hivemem at 127.0.0.1:1"),
        (["good.jsonl", "--session", "no id"], "session_id: must be 1 to 128 characters"),
    ],
)
async def test_what_cannot_be_replayed_is_told_in_one_line(
    server_address: str, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    written(tmp_path / "good.jsonl", talk(2))
    written(tmp_path / "bad.jsonl", [{"agent": "a", "text": "fine"}, {"agent": "a"}])

    file, *options = arguments
    code, out, err = await replay(str(tmp_path / file), "--address", server_address, *options)

    assert (code, out) == (1, "")
    assert complaint in err
    assert err.count("\n") == 1


async def test_a_session_that_is_closed_takes_no_replay(server_address: str, tmp_path: Path) -> None:
    async with hivemem.Client(server_address) as memory:
        await (await memory.session("s")).close()

    code, _, err = await replay(written(tmp_path / "a.jsonl", talk(3)), "--session", "s", "--address", server_address)

    assert code == 1
    assert err.startswith("hivemem: agent agent-0: ")
    assert "closed" in err
