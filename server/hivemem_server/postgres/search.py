"""Search on PostgreSQL: candidates by words and by meaning in one round trip, and the vectors of each model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, LiteralString

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Float,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    false,
    func,
    literal_column,
    null,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import REGCONFIG, TSQUERY
from sqlalchemy.sql import ColumnElement, Select
from sqlalchemy.sql.selectable import CTE

from hivemem_server.domain.embedder import EmbeddingModel
from hivemem_server.domain.errors import ModelUnknown
from hivemem_server.domain.filters import Filter
from hivemem_server.domain.ports import Candidates
from hivemem_server.domain.ranking import Candidate
from hivemem_server.domain.values import Namespace
from hivemem_server.postgres import rows
from hivemem_server.postgres.database import Database, Query, compiled
from hivemem_server.postgres.filters import NAMESPACE, record_conditions, record_params, shape
from hivemem_server.postgres.tables import decisions, index_progress, log, namespaces

# ts_rank divides by 1 + the logarithm of the length: statements above long outputs.
LENGTH_NORMALISATION = 1


_LIMIT = bindparam("limit", type_=Integer)

# How far a model's index of a namespace has come.
INDEXED: LiteralString = """
SELECT coalesce((SELECT position FROM index_progress WHERE namespace_id = %(namespace)s AND model_key = %(model)s), 0)
"""


class ModelMismatch(Exception):
    """An embedding model is known to the database with other properties; the message names the cure."""


def vectors(model_key: int, dimension: int) -> Table:
    """The table of a model's vectors."""
    return Table(
        f"vectors_{model_key}",
        MetaData(),
        Column("namespace_id", Integer, primary_key=True),
        Column("position", BigInteger, primary_key=True),
        Column("embedding", HALFVEC(dimension), nullable=False),
    )


