"""The contract as a TypeScript program meets it: stubs for @grpc/grpc-js, and the main job through them.

Skips where Node.js is missing or the npm registry does not answer. What npm brought once is used again, without asking.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest
from fix_server import StartServer

FOLDER = Path(__file__).resolve().parents[1] / "polyglot" / "typescript"
ASK_SECONDS, INSTALL_SECONDS, TEST_SECONDS = 20.0, 180.0, 120.0


@pytest.mark.timeout(INSTALL_SECONDS + TEST_SECONDS + 90)
async def test_a_typescript_program_does_the_main_job(start_server: StartServer, database_url: str) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")
    await _install()
    server = await start_server("--embedder", "none", HIVEMEM_DATABASE_URL=database_url)
    code, output = await _npm("test", seconds=TEST_SECONDS, HIVEMEM_ADDRESS=server.address)
    assert code == 0, output


async def _install() -> None:
    """Brings the packages unless they are there."""
    code, _ = await _npm("ls", "--depth=0", seconds=ASK_SECONDS)
    if code == 0:
        return
    try:
        code, output = await _npm("view", "@grpc/grpc-js", "version", "--fetch-retries=0", seconds=ASK_SECONDS)
    except TimeoutError:
        pytest.skip(f"the npm registry does not answer within {ASK_SECONDS:g} s")
    if code:
        pytest.skip(f"the npm registry cannot be used: {output.splitlines()[0]}")
    code, output = await _npm("install", seconds=INSTALL_SECONDS)
    assert code == 0, output


async def _npm(*arguments: str, seconds: float, **environment: str) -> tuple[int, str]:
    """Runs npm in the folder to its end; returns its exit code and all that it said. Raises TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        "npm", *arguments, cwd=FOLDER, env=os.environ | environment, start_new_session=True,
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
