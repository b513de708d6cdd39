"""One run as the writer knows it: its row, its sessions, its ranks, and how the row follows from them.

Nothing here writes; ``book.py`` enters batches into these records and puts down what changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.store.artifacts import ArtifactRecord, load_artifacts
from vramscope_server.store.leaks import leak_columns, read_look
from vramscope_server.store.rows import device_words
from vramscope_server.store.run_states import Skew, display_skew_ns, run_state
from vramscope_server.store.run_summary import aggregate
from vramscope_server.store.summary import RankSummary, decode_summary
from vramscope_server.store.tables import ranks, runs, scans, sessions

COUNTED: Final = {"recordings": "window", "profiles": "profile", "oom_records": "oom"}
"""columns of a run's row that count its whole artifacts of a kind"""

RUN_MOVES: Final = (
    "state", "attempt", "started_ns", "last_seen_ns", "ended_ns", "ranks_reporting", "dropped_samples", "steps",
    "peak_allocated_bytes", "peak_reserved_bytes", "peak_step", "peak_phase", "inactive_split_bytes",
    "reserved_minus_allocated_bytes", "unusable_bytes", "never_needed_bytes", "fragmentation_fraction", "step_median_ns",
    "out_of_memory", "graphs_alive", "sparkline", "first_time_ns", "last_time_ns", "first_step", "last_step",
)  # fmt: skip
"""columns that a batch of rows may change; the others stay as they are for most of a run, and are long (config, command)"""
RUN_TELLS: Final = tuple(column.name for column in runs.c if column.name not in (*RUN_MOVES, "key", "id"))
SESSION_MOVES: Final = ("state", "last_sequence", "early", "last_seen_ns", "skew_ns", "dropped_samples")
SESSION_TELLS: Final = tuple(c.name for c in sessions.c if c.name not in (*SESSION_MOVES, "id", "run_key", "rank"))


@dataclass(slots=True)
class SessionRecord:
    """One process's attach."""

    values: dict[str, Any]
    skew: Skew
    scan: messages.Scan | None = None
    """its newest; only kept while it is the newest session of its rank"""
    look_sequence: int = 0
    """number of the batch that brought it: batches may come out of order"""
    dirty: bool = False
    look_dirty: bool = False
    _stored: list[Any] | None = None

    @property
    def only_moved(self) -> bool:
        """Whether all that differs from what is stored is among SESSION_MOVES."""
        return self._stored == [self.values[name] for name in SESSION_TELLS]

    def clean(self) -> None:
        """All of it is stored."""
        self.dirty = self.look_dirty = False
        self._stored = [self.values[name] for name in SESSION_TELLS]

    @classmethod
    def begin(
        cls, run: RunRecord, batch: messages.Batch, attached: messages.Attached, attempt: int, now_ns: int
    ) -> SessionRecord:
        """A session of which the first batch has come."""
        values: dict[str, Any] = {column.name: None for column in sessions.columns}
        values |= {
            "id": batch.session, "run_key": run.values["key"], "rank": batch.rank, "state": "running",
            "attempt": attempt, "last_sequence": 0, "early": [], "started_ns": attached.start_ns, "last_seen_ns": now_ns,
            "dropped_samples": 0,
        }  # fmt: skip
        return cls(values, Skew())

    def end(self, message: messages.Ended) -> None:
        """It said goodbye."""
        self.values.update(
            state=message.state,
            ended_ns=message.time_ns,
            error_type=message.error_type,
            error_line=message.error_line,
            dropped_samples=message.dropped_samples,
        )

    def take_look(self, scan: messages.Scan, sequence: int) -> bool:
        """Replace the look by a newer one; False if this one is older than what is known.

        By its step first: the cut-off half of a batch that was too large comes later, under a higher number.
        """
        known = -1 if self.scan is None else self.scan.step
        if (scan.step, sequence) < (known, self.look_sequence):
            return False
        self.scan, self.look_sequence, self.look_dirty = scan, sequence, True
        return True

    @property
    def ended_ns(self) -> int:
        """When it ended by our clock; silent ones: when they were last heard."""
        if self.values["ended_ns"] is None:
            return int(self.values["last_seen_ns"])
        return int(self.values["ended_ns"]) - display_skew_ns(self.values["skew_ns"])


@dataclass(slots=True)
class RankRecord:
    """One rank: its newest session, and its numbers over all of them."""

    session_id: str
    summary: RankSummary
    new: bool = False
    dirty: bool = False


