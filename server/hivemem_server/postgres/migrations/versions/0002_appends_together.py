"""Appends that meet nothing are stored together. Servers of the first schema go on with append_v1."""

from __future__ import annotations

from importlib import resources

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    function = resources.files("hivemem_server.postgres") / "functions" / "append_v2.sql"
    # By the driver's cursor: colons and percent signs of the file mean themselves.
    op.get_bind().connection.cursor().execute(function.read_text(encoding="utf-8"))
