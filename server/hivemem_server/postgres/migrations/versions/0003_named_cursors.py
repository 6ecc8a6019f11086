"""Cursors under names. Servers of the second schema do not know them and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cursors",
        sa.Column("namespace_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("epoch", sa.Uuid(), nullable=False, comment="of the log when it was stored"),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("record_id", sa.Uuid(), nullable=False, comment="of the record there; nil: there was none"),
        sa.Column("updated_time", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("namespace_id", "name"),
    )
