"""All tables of version 0.1.0."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "preferences",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "runs",
        sa.Column("key", Key, autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("git_commit", sa.Text(), nullable=True),
        sa.Column("framework", sa.Text(), nullable=True),
        sa.Column("allocator_settings", sa.Text(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("capacity_bytes", sa.BigInteger(), nullable=True),
        sa.Column("world_size", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_ns", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_ns", sa.BigInteger(), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("baseline", sa.Boolean(), nullable=False),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_line", sa.Text(), nullable=True),
        sa.Column("ranks_reporting", sa.Integer(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=True),
        sa.Column("peak_allocated_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_reserved_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_step", sa.BigInteger(), nullable=True),
        sa.Column("peak_phase", sa.String(length=16), nullable=True),
        sa.Column("peak_categories", sa.JSON(), nullable=True),
        sa.Column("inactive_split_bytes", sa.BigInteger(), nullable=True),
        sa.Column("reserved_minus_allocated_bytes", sa.BigInteger(), nullable=True),
        sa.Column("unusable_bytes", sa.BigInteger(), nullable=True),
        sa.Column("never_needed_bytes", sa.BigInteger(), nullable=True),
        sa.Column("fragmentation_fraction", sa.Float(), nullable=True),
        sa.Column("step_median_ns", sa.BigInteger(), nullable=True),
        sa.Column("out_of_memory", sa.BigInteger(), nullable=True),
        sa.Column("dropped_samples", sa.BigInteger(), nullable=False),
        sa.Column("overhead", sa.JSON(), nullable=True),
        sa.Column("leaks", sa.Integer(), nullable=True),
        sa.Column("leaked_bytes", sa.BigInteger(), nullable=True),
        sa.Column("worst_leak", sa.String(length=20), nullable=True),
        sa.Column("graphs_alive", sa.BigInteger(), nullable=True),
        sa.Column("recordings", sa.Integer(), nullable=True),
        sa.Column("profiles", sa.Integer(), nullable=True),
        sa.Column("oom_records", sa.Integer(), nullable=True),
        sa.Column("techniques", sa.JSON(), nullable=True),
        sa.Column("findings", sa.JSON(), nullable=True),
        sa.Column("sparkline", sa.JSON(), nullable=False),
        sa.Column("first_time_ns", sa.BigInteger(), nullable=True),
        sa.Column("last_time_ns", sa.BigInteger(), nullable=True),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("runs_by_name", "runs", ["name", "started_ns"], unique=False)
    op.create_index("runs_by_start", "runs", ["pinned", "started_ns"], unique=False)
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("received_ns", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("last_used_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("run_key", Key, nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("about", sa.LargeBinary(), nullable=False),
        sa.Column("pieces", sa.Integer(), nullable=False),
        sa.Column("received", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("received_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_artifacts_run_key"), "artifacts", ["run_key"], unique=False)
    op.create_table(
        "chunks",
        sa.Column("key", Key, autoincrement=False, nullable=False),
        sa.Column("run_key", Key, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("device", sa.SmallInteger(), nullable=False),
        sa.Column("stream", sa.String(length=8), nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("first_time_ns", sa.BigInteger(), nullable=False),
        sa.Column("last_time_ns", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("chunks_of_stream", "chunks", ["run_key", "rank", "device", "stream", "level"], unique=False)
    op.create_table(
        "events",
        sa.Column("key", Key, autoincrement=True, nullable=False),
        sa.Column("run_key", Key, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("time_ns", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index(op.f("ix_events_run_key"), "events", ["run_key"], unique=False)
    op.create_table(
        "ranks",
        sa.Column("run_key", Key, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("session_id", sa.String(length=40), nullable=False),
        sa.Column("summary", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_key", "rank"),
    )
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
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("run_key", Key, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("early", sa.JSON(), nullable=False),
        sa.Column("attached", sa.JSON(), nullable=True),
        sa.Column("started_ns", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_ns", sa.BigInteger(), nullable=True),
        sa.Column("skew_ns", sa.BigInteger(), nullable=True),
        sa.Column("dropped_samples", sa.BigInteger(), nullable=False),
        sa.Column("overhead", sa.JSON(), nullable=True),
        sa.Column("techniques", sa.JSON(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_line", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_key"], ["runs.key"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_sessions_run_key"), "sessions", ["run_key"], unique=False)
    op.create_table(
        "artifact_pieces",
        sa.Column("artifact", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["artifact"], ["artifacts.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("artifact", "number"),
    )
    if op.get_context().dialect.name == "postgresql":
        # The blobs are already compressed. PostgreSQL must not compress each row again.
        op.execute("ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL")
