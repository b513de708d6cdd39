"""A run's share of fragmentation is of its two peaks: what was reserved at most and never needed, instead of stranded bytes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        sa.text(
            "UPDATE runs SET fragmentation_fraction = CASE WHEN peak_reserved_bytes > peak_allocated_bytes "
            "THEN (peak_reserved_bytes - peak_allocated_bytes) * 1.0 / peak_reserved_bytes "
            "WHEN peak_reserved_bytes = peak_allocated_bytes THEN 0.0 END"
        )
    )


def downgrade() -> None:
    op.execute(sa.text("UPDATE runs SET fragmentation_fraction = NULL"))
