"""Names by which the runs of a job are found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from vramscope_server.store.jobs import names_of

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_READ_AT_ONCE = 1000


def upgrade() -> None:
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    made = op.create_table(
        "run_jobs",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("run_key", key, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("name", "run_key"),
    )
    op.create_index("ix_run_jobs_run_key", "run_jobs", ["run_key"])
    sessions = sa.table("sessions", sa.column("run_key", key), sa.column("attached", sa.JSON()))
    query = sa.select(sessions.c.run_key, sessions.c.attached).where(sessions.c.attached.is_not(None))
    found: set[tuple[str, int]] = set()
    for row in op.get_bind().execute(query, execution_options={"yield_per": _READ_AT_ONCE}):
        found.update((name, row.run_key) for name in names_of(row.attached))
    if found:
        op.bulk_insert(made, [{"name": name, "run_key": run_key} for name, run_key in sorted(found)])
