"""Speed as ratios: what the server does against a bare reference, in one run, on one machine.

    make bench NAME=append              one family
    make bench NAME=append_unary        one measure
    python -m tests.bench all --full    everything, with full counts

Each measure prints one line of JSON on stdout; progress goes to stderr. Ours and bare take turns, and the medians of
their rounds are compared, so that whatever else the machine does slows both. The references are the modules `bare_*`.
They change with the schema only: a faster server must not move them.
"""

from __future__ import annotations

import hivemem  # noqa: F401 - before grpc, whose lines it keeps off the terminal
