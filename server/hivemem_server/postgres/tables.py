"""The tables. Migrations make them; a test proves that both say the same.

Every key begins with the namespace, so that a namespace can be moved as a whole. Sessions and agents have small
internal keys, so that a removed record leaves nothing personal behind. Positions and revisions come from the log
itself: its last key is the head. Thread and decision texts live in the episode that recorded them; `threads` and
`decisions` hold what is true of them now.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TSVECTOR

metadata = MetaData()

Id = Text(collation="C")
Time = DateTime(timezone=True)

namespaces = Table(
    "namespaces",
    metadata,
    Column("namespace_id", Integer, primary_key=True, autoincrement=False),
    Column("name", Id, unique=True, comment="null: deleted; the row stays, so that its key is never used again"),
    Column("epoch", Uuid, nullable=False, comment="changes when the log's history does"),
    Column("digest_key", LargeBinary, nullable=False),
    Column("floor", BigInteger, nullable=False, server_default="0", comment="positions up to it are cut off"),
    Column("description", Text, nullable=False, server_default=""),
    Column("labels", JSONB, nullable=False, server_default="{}"),
    Column("text_language", Text, nullable=False, server_default="english"),
    Column("redaction", JSONB, nullable=False, server_default="{}", comment='{"enabled", "kinds", "patterns"}'),
    Column("created_time", Time, nullable=False),
    Column("updated_time", Time, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("namespace_id", Integer, nullable=False),
    Column("session_key", Integer, nullable=False),
    Column("session_id", Id, nullable=False),
    Column("user_id", Id, nullable=False, server_default=""),
    Column("goal", Text, nullable=False, server_default=""),
    Column("labels", JSONB, nullable=False, server_default="{}"),
    Column("state", SmallInteger, nullable=False, comment="1 open, 2 closed"),
    Column("continues_key", Integer),
    Column("created_time", Time, nullable=False),
    Column("updated_time", Time, nullable=False),
    Column("closed_time", Time),
    PrimaryKeyConstraint("namespace_id", "session_key"),
    UniqueConstraint("namespace_id", "session_id"),
    ForeignKeyConstraint(["namespace_id"], ["namespaces.namespace_id"]),
    Index("sessions_user", "namespace_id", "user_id", "session_key"),
)

agents = Table(
    "agents",
    metadata,
    Column("namespace_id", Integer, nullable=False),
    Column("agent_key", Integer, nullable=False),
    Column("agent_id", Id, nullable=False),
    Column("created_time", Time, nullable=False),
    PrimaryKeyConstraint("namespace_id", "agent_key"),
    UniqueConstraint("namespace_id", "agent_id"),
    ForeignKeyConstraint(["namespace_id"], ["namespaces.namespace_id"]),
)

log = Table(
    "log",
    metadata,
    Column("namespace_id", Integer, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("record_kind", SmallInteger, nullable=False, comment="1 episode, 2 thread event, 3 fact change, 4 removal"),
    Column("record_id", Uuid, nullable=False, comment="the client's id of an episode"),
    Column("time", Time, nullable=False),
    Column("session_key", Integer),
    Column("agent_key", Integer),
    Column("revision", BigInteger),
    Column("turn", BigInteger),
    Column("kind", Id),
    Column("summary", Text),
    Column("tags", ARRAY(Text)),
    Column("attributes", JSONB, comment='{"key": {"s" text | "i" whole number | "d" number | "b" truth value}}'),
    Column("event_time", Time),
    Column("decisions", JSONB, comment='[{"id", "text", "supersedes"}]'),
    Column("open_threads", JSONB, comment='[{"id", "text", "priority", "tags", "plan_id", "step"}]'),
    Column("ended_threads", JSONB, comment='[{"id", "fence", "how"}]'),
    Column("to_agents", ARRAY(Text)),
    Column("thread_event", JSONB, comment='{"thread_id", "type", "episode_id", "fence", "expire_time", "note"}'),
    Column("digest", LargeBinary, comment="of an episode as it was received; null: erased"),
    Column("search", TSVECTOR),
    PrimaryKeyConstraint("namespace_id", "position"),
    UniqueConstraint("namespace_id", "record_id"),
    Index(
        "log_stream",
        "namespace_id",
        "session_key",
        "agent_key",
        "revision",
        unique=True,
        postgresql_where=text("record_kind = 1"),
    ),
    Index("log_session", "namespace_id", "session_key", "position"),
    Index("log_agent", "namespace_id", "agent_key", "position"),
    Index("log_session_agent", "namespace_id", "session_key", "agent_key", "position"),
    Index("log_search", "namespace_id", "search", postgresql_using="gin"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("namespace_id", Integer, nullable=False),
    Column("decision_id", Id, nullable=False),
    Column("session_key", Integer, nullable=False),
    Column("position", BigInteger, nullable=False, comment="of the episode that recorded it"),
    Column("ordinal", SmallInteger, nullable=False, comment="its place in that episode, from 1"),
    Column("superseded_by", BigInteger, comment="position of the episode that superseded it"),
    PrimaryKeyConstraint("namespace_id", "decision_id"),
    Index("decisions_episode", "namespace_id", "position", "ordinal"),
    Index(
        "decisions_standing",
        "namespace_id",
        "session_key",
        "position",
        "ordinal",
        postgresql_where=text("superseded_by IS NULL"),
    ),
)

threads = Table(
    "threads",
    metadata,
    Column("namespace_id", Integer, nullable=False),
    Column("thread_id", Id, nullable=False),
    Column("session_key", Integer, nullable=False),
    Column("agent_key", Integer, nullable=False),
    Column("position", BigInteger, nullable=False, comment="of the episode that opened it"),
    Column("ordinal", SmallInteger, nullable=False, comment="its place in that episode, from 1"),
    Column("state", SmallInteger, nullable=False, comment="1 open, 2 claimed, 3 resolved, 4 dropped"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("tags", ARRAY(Text)),
    Column("plan_id", Id),
    Column("step", Integer),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    Column("claimed_by", Integer),
    Column("lease", Interval),
    Column("claim_time", Time),
    Column("expire_time", Time),
    Column("ended_by", Integer),
    Column("ended_position", BigInteger, comment="of the episode that ended it"),
    Column("ended_time", Time),
    Column("superseded", Boolean, nullable=False, server_default="false"),
    PrimaryKeyConstraint("namespace_id", "thread_id"),
    Index("threads_order", "namespace_id", "position", "ordinal"),
    Index(
        "threads_plan", "namespace_id", "session_key", "plan_id", "step", postgresql_where=text("plan_id IS NOT NULL")
    ),
    Index(
        "threads_unfinished",
        "namespace_id",
        "session_key",
        "position",
        "ordinal",
        postgresql_where=text("state IN (1, 2)"),
    ),
)

cursors = Table(
    "cursors",
    metadata,
    Column("namespace_id", Integer, nullable=False),
    Column("name", Id, nullable=False),
    Column("epoch", Uuid, nullable=False, comment="of the log when it was stored"),
    Column("position", BigInteger, nullable=False),
    Column("record_id", Uuid, nullable=False, comment="of the record there; nil: there was none"),
    Column("updated_time", Time, nullable=False),
    PrimaryKeyConstraint("namespace_id", "name"),
)

models = Table(
    "models",
    metadata,
    Column("model_key", SmallInteger, primary_key=True, autoincrement=False),
    Column("name", Id, nullable=False, unique=True),
    Column("dimension", Integer, nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_time", Time, nullable=False),
    comment="each has a table vectors_<model_key> (namespace_id, position, embedding)",
)

index_progress = Table(
    "index_progress",
    metadata,
    Column("namespace_id", Integer, nullable=False),
    Column("model_key", SmallInteger, nullable=False),
    Column("position", BigInteger, nullable=False, comment="everything up to it is indexed or set aside"),
    Column("holder", Uuid, comment="the replica that indexes"),
    Column("lease_until", Time),
    PrimaryKeyConstraint("namespace_id", "model_key"),
)

index_set_aside = Table(
    "index_set_aside",
    metadata,
    Column("namespace_id", Integer, nullable=False),
    Column("model_key", SmallInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    PrimaryKeyConstraint("namespace_id", "model_key", "position"),
)

schema_requirement = Table(
    "schema_requirement",
    metadata,
    Column("min_server_version", Text, primary_key=True, comment="older servers refuse the database"),
)
