"""What people set at the pages for everybody: which alerts are counted, and from where on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "preferences",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("value", sa.JSON(), nullable=False),
    )
