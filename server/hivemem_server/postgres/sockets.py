"""What a connection's socket tells, and what can be done to it when the driver waits for an answer that never comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Iterator

import psycopg


def hang_up(connection: psycopg.AsyncConnection) -> None:
    """Shuts the socket down, which wakes whoever waits for it with an error."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def ended_after(seconds: float, connection: psycopg.AsyncConnection) -> Iterator[None]:
    """Ends the connection's socket if it is used for too long: a server that is stopped, or gone behind a balancer that
    acknowledges for it, answers neither a statement nor its cancellation."""
    watchdog = asyncio.get_running_loop().call_later(seconds, hang_up, connection)
    try:
        yield
    finally:
        watchdog.cancel()


def is_alive(connection: psycopg.AsyncConnection) -> bool:
    """Whether the server has not closed a connection while it lay idle; costs no round trip.

    An idle connection has nothing to read: if there is something, it is the server's farewell.
    """
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN)
    return not readable.poll(0)
