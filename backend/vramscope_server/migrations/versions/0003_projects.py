"""A token may be bound to projects, and an uploaded snapshot may belong to one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NAMES = {"uq": "uq_%(table_name)s_%(column_0_name)s"}
"""SQLite keeps no names of constraints: Alembic gives one to the constraint that it drops."""


def upgrade() -> None:
    op.add_column("tokens", sa.Column("projects", sa.JSON(), nullable=True))
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("snapshots", naming_convention=NAMES) as table:
            table.drop_constraint("uq_snapshots_sha256", type_="unique")
            table.add_column(sa.Column("project", sa.String(length=200), nullable=True))
    else:
        op.drop_constraint("snapshots_sha256_key", "snapshots", type_="unique")
        op.add_column("snapshots", sa.Column("project", sa.String(length=200), nullable=True))
    op.create_index("ix_snapshots_sha256", "snapshots", ["sha256"])
