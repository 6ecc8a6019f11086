"""A server on a real socket that speaks OpenAI's embeddings and chat completions API, and misbehaves when told to.

    async with OpenAIServer() as server:
        server.next(Status(429, retry_after="7"), HangUp())     # the next two requests; then well again
        server.always(Slow())                                   # all that follow, until server.always(None)

Its vectors are bags of words, so that texts that share words are near. Its chat answers with `server.reply(messages)`,
which quotes the last message unless it is replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

DIMENSION = 64
EMBEDDING_MODEL = "bag-of-words"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """What arrived."""

    path: str
    headers: dict[str, str]
    body: Json


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back; `content` is JSON, or sent as it is."""

    status: int
    content: Any
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """Answers with a status and a message, as OpenAI does."""

    status: int
    message: str = "told to fail"
    retry_after: str = ""


@dataclass(frozen=True, slots=True)
class Slow:
    """Answers only once `release` is set, or never."""

    release: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class HangUp:
    """Closes the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Text:
    """Answers 200 with something that is no JSON, as a wrong address does."""

    text: str = "<html>It works!</html>"
    content_type: str = "text/html"


@dataclass(frozen=True, slots=True)
class Altered:
    """Answers 200 with the right rows (`{"index": …, "embedding": […]}`), altered."""

    change: Callable[[list[Json]], list[Json]]


@dataclass(frozen=True, slots=True)
class Refuses:
    """Answers 400 if a text of the request has the word, else as it should."""

    word: str


Misbehaviour = Status | Slow | HangUp | Text | Altered | Refuses

wrong_count = Altered(lambda rows: rows[:-1])
wrong_dimension = Altered(lambda rows: [{**row, "embedding": row["embedding"][:-1]} for row in rows])
not_a_number = Altered(lambda rows: [{**row, "embedding": [math.nan, *row["embedding"][1:]]} for row in rows])
zeros = Altered(lambda rows: [{**row, "embedding": [0.0] * len(row["embedding"])} for row in rows])
same_index = Altered(lambda rows: [{**row, "index": 0} for row in rows])
no_numbers = Altered(lambda rows: [{**row, "embedding": "none"} for row in rows])
backwards = Altered(lambda rows: rows[::-1])


def bag_of_words(text: str, dimension: int) -> list[float]:
    """Counts of words, each hashed to a place; the first place is never 0. Not of unit length."""
    vector = [0.1] + [0.0] * (dimension - 1)
    for word in re.findall(r"\w+", text.lower()):
        vector[1 + hashlib.sha256(word.encode()).digest()[0] % (dimension - 1)] += 1.0
    return vector


def quote(messages: Sequence[Json]) -> str:
    """The reply unless another is set: what was said last."""
    return str(messages[-1]["content"]) if messages else ""


class OpenAIServer:
    """The server. `requests` is everything that arrived, answered or not."""

    def __init__(self, *, dimension: int = DIMENSION, key: str = "") -> None:
        self.dimension = dimension
        self.key = key
        self.reply: Callable[[Sequence[Json]], str] = quote
        self.requests: list[Request] = []
        self.arrived = asyncio.Event()
        self._next: deque[Misbehaviour | None] = deque()
        self._always: Misbehaviour | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """The base URL for clients."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}/v1"

    def next(self, *behaviours: Misbehaviour | None) -> None:
        """How the next requests are answered, one each; None is well."""
        self._next.extend(behaviours)

    def always(self, behaviour: Misbehaviour | None) -> None:
        """How all requests are answered that `next` says nothing about; None is well."""
        self._always = behaviour

    def inputs(self) -> list[list[str]]:
        """The texts of each embedding request so far."""
        return [request.body["input"] for request in self.requests if request.path.endswith("/embeddings")]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read(reader)) is not None and await self._serve(request, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went, or the server ends
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answers, and says whether the connection goes on."""
        self.requests.append(request)
        self.arrived.set()
        behaviour = self._next.popleft() if self._next else self._always
        if isinstance(behaviour, Slow):
            await behaviour.release.wait()
        if isinstance(behaviour, HangUp):
            return False
        _write(writer, self._answer(request, behaviour))
        return True

    def _answer(self, request: Request, behaviour: Misbehaviour | None) -> Answer:
        match behaviour:
            case Status(status, message, retry_after):
                return _error(status, message, {"retry-after": retry_after} if retry_after else {})
            case Text(text, content_type):
                return Answer(200, text, {"content-type": content_type})
            case Refuses(word) if any(word in text for text in request.body["input"]):
                return _error(400, f"refused for {word}")
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, f"Incorrect API key provided: {request.headers.get('authorization', '')}")
        if request.path.endswith("/embeddings"):
            return self._embeddings(request, behaviour)
        if request.path.endswith("/chat/completions"):
            return self._completion(request)
        return _error(404, f"no such path: {request.path}")

    def _embeddings(self, request: Request, behaviour: Misbehaviour | None) -> Answer:
        texts = request.body["input"]
        if "" in texts:
            return _error(400, "input cannot be an empty string")
        dimension = request.body.get("dimensions", self.dimension)
        rows: list[Json] = [
            {"object": "embedding", "index": index, "embedding": bag_of_words(text, dimension)}
            for index, text in enumerate(texts)
        ]
        if isinstance(behaviour, Altered):
            rows = behaviour.change(rows)
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return Answer(200, {"object": "list", "model": request.body["model"], "data": rows, "usage": usage})

    def _completion(self, request: Request) -> Answer:
        message = {"role": "assistant", "content": self.reply(request.body["messages"]), "refusal": None}
        return Answer(
            200,
            {
                "id": f"chatcmpl-{len(self.requests)}",
                "object": "chat.completion",
                "created": 0,
                "model": request.body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            },
        )


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Answer:
    error = {"message": message, "type": "told", "param": None, "code": None}
    return Answer(status, {"error": error}, headers or {})


async def _read(reader: asyncio.StreamReader) -> Request | None:
    line = await reader.readline()
    if not line:
        return None
    path = line.decode().split()[1]
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(path, headers, json.loads(body) if body else {})


def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    raw = isinstance(answer.content, str)
    body = (answer.content if raw else json.dumps(answer.content)).encode()
    headers = {"content-type": "application/json", **answer.headers, "content-length": str(len(body))}
    lines = [f"HTTP/1.1 {answer.status} Told", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)


@pytest.fixture
async def openai_server() -> AsyncIterator[OpenAIServer]:
    """A well-behaved server without a key."""
    async with OpenAIServer() as server:
        yield server
