"""Real data, read in place from the folder given by HIVEMEM_TEST_DATA (default ../shared/data beside the project)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder; without it the test skips."""
    folder = Path(os.environ.get("HIVEMEM_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the data folder given by HIVEMEM_TEST_DATA; {folder} is not there")
    return folder
