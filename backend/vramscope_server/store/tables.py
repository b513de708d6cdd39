"""The tables, for SQLite and PostgreSQL alike.

Times are nanoseconds since 1970 in big integers; NULL is unknown. Rows have what lists and states need. The numbers of a
training are in ``chunks``, one row for up to 4096 rows of one stream, packed by ``columns.py``.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    TypeDecorator,
    text,
)
from sqlalchemy import String as PlainString
from sqlalchemy import Text as PlainText
from sqlalchemy.types import TypeEngine

metadata = MetaData()

Key = BigInteger().with_variant(Integer, "sqlite")
"""SQLite's own row id needs the type INTEGER."""


class _WithoutNul(TypeDecorator[str]):
    """Text of PostgreSQL cannot contain a NUL, and the message of an error may: it becomes U+FFFD, also in queries."""

    impl = PlainString
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd")


class _TextWithoutNul(_WithoutNul):
    impl = PlainText
    cache_ok = True


def String(length: int) -> TypeEngine[str]:  # noqa: N802 - a type, as SQLAlchemy names it
    return PlainString(length).with_variant(_WithoutNul(length), "postgresql")


Text: TypeEngine[str] = PlainText().with_variant(_TextWithoutNul(), "postgresql")

runs = Table(
    "runs",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=False),
    Column("id", String(40), nullable=False, unique=True),
    Column("project", String(200), nullable=False),
    Column("name", String(200), nullable=False),
    Column("tags", JSON, nullable=False),
    Column("note", Text, nullable=False, server_default=text("''")),
    Column("config", JSON, nullable=False),
    Column("command", JSON, nullable=False),
    Column("git_commit", Text),
    Column("framework", Text),
    Column("allocator_settings", Text),
    Column("device", Text),
    Column("capacity_bytes", BigInteger),
    Column("world_size", Integer),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),  # rises when an ended or lost run is resumed
    Column("started_ns", BigInteger, nullable=False),
    Column("last_seen_ns", BigInteger, nullable=False),  # by the server's clock
    Column("ended_ns", BigInteger),
    Column("pinned", Boolean, nullable=False),
    Column("baseline", Boolean, nullable=False),
    Column("error_type", Text),
    Column("error_line", Text),
    # the summary, updated by the writer; see rank_summary.py
    Column("ranks_reporting", Integer, nullable=False),
    Column("steps", BigInteger),
    Column("peak_allocated_bytes", BigInteger),
    Column("peak_reserved_bytes", BigInteger),
    Column("sampled_allocated_bytes", BigInteger),  # of ranks whose peaks were not measured: lower bounds
    Column("sampled_reserved_bytes", BigInteger),
    Column("lower_bound_steps", BigInteger),
    Column("peak_step", BigInteger),
    Column("peak_phase", String(16)),
    Column("peak_categories", JSON),
    Column("inactive_split_bytes", BigInteger),
    Column("reserved_minus_allocated_bytes", BigInteger),
    Column("unusable_bytes", BigInteger),
    Column("never_needed_bytes", BigInteger),
    Column("fragmentation_fraction", Float),  # never_needed_bytes as a share of the highest reserved memory of a step
    Column("step_median_ns", BigInteger),
    Column("out_of_memory", BigInteger),
    Column("dropped_samples", BigInteger, nullable=False),
    Column("overhead", JSON),
    Column("leaks", Integer),  # number of leaks in the newest scans; NULL: no scan yet
    Column("leaked_bytes", BigInteger),
    Column("worst_leak", String(20)),
    Column("graphs_alive", BigInteger),
    Column("recordings", Integer),  # number of complete recordings; NULL: none was ever started
    Column("profiles", Integer),  # likewise of profiles
    Column("oom_records", Integer),  # likewise of out-of-memory records
    Column("techniques", JSON),  # of the lowest rank: messages.Techniques; NULL: not reported
    Column("findings", JSON),
    Column("sparkline", JSON, nullable=False),
    Column("first_time_ns", BigInteger),
    Column("last_time_ns", BigInteger),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("version", BigInteger, nullable=False, server_default=text("0")),  # rises with each change
    Index("runs_by_start", "pinned", "started_ns"),
    Index("runs_by_name", "name", "started_ns"),
)
_RUNNING = text("state = 'running'")
Index("running_runs", runs.c.id, postgresql_where=_RUNNING, sqlite_where=_RUNNING)

