"""A run as the writer knows it: its row, sessions and ranks, and how the row follows from them.

Nothing here writes. ``ingest_state.py`` enters batches into these records and writes what changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import msgspec

from vramscope.protocol import messages
from vramscope_server.answers.run_detail import Pitfall
from vramscope_server.store.artifacts import ArtifactRecord
from vramscope_server.store.jobs import names_of
from vramscope_server.store.leaks import leak_columns
from vramscope_server.store.list_row import device_words
from vramscope_server.store.rank_summary import RankSummary
from vramscope_server.store.run_from_ranks import aggregate
from vramscope_server.store.run_states import Skew, display_skew_ns, run_state
from vramscope_server.store.silence import Silence
from vramscope_server.store.stored_rows import RUN_COLUMNS, SESSION_COLUMNS, StoredRun, StoredSession

COUNTED: Final = {"recordings": "window", "profiles": "profile", "oom_records": "oom"}
"""Columns of a run's row that count its complete artifacts, by kind."""

RUN_OFTEN_CHANGED: Final = (
    "state", "attempt", "started_ns", "last_seen_ns", "ended_ns", "ranks_reporting", "dropped_samples", "steps",
    "peak_allocated_bytes", "peak_reserved_bytes", "peak_step", "peak_phase", "inactive_split_bytes",
    "reserved_minus_allocated_bytes", "unusable_bytes", "never_needed_bytes", "fragmentation_fraction", "step_median_ns",
    "out_of_memory", "graphs_alive", "sparkline", "first_time_ns", "last_time_ns", "first_step", "last_step",
    "version",
)  # fmt: skip
"""Columns that a batch of rows may change. The others rarely change during a run and are long (config, command)."""
RUN_RARELY_CHANGED: Final = tuple(name for name in RUN_COLUMNS if name not in (*RUN_OFTEN_CHANGED, "key", "id"))
SESSION_OFTEN_CHANGED: Final = (
    "state",
    "last_sequence",
    "early",
    "last_seen_ns",
    "skew_ns",
    "dropped_samples",
    "version",
)
SESSION_RARELY_CHANGED: Final = tuple(
    name for name in SESSION_COLUMNS if name not in (*SESSION_OFTEN_CHANGED, "id", "run_key", "rank")
)
_run_rare_values = attrgetter(*RUN_RARELY_CHANGED)
_session_rare_values = attrgetter(*SESSION_RARELY_CHANGED)


@dataclass(slots=True)
class SessionRecord:
    """A process that attached."""

    row: StoredSession
    skew: Skew
    scan: messages.Scan | None = None
    """The newest scan; kept only while this is the newest session of its rank."""
    scan_sequence: int = 0
    """Number of the batch that brought the scan: batches may arrive out of order."""
    dirty: bool = False
    scan_dirty: bool = False
    _stored: tuple[Any, ...] | None = None

    @property
    def only_moved(self) -> bool:
        """Whether only columns of SESSION_OFTEN_CHANGED differ from what is stored."""
        return self._stored == _session_rare_values(self.row)

    def clean(self) -> None:
        """Mark everything as stored."""
        self.dirty = self.scan_dirty = False
        self._stored = _session_rare_values(self.row)

    @classmethod
    def begin(
        cls, run: RunRecord, batch: messages.Batch, attached: messages.Attached, attempt: int, now_ns: int
    ) -> SessionRecord:
        """A session from its first batch."""
        row = StoredSession(
            id=batch.session,
            run_key=run.row.key,
            rank=batch.rank,
            attempt=attempt,
            state="running",
            started_ns=attached.start_ns,
            last_seen_ns=now_ns,
        )
        return cls(row, Skew())

    def end(self, message: messages.Ended) -> None:
        """End the session."""
        row = self.row
        row.state, row.ended_ns = message.state, message.time_ns
        row.error_type, row.error_line = message.error_type, message.error_line
        row.dropped_samples = message.dropped_samples

    def take_scan(self, scan: messages.Scan, sequence: int) -> bool:
        """Replace the scan by a newer one. Returns False if this one is older.

        The step counts first: the cut-off half of a batch that was too large arrives later, under a higher number.
        """
        known = -1 if self.scan is None else self.scan.step
        if (scan.step, sequence) < (known, self.scan_sequence):
            return False
        self.scan, self.scan_sequence, self.scan_dirty = scan, sequence, True
        return True

    @property
    def ended_ns(self) -> int:
        """End of the session by the server's clock; of a silent one the arrival of its newest batch."""
        if self.row.ended_ns is None:
            return self.row.last_seen_ns
        return self.row.ended_ns - display_skew_ns(self.row.skew_ns)


