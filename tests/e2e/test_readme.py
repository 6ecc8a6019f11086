"""The README tells the truth: its example runs, and what it names is there."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


async def test_the_example_runs_as_it_stands(server_address: str, tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example
    script = tmp_path / "example.py"
    script.write_text(example[1].replace("localhost:7400", server_address), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "1 researcher Rival's cheapest plan costs nine dollars a month." in out.decode()
    assert "SYSTEM [RESUMED_SESSION] Last active: Rival's cheapest plan" in out.decode()


def test_every_folder_that_it_names_is_there() -> None:
    for path in re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE):
        assert (ROOT / path).exists(), path


def test_every_make_target_that_it_names_is_there() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:`|^    )make ([a-z]+)", README, re.MULTILINE)) <= set(targets)
