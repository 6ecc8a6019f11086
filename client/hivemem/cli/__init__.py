"""The `hivemem` command. Its libraries come with the extra `cli`; without them it says so.

To add a command: a module here with `register(app)`, and its name in `_app.COMMANDS`. Other packages add theirs with an
entry point of the group `hivemem.commands`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line of this process."""
    try:
        from hivemem.cli import _app

        app = _app.build()
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.exit("hivemem: the command line is not installed: pip install 'hivemem[cli]'")
    app()