class PostgresSearch:
    """Implements SearchStore."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, int] = {}

    async def register_model(self, model: EmbeddingModel) -> None:
        """See SearchStore."""
        async with self._database.transaction() as connection:
            await connection.execute("LOCK TABLE models IN SHARE ROW EXCLUSIVE MODE")
            query = "SELECT model_key, dimension, digest FROM models WHERE name = %s"
            known = await (await connection.execute(query, [model.name])).fetchone()
            if known:
                _check_same(model, known[1], known[2])
                self._keys[model.name] = known[0]
                return
            await connection.execute(
                "INSERT INTO models (model_key, name, dimension, digest, created_time)"
                " SELECT coalesce(max(model_key), 0) + 1, %s, %s, %s, clock_timestamp() FROM models",
                [model.name, model.dimension, model.digest],
            )
            row = await (await connection.execute(query, [model.name])).fetchone()
            assert row is not None
            create: Any = (
                f"CREATE TABLE vectors_{row[0]} (namespace_id int NOT NULL, position bigint NOT NULL,"
                f" embedding halfvec({model.dimension}) NOT NULL, PRIMARY KEY (namespace_id, position))"
            )
            await connection.execute(create)
            self._keys[model.name] = row[0]

    def model_key(self, model: EmbeddingModel) -> int:
        """The key of a registered model."""
        key = self._keys.get(model.name)
        if key is None:
            raise ModelUnknown(f"this server has no embedding model {model.name!r}", model=model.name)
        return key

    async def indexed_position(self, namespace: Namespace, model: EmbeddingModel) -> int:
        """See SearchStore."""
        params = {"namespace": namespace.key, "model": self.model_key(model)}
        found = await self._database.fetch(INDEXED, params)
        return int(found[0][0])

    async def scores(
        self, namespace: Namespace, model: EmbeddingModel, vector: Sequence[float], positions: Sequence[int]
    ) -> dict[int, float]:
        """See SearchStore."""
        if not positions:
            return {}
        query = _scores(self.model_key(model), model.dimension)
        return dict(
            await self._database.query(
                query, namespace=namespace.key, positions=list(positions), vector=written(vector)
            )
        )

    async def candidates(
        self,
        namespace: Namespace,
        wanted: Filter,
        *,
        text: str,
        vector: Sequence[float] | None,
        model: EmbeddingModel | None,
        limit: int,
    ) -> Candidates:
        """See SearchStore."""
        key, dimension = (self.model_key(model), model.dimension) if model and vector is not None else (0, 0)
        found = await self._database.query(
            _candidates(shape(wanted), key, dimension),
            **record_params(namespace.key, wanted),
            words=text,
            vector=written(vector) if vector is not None else "",
            model=key,
            limit=limit,
        )
        indexed, head, full = found[0][:3]
        return Candidates(
            candidates=[
                Candidate(episode=rows.episode(row[6:]), lexical=row[3], similarity=row[4], superseded=row[5])
                for row in found
                if row[6] is not None
            ],
            full_lexical=full,
            indexed_position=indexed,
            head=head,
        )


def _check_same(model: EmbeddingModel, dimension: int, digest: str) -> None:
    if dimension != model.dimension:
        raise ModelMismatch(
            f"the database holds vectors of model {model.name!r} with {dimension} dimensions, but the embedder gives"
            f" {model.dimension}: set --embedding-dimensions {dimension}, or use a model of another name"
        )
    if digest != model.digest:
        raise ModelMismatch(
            f"the database holds vectors of model {model.name!r} with digest {digest or 'none'}, but the embedder has"
            f" {model.digest or 'none'}: install the version it was indexed with, or use a model of another name"
        )


@functools.lru_cache(maxsize=1_000)
def _candidates(shaped: Filter, model_key: int, dimension: int) -> Query:
    """The statement for one shape of filter and one model; without a model, by words only."""
    nearest = _by_meaning(shaped, vectors(model_key, dimension)) if model_key else _nothing()
    query = _query()
    return compiled(_united(shaped, query, _by_words(shaped, query), nearest))


@functools.lru_cache(maxsize=100)
def _scores(model_key: int, dimension: int) -> Query:
    table = vectors(model_key, dimension)
    given = cast(bindparam("vector", type_=Text), HALFVEC(dimension))
    similarity = 1 - cast(table.c.embedding.op("<=>")(given), Float)
    bounded = func.least(func.greatest(similarity, literal_column("0")), literal_column("1"))
    asked = table.c.position == any_(bindparam("positions", type_=ARRAY(BigInteger)))
    return compiled(select(table.c.position, bounded).where(table.c.namespace_id == NAMESPACE, asked))


def _indexed() -> ColumnElement[int]:
    progress = select(index_progress.c.position).where(
        index_progress.c.namespace_id == NAMESPACE, index_progress.c.model_key == bindparam("model", type_=SmallInteger)
    )
    return func.coalesce(progress.scalar_subquery(), 0)


def _query() -> CTE:
    """The words as a query for any of their stems, in the namespace's language, and the rank that they have themselves.

    One row; NULL if no stem is left.
    """
    language = select(cast(namespaces.c.text_language, REGCONFIG)).where(namespaces.c.namespace_id == NAMESPACE)
    words = select(func.to_tsvector(language.scalar_subquery(), bindparam("words", type_=Text)).label("vector")).cte(
        "words"
    )
    lexeme = func.unnest(words.c.vector).table_valued("lexeme", "positions", "weights").lateral()
    escaped = func.replace(func.replace(lexeme.c.lexeme, "\\", "\\\\"), "'", "''")
    joined = cast(func.string_agg("'" + escaped + "'", " | "), TSQUERY)
    stems = select(joined).select_from(words.join(lexeme, true())).scalar_subquery()
    query = select(words.c.vector, stems.label("stems")).cte("stems")
    return select(query.c.stems, _rank(query.c.vector, query.c.stems).label("own_rank")).cte("query")


def _rank(vector: ColumnElement[Any], stems: ColumnElement[Any]) -> ColumnElement[float]:
    return cast(func.ts_rank(vector, stems, LENGTH_NORMALISATION), Float)


def _by_words(shaped: Filter, query: CTE) -> CTE:
    rank = _rank(log.c.search, query.c.stems)
    return (
        select(log.c.position, rank.label("lexical"))
        .select_from(log.join(query, log.c.search.op("@@")(query.c.stems)))
        .where(*record_conditions(shaped))
        .order_by(rank.desc(), log.c.position.desc())
        .limit(_LIMIT)
        .cte("by_words")
    )


def _by_meaning(shaped: Filter, table: Table) -> CTE:
    wanted = cast(bindparam("vector", type_=Text), table.c.embedding.type)
    distance = table.c.embedding.op("<=>")(wanted)
    return (
        select(log.c.position, (1 - cast(distance, Float)).label("similarity"))
        .select_from(
            log.join(table, and_(table.c.namespace_id == log.c.namespace_id, table.c.position == log.c.position))
        )
        .where(table.c.namespace_id == NAMESPACE, *record_conditions(shaped))
        .order_by(distance, log.c.position.desc())
        .limit(_LIMIT)
        .cte("by_meaning")
    )


def written(vector: Sequence[float]) -> str:
    """A vector as pgvector reads it."""
    return "[" + ",".join(f"{float(number):.7g}" for number in vector) + "]"


def _nothing() -> CTE:
    no_position, no_similarity = cast(null(), BigInteger), cast(null(), Float)
    return select(no_position.label("position"), no_similarity.label("similarity")).where(false()).cte("by_meaning")


def _is_superseded(shaped: Filter) -> ColumnElement[bool]:
    """Whether a decision was superseded within the part of the log that is searched."""
    if shaped.through:
        return decisions.c.superseded_by <= bindparam("filter_through", type_=BigInteger)
    return decisions.c.superseded_by.is_not(None)


def _united(shaped: Filter, query: CTE, lexical: CTE, nearest: CTE) -> Select[Any]:
    """Both lists as one, with what the log knows of them. One row with nothing in it if both are empty."""
    position = func.coalesce(lexical.c.position, nearest.c.position)
    both = (
        select(position.label("position"), lexical.c.lexical, nearest.c.similarity)
        .select_from(lexical.join(nearest, lexical.c.position == nearest.c.position, full=True))
        .cte("both_lists")
    )
    superseded = (
        select(true())
        .where(decisions.c.namespace_id == NAMESPACE, decisions.c.position == both.c.position, _is_superseded(shaped))
        .exists()
    )
    found = (
        select(both.c.lexical, both.c.similarity, superseded.label("superseded"), *rows.RECORD_COLUMNS)
        .select_from(rows.with_names().join(both, log.c.position == both.c.position))
        .where(log.c.namespace_id == NAMESPACE)
        .subquery("found")
    )
    head = select(func.max(log.c.position)).where(log.c.namespace_id == NAMESPACE).scalar_subquery()
    bounds = select(
        _indexed().label("indexed"),
        func.coalesce(head, 0).label("head"),
        func.coalesce(query.c.own_rank, 0.0).label("own"),
    ).subquery("bounds")
    return select(*bounds.c, *found.c).select_from(bounds.outerjoin(found, true()))
