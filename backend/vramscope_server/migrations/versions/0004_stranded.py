"""How much of a run's free memory is of no use to it. The share of fragmentation is of these bytes from now on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("unusable_bytes", sa.BigInteger(), nullable=True))
    op.execute(sa.text("UPDATE runs SET fragmentation_fraction = NULL"))  # it was of another quantity
