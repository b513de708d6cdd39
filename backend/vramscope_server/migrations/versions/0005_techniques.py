"""What a run is trained with, how often it was profiled, and how many records of out-of-memory errors it left."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("profiles", "oom_records"):
        op.add_column("runs", sa.Column(name, sa.Integer(), nullable=True))
    for name in ("techniques", "findings"):
        op.add_column("runs", sa.Column(name, sa.JSON(), nullable=True))
    op.add_column("sessions", sa.Column("techniques", sa.JSON(), nullable=True))
