from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import hivemem
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = 80
UNREACHABLE = "127.0.0.1:9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    code: int
    out: str
    error: str

    def documents(self) -> list[Any]:
        assert (self.code, self.error) == (0, "")
        return [json.loads(line) for line in self.out.splitlines()]

    def lines(self) -> list[str]:
        assert (self.code, self.error) == (0, "")
        return self.out.splitlines()

    def complaint(self) -> str:
        """The one line that a failed command says."""
        (line,) = self.error.splitlines()
        assert (self.code, self.out) == (1, "")
        assert line.startswith("hivemem: ")
        return line.removeprefix("hivemem: ")


class Command(Protocol):
    async def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> Done: ...


@pytest.fixture
def start(server_address: str) -> Callable[..., Any]:
    """Starts the command line against the server of the test."""

    async def starter(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hivemem.cli",
            *arguments,
            env=os.environ | {"HIVEMEM_ADDRESS": server_address, "LC_ALL": "C", "TZ": "UTC"} | environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    return starter


@pytest.fixture
def command(start: Callable[..., Any]) -> Command:
    """Runs the command line to its end."""

    async def run(*arguments: str, stdin: str = "", **environment: str) -> Done:
        process = await start(*arguments, **environment)
        async with asyncio.timeout(60):
            out, error = await process.communicate(stdin.encode())
        return Done(code=process.returncode, out=out.decode(), error=error.decode())

    return run


@pytest.fixture
async def study(memory: hivemem.Client) -> hivemem.Session:
    """A session with two episodes, of which the second resolves one of two threads of the first."""
    session = await memory.session("pricing", user_id="u-42", goal="compare the prices")
    first = await session.agent("researcher").append(
        summary="Acme lowered its price – 9 €\nand more",
        decisions=["stay at 12"],
        open_threads=["ask Initech", "ask Hooli"],
        kind="finding",
        tags=["acme"],
        to_agents=["writer"],
    )
    await session.agent("writer").append(summary="Wrote the brief", resolves=[first.thread_ids[0]])
    return session


async def test_sessions_are_listed(command: Command, study: hivemem.Session) -> None:
    heading, row = (await command("sessions")).lines()
    assert heading.split() == ["SESSION", "USER", "STATE", "LAST", "MADE", "GOAL"]
    assert row.startswith("pricing  u-42  open")
    assert row.endswith("compare the prices")
    (document,) = (await command("sessions", "--user", "u-42", "--json")).documents()
    assert (document["session_id"], document["goal"]) == ("pricing", "compare the prices")
    assert (await command("sessions", "--state", "closed", "--json")).documents() == []


async def test_an_episode_is_appended(command: Command, memory: hivemem.Client) -> None:
    done = await command(
        "append", "s", "--agent", "a", "--summary", "found – it", "--decision", "d1", "--decision", "d2",
        "--thread", "ask", "--tag", "x", "--kind", "finding", "--user", "u",
    )  # fmt: skip
    (episode,) = [episode async for episode in memory.episodes()]
    assert done.lines() == [
        f"episode {episode.episode_id} at position 1, revision 1 of a",
        f"thread {episode.open_threads[0].thread_id}: ask",
    ]
    assert (episode.summary, episode.tags, episode.kind) == ("found – it", ("x",), "finding")
    assert [decision.text for decision in episode.decisions] == ["d1", "d2"]
    assert (await memory.get_session("s")).info.user_id == "u"
    thread_id = episode.open_threads[0].thread_id
    (document,) = (
        await command(
            "append", "s", "--agent", "b", "--summary", "-", "--resolve", thread_id, "--json", stdin="päper\n"
        )
    ).documents()
    written = (await memory.episode(document["episode_id"])).episode
    assert (written.summary, written.resolves[0].thread_id) == ("päper", thread_id)


async def test_what_is_there_is_shown(command: Command, study: hivemem.Session) -> None:
    lines = (await command("tail", "pricing", "--no-follow")).lines()
    thread_ids = [thread.thread_id async for thread in study.threads()]
    assert lines[0].split()[0] == "1"
    assert lines[0].endswith("  researcher  finding  #acme @writer")
    assert lines[1:5] == [
        "        Acme lowered its price – 9 €",
        "        and more",
        "        decided: stay at 12",
        f"        open: ask Initech  [{thread_ids[0]}]",
    ]
    assert lines[-1] == f"        resolved: {thread_ids[0]}"
    documents = (await command("tail", "pricing", "--no-follow", "--json", "--from", "1")).documents()
    assert [document["summary"] for document in documents] == ["Wrote the brief"]
    documents = (await command("tail", "pricing", "--no-follow", "--json", "--agent", "researcher")).documents()
    assert [document["agent_id"] for document in documents] == ["researcher"]
    assert (await command("tail", "pricing", "--no-follow", "--from", "now")).lines() == []


async def test_tail_follows_until_it_is_interrupted(start: Callable[..., Any], study: hivemem.Session) -> None:
    process = await start("tail", "pricing", "--json")
    async with asyncio.timeout(60):
        there = [json.loads(await process.stdout.readline())["revision"] for _ in range(2)]
        await study.agent("writer").append(summary="live")
        live = json.loads(await process.stdout.readline())
        process.send_signal(signal.SIGINT)
        out, error = await process.communicate()
    assert (there, live["summary"]) == ([1, 1], "live")
    assert (process.returncode, out, error) == (130, b"", b"")


async def test_a_closed_pipe_ends_tail_in_silence(start: Callable[..., Any], study: hivemem.Session) -> None:
    process = await start("tail", "pricing", "--agent", "writer")
    async with asyncio.timeout(60):
        await process.stdout.readline()
        process.stdout._transport.close()  # as `head -1` does
        ending = asyncio.create_task(process.wait())
        while not ending.done():
            await study.agent("writer").append(summary="more")
            await asyncio.wait([ending], timeout=0.1)
        assert await process.stderr.read() == b""
    assert process.returncode == 0


async def test_search_shows_what_fits(command: Command, study: hivemem.Session) -> None:
    lines = (await command("search", "Acme", "--session", "pricing", "--agent", "researcher", "--tag", "acme")).lines()
    assert "  researcher  pricing  " in lines[0]
    assert any("«Acme» lowered its price" in line for line in lines)
    (document,) = (await command("search", "Acme", "--json", "--limit", "1", "--user", "u-42")).documents()
    assert [hit["episode"]["agent_id"] for hit in document["hits"]] == ["researcher"]
    assert document["head_position"] > 0
    nothing = await command("search", "Acme", "--kind", "handoff")
    assert nothing.lines()[0] == "nothing found"


async def test_resume_shows_what_an_agent_needs(command: Command, study: hivemem.Session) -> None:
    for choice in (["pricing"], ["--user", "u-42"]):
        text = (await command("resume", *choice)).lines()
        assert text[0] == "pricing  open  compare the prices"
        assert "    [RESUMED_SESSION] Last active: Wrote the brief" in text
        assert any(line.startswith("  researcher at 1: stay at 12") for line in text)
        assert any("ask Hooli  [" in line for line in text)
    (document,) = (await command("resume", "pricing", "--json")).documents()
    assert document["messages"][0]["role"] == "system"
    assert [thread["text"] for thread in document["open_threads"]] == ["ask Hooli"]
    assert isinstance(document["cursor"], str)
    assert (await command("resume", "--user", "nobody")).lines() == ["nothing to resume: this user has no session yet"]


async def test_threads_are_listed(command: Command, study: hivemem.Session) -> None:
    heading, row = (await command("threads")).lines()
    assert heading.split() == ["THREAD", "STATE", "SESSION", "TEXT"]
    assert row.endswith("  open   pricing  ask Hooli")
    documents = (await command("threads", "--session", "pricing", "--state", "all", "--json")).documents()
    assert [document["state"] for document in documents] == ["resolved", "open"]
    assert (await command("threads", "--user", "nobody", "--json")).documents() == []


async def test_stats_are_shown(command: Command, study: hivemem.Session) -> None:
    lines = dict(line.split(maxsplit=1) for line in (await command("stats")).lines())
    assert (lines["namespace"], lines["episodes"], lines["agents"]) == ("default", "2", "2")
    (document,) = (await command("stats", "--json")).documents()
    assert (document["episode_count"], document["open_thread_count"]) == (2, 1)


async def test_another_namespace_is_another_memory(
    command: Command, study: hivemem.Session, memory: hivemem.Client
) -> None:
    await memory.create_namespace("other")
    assert (await command("sessions", "--json", "--namespace", "other")).documents() == []
    assert (await command("sessions", "--json", HIVEMEM_NAMESPACE="other")).documents() == []
    assert "'nowhere'" in (await command("sessions", "--namespace", "nowhere")).complaint()


@pytest.mark.parametrize(
    "arguments",
    [["sessions"], ["tail", "s"], ["append", "s", "--agent", "a", "--summary", "x"], ["search", "x"], ["threads"]],
)
async def test_a_server_out_of_reach_is_one_line_with_the_cure(command: Command, arguments: list[str]) -> None:
    complaint = (await command(*arguments, "--address", UNREACHABLE)).complaint()
    assert complaint == f"cannot reach hivemem at {UNREACHABLE}: start it with `hivemem serve`, or name another address"


async def test_mistakes_are_one_line_each(command: Command, study: hivemem.Session) -> None:
    assert "'nowhere'" in (await command("tail", "nowhere")).complaint()
    violations = (await command("append", "pricing", "--agent", "no id", "--summary", "")).complaint()
    assert "agent_id: " in violations
    assert "episodes[0].summary: " in violations
    assert (
        "'nothing'"
        in (await command("append", "pricing", "--agent", "a", "--summary", "x", "--resolve", "nothing")).complaint()
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail"],
        ["tail", "s", "--from", "x"],
        ["tail", "s", "--min-score", "1"],
        ["resume"],
        ["--nonsense"],
        ["search", "x", "--limit", "0"],
    ],
)
async def test_arguments_that_make_no_sense_are_one_line_each(command: Command, arguments: list[str]) -> None:
    done = await command(*arguments)
    (line,) = done.error.splitlines()
    assert (done.code, done.out) == (2, "")
    assert line.startswith("hivemem: ")
    assert line.endswith(" --help` says more)")


