"""Snapshot files that were uploaded; their columns lie in folders beside the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("received_ns", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
    )