@dataclass(slots=True)
class RunRecord:
    """A run. ``values`` is its row in ``tables.runs``."""

    values: dict[str, Any]
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    artifacts: dict[str, ArtifactRecord] = field(default_factory=dict)
    new: bool = False
    dirty: bool = False
    looks_changed: bool = False
    announce: bool = False
    announced_ns: int = 0
    ran_out_ns: int = 0
    """when the newest record of an out-of-memory error was made, by our clock; kept in memory alone"""
    _stored: list[Any] | None = None

    @property
    def only_moved(self) -> bool:
        """Whether all that differs from what is stored is among RUN_MOVES. What is the same object costs nothing."""
        return self._stored == [self.values[name] for name in RUN_TELLS]

    @classmethod
    def begin(cls, key: int, batch: messages.Batch, attached: messages.Attached, now_ns: int) -> RunRecord:
        """A run of which the first batch has come."""
        values: dict[str, Any] = {column.name: None for column in runs.columns}
        values |= {
            "key": key, "id": batch.run, "project": attached.project, "name": attached.name,
            "tags": list(attached.tags), "config": {}, "command": [], "state": "running", "attempt": 1,
            "last_seen_ns": now_ns, "started_ns": attached.start_ns, "pinned": False, "baseline": False,
            "ranks_reporting": 0, "dropped_samples": 0, "sparkline": [],
        }  # fmt: skip
        return cls(values, new=True, dirty=True, announce=True)

    @classmethod
    def load(cls, connection: Connection, run_id: str) -> RunRecord | None:
        """What the database holds of a run; None if it holds none of this id."""
        row = connection.execute(sa.select(runs).where(runs.c.id == run_id)).mappings().first()
        if row is None:
            return None
        run = cls(dict(row))
        key = row["key"]
        for row in connection.execute(sa.select(sessions).where(sessions.c.run_key == key)).mappings():
            run.sessions[row["id"]] = SessionRecord(dict(row), Skew(row["skew_ns"]))
        for row in connection.execute(sa.select(ranks).where(ranks.c.run_key == key)).mappings():
            run.ranks[row["rank"]] = RankRecord(row["session_id"], decode_summary(row["summary"]))
        newest = {rank.session_id for rank in run.ranks.values()}
        for row in connection.execute(sa.select(scans).where(scans.c.run_key == key)).mappings():
            session = run.sessions[row["session_id"]]
            session.look_sequence = row["sequence"]
            if row["session_id"] in newest:
                session.scan = read_look(row["data"])
        run.artifacts = load_artifacts(connection, key)
        return run

    @property
    def current(self) -> list[SessionRecord]:
        """The newest session of each rank that takes part in the current attempt."""
        newest = (self.sessions[rank.session_id] for rank in self.ranks.values())
        return [session for session in newest if session.values["attempt"] == self.values["attempt"]]

    @property
    def scans(self) -> dict[int, messages.Scan]:
        """By rank, the newest look of its newest session; ranks that have not looked are left out."""
        newest = {number: self.sessions[rank.session_id].scan for number, rank in self.ranks.items()}
        return {number: scan for number, scan in newest.items() if scan is not None}

    def attach(self, session: SessionRecord, attached: messages.Attached) -> None:
        """Take in who watches what, where: of the lowest rank what the run's row tells."""
        session.values["attached"] = msgspec.to_builtins(attached)
        session.values["started_ns"] = attached.start_ns
        values = self.values
        # Name and tags are the first session's: what the user has changed since on the page stays changed.
        if attached.rank == min(self.ranks):
            first = attached.devices[0] if attached.devices else None
            values.update(
                config=attached.config,
                command=list(attached.command),
                git_commit=attached.git_commit,
                framework=attached.framework,
                allocator_settings=attached.allocator_settings,
                device=device_words(session.values["attached"]["devices"][0]) if first else None,
                capacity_bytes=first.total_bytes if first else None,
                world_size=attached.world_size,
            )
        start_ns = attached.start_ns - display_skew_ns(session.skew.skew_ns)
        values["started_ns"] = min(values["started_ns"], start_ns)
        self.announce = True

    def refresh(self) -> None:
        """Bring the row up to date with sessions and ranks."""
        values = self.values
        values.update(aggregate(rank.summary for rank in self.ranks.values()))
        if self.looks_changed:
            values.update(leak_columns(self.scans))
            self.looks_changed = False
        current = self.current
        state = run_state(session.values["state"] for session in current)
        values["ranks_reporting"] = sum(session.values["state"] != "lost" for session in current)
        for column, kind in COUNTED.items():
            of_kind = [artifact for artifact in self.artifacts.values() if artifact.values["kind"] == kind]
            if of_kind or values[column]:  # none of them, and once some: all were deleted
                values[column] = sum(artifact.whole for artifact in of_kind)
        values["dropped_samples"] = sum(s.values["dropped_samples"] for s in self.sessions.values())
        lead = self.sessions[self.ranks[min(self.ranks)].session_id].values
        values["overhead"] = lead["overhead"]
        told = lead["techniques"] or {}
        values["techniques"], values["findings"] = told.get("techniques"), told.get("findings")
        failed = next((s.values for s in current if s.values["state"] == "failed"), None)
        values["error_type"] = failed["error_type"] if failed else None
        values["error_line"] = failed["error_line"] if failed else None
        ends = (session.ended_ns for session in current)
        values["ended_ns"] = None if state == "running" else max(ends, default=values["last_seen_ns"])
        if state != values["state"]:
            self.announce = True
            values["state"] = state

    def clean(self) -> None:
        """All of it is stored."""
        self.new = self.dirty = False
        self._stored = [self.values[name] for name in RUN_TELLS]
        for session in self.sessions.values():
            if session.dirty:
                session.clean()
        for rank in self.ranks.values():
            rank.new = rank.dirty = False
        for artifact in self.artifacts.values():
            artifact.new = artifact.dirty = False
