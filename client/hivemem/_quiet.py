"""Keeps gRPC's own lines off the terminal; to be imported before grpc, which reads its environment once.

It tells of every connection that ends and every process that is started, which reads like trouble and is none. What
matters reaches the caller as an exception. Whoever sets GRPC_VERBOSITY keeps what they set.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
