"""Options that the commands share, and the client that they ask for."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from hivemem._client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEFAULT_ADDRESS = "127.0.0.1:7400"
# Seconds after which a server that cannot be reached is given up. People wait less patiently than agents.
_CONNECT_TIMEOUT = 2.0

Address = Annotated[str, typer.Option("--address", envvar="HIVEMEM_ADDRESS", help="Where the server is.")]
Namespace = Annotated[str, typer.Option("--namespace", envvar="HIVEMEM_NAMESPACE", help="Which memory.")]
Json = Annotated[bool, typer.Option("--json", help="Writes JSON, for programs.")]


@contextlib.asynccontextmanager
async def connected(address: str, namespace: str) -> AsyncIterator[Client]:
    """A client whose server has answered."""
    async with Client(address, namespace=namespace) as memory:
        await memory.connect(timeout=_CONNECT_TIMEOUT)
        yield memory
