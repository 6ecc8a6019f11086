"""The hivemem server: one log a namespace on PostgreSQL, served over gRPC."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("hivemem")