@dataclass(slots=True)
class RankRecord:
    """A rank: its newest session, and its numbers over all sessions."""

    session_id: str
    summary: RankSummary
    new: bool = False
    dirty: bool = False


@dataclass(slots=True)
class RunRecord:
    """A run, its sessions, ranks and artifacts."""

    row: StoredRun
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    artifacts: dict[str, ArtifactRecord] = field(default_factory=dict)
    new: bool = False
    dirty: bool = False
    scans_changed: bool = False
    peak_of_leaks: int | None = None
    """Peak of the run for which the leaks were counted."""
    known_jobs: set[str] = field(default_factory=set)
    """Names of jobs that this process has stored."""
    added_jobs: set[str] = field(default_factory=set)
    dropped_jobs: set[str] = field(default_factory=set)
    announce: bool = False
    announced_ns: int = 0
    ran_out_ns: int = 0
    """Time of the newest out-of-memory record, by the server's clock."""
    _stored: tuple[Any, ...] | None = None

    @property
    def only_moved(self) -> bool:
        """Whether only columns of RUN_OFTEN_CHANGED differ from what is stored. Comparing the same object costs nothing."""
        return self._stored == _run_rare_values(self.row)

    @classmethod
    def begin(cls, key: int, batch: messages.Batch, attached: messages.Attached, now_ns: int) -> RunRecord:
        """A run from its first batch."""
        row = StoredRun(
            key=key,
            id=batch.run,
            project=attached.project,
            name=attached.name,
            tags=list(attached.tags),
            state="running",
            started_ns=attached.start_ns,
            last_seen_ns=now_ns,
        )
        return cls(row, new=True, dirty=True, announce=True)

    @property
    def current(self) -> list[SessionRecord]:
        """The newest session of each rank that takes part in the current attempt."""
        newest = (self.sessions[rank.session_id] for rank in self.ranks.values())
        return [session for session in newest if session.row.attempt == self.row.attempt]

    @property
    def scans(self) -> dict[int, messages.Scan]:
        """The newest scan of each rank's newest session; ranks without a scan are left out."""
        newest = {number: self.sessions[rank.session_id].scan for number, rank in self.ranks.items()}
        return {number: scan for number, scan in newest.items() if scan is not None}

    def attach(self, session: SessionRecord, attached: messages.Attached) -> None:
        """Store what a process attached; the lowest rank defines the run's row."""
        earlier = (session.row.attached or {}).get("name")
        jobs_before = names_of(session.row.attached)
        session.row.attached = msgspec.to_builtins(attached)
        self._count_jobs(session, jobs_before)
        session.row.started_ns = attached.start_ns
        row = self.row
        # Name and tags are the first session's: later changes by the user stay. A framework may name a run that is already stored.
        if attached.rank == min(self.ranks):
            row.name = attached.name if row.name == earlier else row.name
            first = attached.devices[0] if attached.devices else None
            row.config, row.command = attached.config, list(attached.command)
            row.git_commit, row.framework = attached.git_commit, attached.framework
            row.allocator_settings = attached.allocator_settings
            row.device = device_words(msgspec.to_builtins(first)) if first else None
            row.capacity_bytes = first.total_bytes if first else None
            row.world_size = attached.world_size
        self.announce = True

    def _count_jobs(self, session: SessionRecord, before: set[str]) -> None:
        """Note which names of jobs are new, and which no session has any more."""
        now = names_of(session.row.attached)
        self.added_jobs |= now - self.known_jobs
        self.dropped_jobs -= now
        if dropped := before - now:
            for other in self.sessions.values():
                dropped -= names_of(other.row.attached)
            self.added_jobs -= dropped
            self.known_jobs -= dropped
            self.dropped_jobs |= dropped

    def refresh(self) -> None:
        """Update the row from sessions and ranks."""
        row = self.row
        # Of equal ranks the lowest counts, in whatever order they reported.
        row.update(aggregate(self.ranks[rank].summary for rank in sorted(self.ranks)))
        if self.scans_changed or (self.scans and row.peak_allocated_bytes != self.peak_of_leaks):
            row.update(leak_columns(self.scans, row.peak_allocated_bytes))
            self.scans_changed, self.peak_of_leaks = False, row.peak_allocated_bytes
        starts = [one.row.started_ns - display_skew_ns(one.row.skew_ns) for one in self.sessions.values()]
        row.started_ns = min(starts, default=row.started_ns)  # the skew of a clock that is behind is known later
        current = self.current
        state = run_state(session.row.state for session in current)
        row.ranks_reporting = sum(session.row.state != "lost" for session in current)
        for column, kind in COUNTED.items():
            of_kind = [artifact for artifact in self.artifacts.values() if artifact.kind == kind]
            if of_kind or getattr(row, column):  # none is left: all were deleted
                setattr(row, column, sum(artifact.whole for artifact in of_kind))
        row.dropped_samples = sum(s.row.dropped_samples for s in self.sessions.values())
        lead = self.sessions[self.ranks[min(self.ranks)].session_id].row
        row.overhead = lead.overhead
        row.techniques = None if lead.techniques is None else lead.techniques.get("techniques")
        row.findings = _findings([self.sessions[self.ranks[rank].session_id].row for rank in sorted(self.ranks)])
        failed = next((s.row for s in current if s.row.state == "failed"), None)
        row.error_type = failed.error_type if failed else None
        row.error_line = failed.error_line if failed else None
        ends = (session.ended_ns for session in current)
        row.ended_ns = None if state == "running" else max(ends, default=row.last_seen_ns)
        if state != row.state:
            self.announce = True
            row.state = state

    def lose_silent(self, now_ns: int, silence: Silence) -> None:
        """Mark sessions as lost that sent nothing for so long. One that sent in the future sent before the clock went back."""
        for session in self.sessions.values():
            silent_ns = now_ns - session.row.last_seen_ns
            if silent_ns < -silence.future_ns:
                session.row.last_seen_ns = now_ns
                silent_ns = silence.lost_after_ns + 1
            if session.row.state == "running" and silent_ns > silence.lost_after_ns:
                session.row.state = "lost"
                session.dirty = self.dirty = True

    def count_change(self) -> None:
        """Give this change a number, in the run and in the sessions that it changes."""
        self.row.version += 1
        for session in self.sessions.values():
            if session.dirty:
                session.row.version = self.row.version

    def clean(self) -> None:
        """Mark everything as stored."""
        self.new = self.dirty = False
        self.known_jobs |= self.added_jobs
        self.added_jobs, self.dropped_jobs = set(), set()
        self._stored = _run_rare_values(self.row)
        for session in self.sessions.values():
            if session.dirty:
                session.clean()
        for rank in self.ranks.values():
            rank.new = rank.dirty = False
        for artifact in self.artifacts.values():
            artifact.new = artifact.dirty = False


def _findings(sessions: Sequence[StoredSession]) -> list[Pitfall] | None:
    """Findings of all ranks, the first rank's first; of each kind the one of the lowest rank. None: no rank has reported."""
    told = (session.techniques for session in sessions if session.techniques is not None)
    reported = [found for one in told if (found := one.get("findings")) is not None]
    if not reported:
        return None
    kinds: dict[str, Pitfall] = {}
    for finding in (finding for findings in reported for finding in findings):
        kinds.setdefault(finding["kind"], finding)
    return list(kinds.values())
