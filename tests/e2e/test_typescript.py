"""The contract as a TypeScript program meets it: stubs for @grpc/grpc-js, and the main job through them.

Skips where Node.js is missing or the npm registry does not answer; what npm brought once is used again.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from fix_server import StartServer

FOLDER = Path(__file__).resolve().parents[1] / "polyglot" / "typescript"
INSTALL_SECONDS, TEST_SECONDS = 180.0, 120.0
UNREACHABLE = re.compile(r"\b(ENOTFOUND|EAI_AGAIN|ECONN\w+|E\w*TIMEDOUT|ENETUNREACH|EHOSTUNREACH|ENOTCACHED|E5\d\d)\b")


@pytest.mark.timeout(INSTALL_SECONDS + TEST_SECONDS + 60)
async def test_a_typescript_program_does_the_main_job(start_server: StartServer, database_url: str) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js with npm is not installed")
    await _install(npm)
    server = await start_server("--embedder", "none", HIVEMEM_DATABASE_URL=database_url)
    code, output = await _run([npm, "test"], TEST_SECONDS, HIVEMEM_ADDRESS=server.address)
    assert code == 0, output


async def _install(npm: str) -> None:
    try:
        code, output = await _run([npm, "install", "--prefer-offline", "--fetch-retries=1"], INSTALL_SECONDS)
    except TimeoutError:
        pytest.skip(f"the npm registry did not bring the packages within {INSTALL_SECONDS:g} s")
    if code and (why := UNREACHABLE.search(output)):
        pytest.skip(f"the npm registry cannot be reached ({why[1]})")
    assert code == 0, output


async def _run(command: list[str], seconds: float, **environment: str) -> tuple[int, str]:
    """Runs a command in the folder to its end; returns its exit code and all that it said. Raises TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=FOLDER, env=os.environ | environment, start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # npm's own children as well: they are one group
            await process.wait()
    return process.returncode or 0, said.decode(errors="replace")
