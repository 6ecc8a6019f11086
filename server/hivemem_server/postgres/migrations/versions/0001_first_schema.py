"""The first schema."""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FUNCTIONS = ("append_v1", "open_session_v1")


def upgrade() -> None:
    op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    op.execute("CREATE EXTENSION IF NOT EXISTS btree_gin")
    op.create_table(
        "decisions",
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("decision_id", sa.Text(collation="C"), nullable=False),
        sa.Column("session_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="of the episode that recorded it"),
        sa.Column("ordinal", sa.SmallInteger(), nullable=False, comment="its place in that episode, from 1"),
        sa.Column(
            "superseded_by", sa.BigInteger(), nullable=True, comment="position of the episode that superseded it"
        ),
        sa.PrimaryKeyConstraint("namespace_id", "decision_id"),
    )
    op.create_index("decisions_episode", "decisions", ["namespace_id", "position", "ordinal"], unique=False)
    op.create_index(
        "decisions_standing",
        "decisions",
        ["namespace_id", "session_key", "position", "ordinal"],
        unique=False,
        postgresql_where=sa.text("superseded_by IS NULL"),
    )
    op.create_table(
        "index_progress",
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("model_key", sa.SmallInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="everything up to it is indexed or set aside"),
        sa.Column("holder", sa.Uuid(), nullable=True, comment="the replica that indexes"),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("namespace_id", "model_key"),
    )
    op.create_table(
        "index_set_aside",
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("model_key", sa.SmallInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("namespace_id", "model_key", "position"),
    )
    op.create_table(
        "log",
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column(
            "record_kind",
            sa.SmallInteger(),
            nullable=False,
            comment="1 episode, 2 thread event, 3 fact change, 4 removal",
        ),
        sa.Column("record_id", sa.Uuid(), nullable=False, comment="the client's id of an episode"),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("session_key", sa.Integer(), nullable=True),
        sa.Column("agent_key", sa.Integer(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("turn", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.Text(collation="C"), nullable=True),
        sa.Column("summary", sa.Text(), nullable=True),
        sa.Column("tags", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column(
            "attributes",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment='{"key": {"s" text | "i" whole number | "d" number | "b" truth value}}',
        ),
        sa.Column("event_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "decisions",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment='[{"id", "text", "supersedes"}]',
        ),
        sa.Column(
            "open_threads",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment='[{"id", "text", "priority", "tags", "plan_id", "step"}]',
        ),
        sa.Column(
            "ended_threads", postgresql.JSONB(astext_type=sa.Text()), nullable=True, comment='[{"id", "fence", "how"}]'
        ),
        sa.Column("to_agents", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column(
            "thread_event",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment='{"thread_id", "type", "episode_id", "fence", "expire_time", "note"}',
        ),
        sa.Column("digest", sa.LargeBinary(), nullable=True, comment="of an episode as it was received; null: erased"),
        sa.Column("search", postgresql.TSVECTOR(), nullable=True),
        sa.PrimaryKeyConstraint("namespace_id", "position"),
        sa.UniqueConstraint("namespace_id", "record_id"),
    )
    op.create_index("log_agent", "log", ["namespace_id", "agent_key", "position"], unique=False)
    op.create_index("log_search", "log", ["namespace_id", "search"], unique=False, postgresql_using="gin")
    op.create_index("log_session", "log", ["namespace_id", "session_key", "position"], unique=False)
    op.create_index("log_session_agent", "log", ["namespace_id", "session_key", "agent_key", "position"], unique=False)
    op.create_index(
        "log_stream",
        "log",
        ["namespace_id", "session_key", "agent_key", "revision"],
        unique=True,
        postgresql_where=sa.text("record_kind = 1"),
    )
    op.create_table(
        "models",
        sa.Column("model_key", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_time", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("model_key"),
        sa.UniqueConstraint("name"),
        comment="each has a table vectors_<model_key> (namespace_id, position, embedding)",
    )
    op.create_table(
        "namespaces",
        sa.Column("namespace_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "name",
            sa.Text(collation="C"),
            nullable=True,
            comment="null: deleted; the row stays, so that its key is never used again",
        ),
        sa.Column("epoch", sa.Uuid(), nullable=False, comment="changes when the log's history does"),
        sa.Column("digest_key", sa.LargeBinary(), nullable=False),
        sa.Column(
            "floor", sa.BigInteger(), server_default="0", nullable=False, comment="positions up to it are cut off"
        ),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
        sa.Column("text_language", sa.Text(), server_default="english", nullable=False),
        sa.Column(
            "redaction",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default="{}",
            nullable=False,
            comment='{"enabled", "kinds", "patterns"}',
        ),
        sa.Column("created_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_time", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("namespace_id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "schema_requirement",
        sa.Column("min_server_version", sa.Text(), nullable=False, comment="older servers refuse the database"),
        sa.PrimaryKeyConstraint("min_server_version"),
    )
    op.create_table(
        "threads",
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("thread_id", sa.Text(collation="C"), nullable=False),
        sa.Column("session_key", sa.Integer(), nullable=False),
        sa.Column("agent_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False, comment="of the episode that opened it"),
        sa.Column("ordinal", sa.SmallInteger(), nullable=False, comment="its place in that episode, from 1"),
        sa.Column("state", sa.SmallInteger(), nullable=False, comment="1 open, 2 claimed, 3 resolved, 4 dropped"),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tags", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("plan_id", sa.Text(collation="C"), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("claimed_by", sa.Integer(), nullable=True),
        sa.Column("lease", sa.Interval(), nullable=True),
        sa.Column("claim_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expire_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_by", sa.Integer(), nullable=True),
        sa.Column("ended_position", sa.BigInteger(), nullable=True, comment="of the episode that ended it"),
        sa.Column("ended_time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("superseded", sa.Boolean(), server_default="false", nullable=False),
        sa.PrimaryKeyConstraint("namespace_id", "thread_id"),
    )
    op.create_index("threads_order", "threads", ["namespace_id", "position", "ordinal"], unique=False)
    op.create_index(
        "threads_plan",
        "threads",
        ["namespace_id", "session_key", "plan_id", "step"],
        unique=False,
        postgresql_where=sa.text("plan_id IS NOT NULL"),
    )
    op.create_index(
        "threads_unfinished",
        "threads",
        ["namespace_id", "session_key", "position", "ordinal"],
        unique=False,
        postgresql_where=sa.text("state IN (1, 2)"),
    )
    op.create_table(
        "agents",
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("agent_key", sa.Integer(), nullable=False),
        sa.Column("agent_id", sa.Text(collation="C"), nullable=False),
        sa.Column("created_time", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespaces.namespace_id"]),
        sa.PrimaryKeyConstraint("namespace_id", "agent_key"),
        sa.UniqueConstraint("namespace_id", "agent_id"),
    )
    op.create_table(
        "sessions",
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("session_key", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Text(collation="C"), nullable=False),
        sa.Column("user_id", sa.Text(collation="C"), server_default="", nullable=False),
        sa.Column("goal", sa.Text(), server_default="", nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False, comment="1 open, 2 closed"),
        sa.Column("continues_key", sa.Integer(), nullable=True),
        sa.Column("created_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_time", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespaces.namespace_id"]),
        sa.PrimaryKeyConstraint("namespace_id", "session_key"),
        sa.UniqueConstraint("namespace_id", "session_id"),
    )
    op.create_index("sessions_user", "sessions", ["namespace_id", "user_id", "session_key"], unique=False)
    op.execute("INSERT INTO schema_requirement (min_server_version) VALUES ('0.1.0')")
    folder = resources.files("hivemem_server.postgres") / "functions"
    for name in FUNCTIONS:
        # exec_driver_sql: colons and percent signs of the file mean themselves.
        op.get_bind().connection.cursor().execute((folder / f"{name}.sql").read_text(encoding="utf-8"))
