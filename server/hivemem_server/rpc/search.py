"""SearchService."""

from __future__ import annotations

import datetime as dt

from hivemem.v1 import search_service_pb2 as pb

from hivemem_server.domain import limits
from hivemem_server.domain.embedder import EmbedderSlot
from hivemem_server.domain.errors import ModelUnknown, NotImplementedYet
from hivemem_server.domain.ports import NamespaceStore
from hivemem_server.domain.ranking import Hit, Weights
from hivemem_server.domain.search import Search, SearchQuery, Shortfall
from hivemem_server.domain.snippets import snippet
from hivemem_server.domain.validation import Violations, check_filter
from hivemem_server.rpc import convert
from hivemem_server.rpc.deadline import time_to_wait
from hivemem_server.rpc.namespaces import namespace_name
from hivemem_server.rpc.pages import fitting

WAIT_SECONDS = 60.0
NOT_BUILT = ("neighbour_weight", "session_weight", "agent_weight")


class SearchServicer:
    """Serves SearchService."""

    def __init__(self, namespaces: NamespaceStore, search: Search, slot: EmbedderSlot) -> None:
        self._namespaces = namespaces
        self._search = search
        self._slot = slot

    async def search_episodes(self, request: pb.SearchEpisodesRequest) -> pb.SearchEpisodesResponse:
        """Returns the episodes that fit a query best."""
        name = namespace_name(request.namespace)
        query = _query_from(request)
        self._check_model(request.vector.model if request.WhichOneof("query") == "vector" else request.model)
        namespace = await self._namespaces.resolve(name)
        result = await self._search.episodes(namespace, query, wait_seconds=time_to_wait(WAIT_SECONDS))
        hits = fitting([_hit(hit, query.text, explain=request.explain) for hit in result.hits])
        cut = [Shortfall.RESPONSE_SIZE] if len(hits) < len(result.hits) else []
        return pb.SearchEpisodesResponse(
            hits=hits,
            indexed_position=result.indexed_position,
            head_position=result.head,
            model=result.model,
            shortfalls=[pb.Shortfall.ValueType(int(reason)) for reason in (*result.shortfalls, *cut)],
        )

    def _check_model(self, wanted: str) -> None:
        model = self._slot.model
        if wanted and (model is None or wanted != model.name):
            known = f"it has {model.name!r}" if model else "it has none now"
            raise ModelUnknown(f"this server has no embedding model {wanted!r}: {known}", model=wanted)


def _query_from(request: pb.SearchEpisodesRequest) -> SearchQuery:
    found = Violations()
    match request.WhichOneof("query"):
        case "text":
            found.text("text", request.text, limits.QUERY_BYTES, required=True)
        case "vector":
            found.identifier("vector.model", request.vector.model)
        case _:
            found.add("query", "text or vector is required")
    wanted = convert.filter_from(found, request.filter)
    check_filter(found, wanted)
    found.between("limit", request.limit, 0, limits.SEARCH_LIMIT)
    found.between("min_score", request.min_score, 0, 1)
    found.at_least("as_of_position", request.as_of_position)
    found.at_least("wait_for_position", request.wait_for_position)
    weights = _weights_from(found, request.options)
    found.done()
    return SearchQuery(
        text=request.text,
        vector=list(request.vector.values) if request.WhichOneof("query") == "vector" else None,
        wanted=wanted,
        limit=request.limit or limits.DEFAULT_SEARCH_LIMIT,
        min_score=request.min_score,
        weights=weights,
        as_of=request.as_of_position,
        wait_for=request.wait_for_position,
    )


def _weights_from(found: Violations, given: pb.SearchOptions) -> Weights:
    present = {field.name for field, _ in given.ListFields()}
    for name in NOT_BUILT:
        if name in present:
            raise NotImplementedYet(f"this server has no {name} yet: leave options.{name} unset", field=name)
    default = Weights()
    for name in ("lexical_weight", "vector_weight", "recency_weight"):
        found.between(f"options.{name}", getattr(given, name), 0, limits.WEIGHT)
    half_life = default.half_life
    if given.HasField("recency_half_life"):
        half_life = convert.timedelta_from(found, "options.recency_half_life", given.recency_half_life)
        if half_life <= dt.timedelta(0):
            found.add("options.recency_half_life", "must be above zero")
            half_life = default.half_life
    return Weights(
        lexical=given.lexical_weight if given.HasField("lexical_weight") else default.lexical,
        vector=given.vector_weight if given.HasField("vector_weight") else default.vector,
        recency=given.recency_weight if given.HasField("recency_weight") else default.recency,
        half_life=half_life,
        demote_superseded=given.demote_superseded if given.HasField("demote_superseded") else True,
    )


def _hit(hit: Hit, query: str, *, explain: bool) -> pb.SearchHit:
    episode = hit.candidate.episode
    message = pb.SearchHit(
        episode=convert.episode(episode),
        score=hit.parts.total,
        snippet=snippet(episode, query),
        superseded=hit.candidate.superseded,
    )
    if explain:
        parts = hit.parts
        message.explanation.CopyFrom(
            pb.ScoreExplanation(
                lexical=parts.lexical, vector=parts.vector, recency=parts.recency, superseded=parts.superseded
            )
        )
    return message
