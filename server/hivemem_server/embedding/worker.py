"""The process that runs the local model: `python -m hivemem_server.embedding.worker`, for the server alone.

It reads requests from standard input and ends with it, so that it never outlives the server.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, BinaryIO

from hivemem_server.embedding.frames import frame, read_frame

if TYPE_CHECKING:
    from hivemem_server.embedding.encoder import Encoder


def main() -> int:
    """Loads the model, says so, and answers until standard input ends; returns the exit status."""
    step_back()
    answers = claimed_output()
    try:
        encoder = load()
    except Exception as error:
        send(answers, frame({"error": reason(error)}))
        return 1
    send(answers, frame({}))
    serve(encoder, sys.stdin.buffer, answers)
    return 0


def step_back() -> None:
    """Takes the processor only when nobody else wants it, and leaves Ctrl-C to the server.

    It stays in the server's session: where the kernel groups processes by session, a niceness counts within one only.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(19)


def claimed_output() -> BinaryIO:
    """Standard output for frames alone: what else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def load() -> Encoder:
    """The model. Imported here, so that a missing package is an answer like any other."""
    from hivemem_server.embedding.encoder import Encoder

    return Encoder()


def reason(error: Exception) -> str:
    """One sentence with the cure."""
    if isinstance(error, ImportError):
        return f"{error}: pip install 'hivemem[server]'"
    return f"{type(error).__name__}: {error}"


def serve(encoder: Encoder, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers one request after the other."""
    while (request := read_frame(requests)) is not None:
        vectors = encoder.encode(request[0]["texts"])
        rows, columns = vectors.shape
        send(answers, frame({"rows": rows, "columns": columns}, vectors.astype("<f4").tobytes()))


def send(answers: BinaryIO, data: bytes) -> None:
    """Writes it through."""
    answers.write(data)
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