sessions = Table(
    "sessions",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("run_key", Key, ForeignKey("runs.key", ondelete="CASCADE"), nullable=False, index=True),
    Column("rank", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("last_sequence", BigInteger, nullable=False),  # every batch up to it is stored
    Column("early", JSON, nullable=False),  # [[first, last], ...]: stored beyond a gap
    Column("attached", JSON),
    Column("started_ns", BigInteger, nullable=False),
    Column("last_seen_ns", BigInteger, nullable=False),
    Column("ended_ns", BigInteger),
    Column("skew_ns", BigInteger),  # clock of the sender minus the server's clock; NULL is unknown
    Column("dropped_samples", BigInteger, nullable=False),
    Column("overhead", JSON),
    Column("techniques", JSON),
    Column("error_type", Text),
    Column("error_line", Text),
    Column("token", String(16)),  # of the first batch; NULL: none was required
    Column(
        "version", BigInteger, nullable=False, server_default=text("0")
    ),  # of the run, at the last change of this row
    Column("requests", JSON, nullable=False, server_default=text("'[]'")),  # sent with the next Ack
)

run_jobs = Table(
    "run_jobs",
    metadata,
    Column("name", String(200), primary_key=True),  # of a job, pod or array
    Column(
        "run_key", Key, ForeignKey("runs.key", ondelete="CASCADE"), primary_key=True, index=True, autoincrement=False
    ),
)

ranks = Table(
    "ranks",
    metadata,
    Column("run_key", Key, ForeignKey("runs.key", ondelete="CASCADE"), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("session_id", String(40), nullable=False),  # the newest of this rank
    Column("summary", LargeBinary, nullable=False),  # summary.RankSummary
)

chunks = Table(
    "chunks",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=True),  # rises in each stream
    Column("run_key", Key, ForeignKey("runs.key", ondelete="CASCADE"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("device", SmallInteger, nullable=False),
    Column("stream", String(8), nullable=False),
    Column("level", SmallInteger, nullable=False),  # how often it was merged; FULL: never again
    Column("rows", Integer, nullable=False),
    Column("first_time_ns", BigInteger, nullable=False),
    Column("last_time_ns", BigInteger, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("chunks_of_stream", "run_key", "rank", "device", "stream", "level"),
)

scans = Table(
    "scans",
    metadata,
    Column("session_id", String(40), primary_key=True),
    Column("run_key", Key, ForeignKey("runs.key", ondelete="CASCADE"), nullable=False, index=True),
    Column("sequence", BigInteger, nullable=False),  # number of the batch that brought it: a later one replaces it
    Column("data", LargeBinary, nullable=False),  # messages.Scan
)

events = Table(
    "events",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=True),
    Column("run_key", Key, ForeignKey("runs.key", ondelete="CASCADE"), nullable=False, index=True),
    Column("rank", Integer, nullable=False),
    Column("time_ns", BigInteger, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("step", BigInteger),
    Column("data", JSON, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("run_key", Key, ForeignKey("runs.key", ondelete="CASCADE"), nullable=False, index=True),
    Column("session_id", String(40), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("about", LargeBinary, nullable=False),  # MessagePack, as on the wire
    Column("pieces", Integer, nullable=False),
    Column("received", Integer, nullable=False),  # number of stored pieces
    Column("bytes", BigInteger, nullable=False),  # size of the stored pieces
    Column("received_ns", BigInteger, nullable=False),  # arrival of the newest piece, by the server's clock
)

artifact_pieces = Table(
    "artifact_pieces",
    metadata,
    Column("artifact", String(40), ForeignKey("artifacts.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("sha256", String(64), nullable=False, index=True),
    Column("project", String(200)),  # NULL: of no project
    Column("name", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),  # size of the file
    Column("stored_bytes", BigInteger, nullable=False),  # size of its columns
    Column("state", String(16), nullable=False),  # waiting | converting | ready | failed
    Column("problem", Text),
    Column("received_ns", BigInteger, nullable=False),
    Column("devices", JSON, nullable=False),  # snapshot_conversion.device_row
    Column("notes", JSON, nullable=False),
    Column("owner", BigInteger),  # number of the server process that converts it: processes.py
)

preferences = Table(
    "preferences",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", JSON, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    Column("projects", JSON(none_as_null=True)),  # names; NULL: all projects
    Column("created_ns", BigInteger, nullable=False),
    Column("last_used_ns", BigInteger),
)

audit = Table(
    "audit",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=True),
    Column("time_ns", BigInteger, nullable=False),
    Column("actor", Text),  # name of the token; NULL: none was required
    Column("token", String(16)),
    Column("address", Text),  # NULL: the server's machine
    Column("action", String(40), nullable=False),  # audit_log.Action
    Column("subject", Text),
    Column("name", Text),
    Column("project", Text),
    Column("changes", JSON, nullable=False),  # audit_log.FieldChange, as plain values
)

news = Table(
    "news",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=True),
    Column("moment", BigInteger, nullable=False, index=True),  # transaction that brought it: shared_events.py
    Column("time_ns", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("project", String(200), nullable=False),
    Column("run", String(40)),  # NULL: for every page of the project
    Column("data", LargeBinary, nullable=False),  # JSON
)

sent_messages = Table(
    "sent_messages",
    metadata,
    Column("run", String(40), primary_key=True),
    Column("kind", String(20), primary_key=True),
    Column("time_ns", BigInteger, nullable=False),
    Column("owner", BigInteger, nullable=False),  # number of the server process that sends it
    Column("settled", Boolean, nullable=False),  # sent, or given up after the last try
)

whatif_questions = Table(
    "whatif_questions",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("time_ns", BigInteger, nullable=False),
    Column("question", JSON, nullable=False),
)

FULL_ROWS = 4096
"""Rows of a chunk that is not merged any further."""
FULL_LEVEL = 9