async def test_text_that_agents_wrote_does_not_steer_the_terminal(command: Command, study: hivemem.Session) -> None:
    await study.agent("writer").append(summary="a\x1b[31mred\x9b1m")
    text = (await command("tail", "pricing", "--no-follow")).out + (await command("search", "red")).out
    assert "\x1b" not in text
    assert "\x9b" not in text


@pytest.mark.parametrize(
    ("extra", "missing"), [("cli", "typer"), ("cli", "rich"), ("server", "hivemem_server.commands")]
)
async def test_a_missing_extra_is_named(extra: str, missing: str) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['hivemem', 'serve']"
    code = f"{hide}; from hivemem.cli import main; main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    (line,) = error.decode().splitlines()
    assert (process.returncode, out) == (1, b"")
    assert line.endswith(f"pip install 'hivemem[{extra}]'")


async def test_on_a_terminal_lists_are_cut_to_its_width_and_ids_never(command: Command, study: hivemem.Session) -> None:
    (thread_id,) = (await study.agent("a").append(summary="x", open_threads=["long " * 40])).thread_ids
    shown = await command("threads", "--user", "u-42", FORCE_COLOR="1", COLUMNS=str(COLUMNS))
    (row,) = (line for line in shown.lines() if "long" in line)
    assert row.startswith(f"{thread_id}  open ")
    assert row.endswith("…")
    assert len(row) <= COLUMNS
    piped = await command("threads", "--user", "u-42", COLUMNS=str(COLUMNS))
    assert any(line.endswith(" long" * 40) for line in piped.lines())


async def test_help_and_version_are_shown(command: Command) -> None:
    text = (await command("--help", COLUMNS=str(COLUMNS))).out
    for name in ("sessions", "tail", "append", "search", "resume", "threads", "stats", "serve"):
        assert f" {name} " in text
    assert all(len(line) <= COLUMNS for line in text.splitlines())
    assert (await command("--version")).out.startswith("hivemem 0.")
