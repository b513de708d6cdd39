"""The looks at what is held, and what the list of runs tells of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "scans",
        sa.Column("session_id", sa.String(length=40), nullable=False),
        sa.Column("run_key", Key, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_index(op.f("ix_scans_run_key"), "scans", ["run_key"], unique=False)
    # Plain ALTER TABLE on both: SQLite adds a column that may be NULL without copying the table.
    op.add_column("runs", sa.Column("leaks", sa.Integer(), nullable=True))
    op.add_column("runs", sa.Column("leaked_bytes", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("worst_leak", sa.String(length=20), nullable=True))
    op.add_column("runs", sa.Column("graphs_alive", sa.BigInteger(), nullable=True))
