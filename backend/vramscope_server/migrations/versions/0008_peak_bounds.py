"""Lower bounds of peaks that were not measured, in the rows of runs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from vramscope_server.store.rank_summary import decode_summary
from vramscope_server.store.run_from_ranks import aggregate

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_NAMES = ("sampled_allocated_bytes", "sampled_reserved_bytes", "lower_bound_steps")


def upgrade() -> None:
    for name in _NAMES:
        op.add_column("runs", sa.Column(name, sa.BigInteger(), nullable=True))
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    ranks = sa.table("ranks", sa.column("run_key", key), sa.column("summary", sa.LargeBinary()))
    runs = sa.table("runs", sa.column("key", key), *(sa.column(name, sa.BigInteger()) for name in _NAMES))
    connection = op.get_bind()
    for run_key in list(connection.execute(sa.select(ranks.c.run_key).distinct()).scalars()):
        stored = connection.execute(sa.select(ranks.c.summary).where(ranks.c.run_key == run_key)).scalars()
        columns: dict[str, Any] = {**aggregate([decode_summary(summary) for summary in stored])}
        values = {name: columns[name] for name in _NAMES}
        if any(values.values()):
            connection.execute(runs.update().where(runs.c.key == run_key).values(values))
