"""Several server processes on one database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    zero = sa.text("0")
    op.add_column("runs", sa.Column("version", sa.BigInteger(), nullable=False, server_default=zero))
    op.add_column("sessions", sa.Column("version", sa.BigInteger(), nullable=False, server_default=zero))
    op.add_column("sessions", sa.Column("requests", sa.JSON(), nullable=False, server_default=sa.text("'[]'")))
    op.add_column("snapshots", sa.Column("owner", sa.BigInteger(), nullable=True))
    running = sa.text("state = 'running'")
    op.create_index("running_runs", "runs", ["id"], postgresql_where=running, sqlite_where=running)
    op.create_table(
        "news",
        sa.Column("key", key, autoincrement=True, nullable=False),
        sa.Column("moment", sa.BigInteger(), nullable=False),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("project", sa.String(length=200), nullable=False),
        sa.Column("run", sa.String(length=40), nullable=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_news_moment", "news", ["moment"])
    op.create_table(
        "sent_messages",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run", "kind"),
    )
    op.create_table(
        "whatif_questions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE server_processes")
        for table in ("runs", "chunks"):
            op.execute(f"CREATE SEQUENCE {table}_keys OWNED BY {table}.key")
            op.execute(f"SELECT setval('{table}_keys', COALESCE((SELECT max(key) FROM {table}), 0) + 1, false)")
            op.execute(f"ALTER TABLE {table} ALTER COLUMN key SET DEFAULT nextval('{table}_keys')")
