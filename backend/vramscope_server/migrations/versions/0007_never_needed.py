"""A run's share of fragmentation is of its two peaks: what was reserved at most and never needed, instead of unusable bytes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("never_needed_bytes", sa.BigInteger(), nullable=True))
    # Where a step is known to have made the peak, it is the allocator's own; the reserved beside it may be a sample's.
    op.execute(
        sa.text(
            "UPDATE runs SET never_needed_bytes = CASE WHEN peak_step IS NOT NULL AND peak_reserved_bytes >= peak_allocated_bytes "
            "THEN peak_reserved_bytes - peak_allocated_bytes END"
        )
    )
    op.execute(
        sa.text(
            "UPDATE runs SET fragmentation_fraction = "
            "CASE WHEN peak_reserved_bytes > 0 THEN never_needed_bytes * 1.0 / peak_reserved_bytes END"
        )
    )


def downgrade() -> None:
    op.drop_column("runs", "never_needed_bytes")
    op.execute(sa.text("UPDATE runs SET fragmentation_fraction = NULL"))
