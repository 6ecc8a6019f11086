"""An embedder behind any endpoint that speaks OpenAI's embeddings API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import openai
import structlog
from pydantic import SecretStr

from hivemem_server.domain.embedder import EmbedderRejected, EmbeddingModel
from hivemem_server.domain.errors import EmbedderUnavailable
from hivemem_server.embedding.endpoint_failures import failure_of, may_pass_at_once
from hivemem_server.embedding.vectors import in_order, unit_vectors

_PROBE = "hivemem"
_BLANK = "."  # goes for an empty text, which OpenAI's endpoint refuses
_NO_KEY = "none"  # local servers want none, the client library insists
_FIRST_PAUSE_SECONDS = 0.2
_CLAUSE_CHARACTERS = 300

log = structlog.get_logger(__name__)


class OpenAIEmbedder:
    """An Embedder over HTTP. The key is sent to the endpoint and shown nowhere.

    Opening embeds one word, to learn the dimension and to say at once that the key, the model or the address is wrong
    (EmbedderRejected). If the endpoint does not answer, opening fails with EmbedderUnavailable, unless `dimensions` are
    given: then they are believed, and sent to the endpoint in every request.

    Passages go in requests of at most `batch_texts` texts and `batch_characters` characters, one after the other; of a
    text the first `text_characters` count. A request, retries included, ends after `timeout` seconds, for a query after
    `query_timeout`. A broken connection or a status of 500 and more is tried again `max_retries` times; whoever asks to
    wait (429, Retry-After) is not asked again: the caller is told how long.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str | None = None,
        api_key: SecretStr | None = None,
        dimensions: int | None = None,
        timeout: float = 30.0,
        query_timeout: float = 5.0,
        max_retries: int = 1,
        batch_texts: int = 128,
        batch_characters: int = 100_000,
        text_characters: int = 8_000,
    ) -> None:
        self._name = model
        self._api_key = _sendable(api_key)
        self._dimensions = dimensions
        self._timeout = timeout
        self._query_timeout = query_timeout
        self._max_retries = max_retries
        self._batch_texts = batch_texts
        self._batch_characters = batch_characters
        self._text_characters = text_characters
        self._model: EmbeddingModel | None = None
        self._closed = False
        # Retries are ours: the client's would sleep for as long as the endpoint wishes.
        self._client = openai.AsyncOpenAI(
            base_url=base_url, api_key=self._api_key.get_secret_value() or _NO_KEY, timeout=timeout, max_retries=0
        )

    async def __aenter__(self) -> Self:
        try:
            dimension = await self._probed_dimension()
        except BaseException:
            await self.aclose()
            raise
        self._model = EmbeddingModel(name=self._name, dimension=dimension, digest="")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def model(self) -> EmbeddingModel:
        """As the port says; known once it is open."""
        assert self._model is not None, "the embedder is not open"
        return self._model

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        """As the port says. An empty text counts as a full stop."""
        vectors: list[list[float]] = []
        for batch in self._batches(texts):
            vectors += await self._embed(batch, self._timeout)
        return vectors

    async def embed_query(self, text: str) -> list[float]:
        """As the port says."""
        return (await self._embed([self._readable(text)], self._query_timeout))[0]

    async def aclose(self) -> None:
        """As the port says."""
        self._closed = True
        await self._client.close()

    async def _probed_dimension(self) -> int:
        try:
            return len((await self._embed([_PROBE], self._timeout))[0])
        except EmbedderUnavailable as error:
            if self._dimensions is None:
                advice = "Start it, or set the dimensions to start without it."
                raise EmbedderUnavailable(f"{error.message} {advice}", error.retry_after) from None
            log.warning("the embedding endpoint does not answer yet", model=self._name, reason=error.message)
            return self._dimensions

    def _readable(self, text: str) -> str:
        """The beginning of the text, as an endpoint can read it."""
        beginning = text[: self._text_characters].encode("utf-8", "replace").decode("utf-8")
        return beginning if beginning.strip() else _BLANK

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        characters = 0
        for text in map(self._readable, texts):
            if batch and (len(batch) == self._batch_texts or characters + len(text) > self._batch_characters):
                yield batch
                batch, characters = [], 0
            batch.append(text)
            characters += len(text)
        if batch:
            yield batch

    async def _embed(self, texts: Sequence[str], seconds: float) -> list[list[float]]:
        """The vectors of one request. A refusal is blamed on its texts only if the endpoint takes another one."""
        try:
            return await self._ask(texts, seconds)
        except EmbedderRejected as refusal:
            if refusal.texts_refused and not await self._takes_others(seconds):
                raise EmbedderRejected(refusal.message, texts_refused=False) from None
            raise

    async def _takes_others(self, seconds: float) -> bool:
        try:
            await self._ask([_PROBE], seconds)
        except EmbedderRejected:
            return False
        return True

    async def _ask(self, texts: Sequence[str], seconds: float) -> list[list[float]]:
        """One request within its time, with errors in whole sentences."""
        if self._closed:
            raise self._closed_error()
        try:
            async with asyncio.timeout(seconds):
                rows = await self._rows(texts)
            return unit_vectors(rows, self._model.dimension if self._model else self._dimensions)
        except TimeoutError:
            raise EmbedderUnavailable(self._sentence(f"did not answer within {seconds:g} s")) from None
        except RuntimeError:
            if not self._closed:
                raise
            raise self._closed_error() from None  # the client library's word for being closed meanwhile
        except EmbedderUnavailable as error:
            raise EmbedderUnavailable(self._sentence(error.message), error.retry_after) from None
        except EmbedderRejected as error:
            raise EmbedderRejected(self._sentence(error.message), texts_refused=error.texts_refused) from None

    async def _rows(self, texts: Sequence[str]) -> list[object]:
        """What comes for the texts, in their order; asked for again where that can help at once."""
        retries = 0
        while True:
            try:
                return await self._request(texts)
            except (openai.OpenAIError, ValueError) as error:
                if self._closed or retries >= self._max_retries or not may_pass_at_once(error):
                    raise failure_of(error) from None
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2.0**retries)
            retries += 1

    async def _request(self, texts: Sequence[str]) -> list[object]:
        answer = await self._client.embeddings.create(
            model=self._name,
            input=list(texts),
            encoding_format="float",
            dimensions=openai.omit if self._dimensions is None else self._dimensions,
        )
        rows = in_order(getattr(answer, "data", None), len(texts))
        return [getattr(row, "embedding", None) for row in rows]

    def _closed_error(self) -> EmbedderUnavailable:
        return EmbedderUnavailable(self._sentence("is not asked any more: the embedder is closed"))

    def _sentence(self, clause: str) -> str:
        """What the endpoint does, perhaps in its own words: cut, and without the key, which it may have repeated."""
        key = self._api_key.get_secret_value()
        said = clause.replace(key, "…") if key else clause
        if len(said) > _CLAUSE_CHARACTERS:
            said = said[: _CLAUSE_CHARACTERS - 1] + "…"
        address = self._client.base_url
        return f"The embedding endpoint {address.host} (model {self._name}) {said}."


def _sendable(api_key: SecretStr | None) -> SecretStr:
    """The key without the spaces around it; anything else that a header cannot carry is said here, without the key."""
    key = api_key.get_secret_value().strip() if api_key else ""
    if not (key.isascii() and key.isprintable()):
        raise ValueError("The embedding endpoint's API key has characters that no key has: copy it again.")
    return SecretStr(key)
