"""`python -m hivemem.cli` is `hivemem`."""

from __future__ import annotations

from hivemem.cli import main

if __name__ == "__main__":
    main()
