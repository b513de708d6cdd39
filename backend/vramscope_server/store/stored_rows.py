"""Rows of the tables ``runs`` and ``sessions`` as dataclasses: a field for each column, None is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from typing_extensions import NotRequired, TypedDict

from vramscope_server.answers.run_detail import CategoryMemory, Pitfall, Technique
from vramscope_server.store.tables import runs, sessions


class StoredOverhead(TypedDict):
    """The newest ``messages.Overhead`` of a session, as plain values."""

    seconds_per_step: float | None
    fraction: float | None
    resolvable: bool
    noise_fraction: float | None
    watched_steps: int
    unwatched_steps: int
    hook_seconds: float
    sampler_cpu_seconds: float
    dropped_samples: NotRequired[int | None]


class StoredTechniques(TypedDict):
    """The newest ``messages.Techniques`` of a session, as plain values."""

    time_ns: int
    step: int
    techniques: list[Technique]
    findings: NotRequired[list[Pitfall]]


class RunChange(TypedDict, total=False):
    """Columns of a run that a user may change."""

    project: str
    name: str
    tags: list[str]
    note: str
    pinned: bool
    baseline: bool


@dataclass(slots=True, kw_only=True)
class StoredRun:
    """A row of ``tables.runs``. Moments are nanoseconds since 1970."""

    key: int
    id: str
    project: str
    name: str
    tags: list[str]
    note: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    """Empty in rows that were read for a list, as ``command``, ``overhead`` and ``peak_categories`` are."""
    command: list[str] = field(default_factory=list)
    git_commit: str | None = None
    framework: str | None = None
    allocator_settings: str | None = None
    device: str | None = None
    capacity_bytes: int | None = None
    world_size: int | None = None
    state: str
    attempt: int = 1
    started_ns: int
    last_seen_ns: int
    """By the server's clock."""
    ended_ns: int | None = None
    pinned: bool = False
    baseline: bool = False
    error_type: str | None = None
    error_line: str | None = None
    ranks_reporting: int = 0
    steps: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    sampled_allocated_bytes: int | None = None
    sampled_reserved_bytes: int | None = None
    lower_bound_steps: int | None = None
    peak_step: int | None = None
    peak_phase: str | None = None
    peak_categories: CategoryMemory | None = None
    inactive_split_bytes: int | None = None
    reserved_minus_allocated_bytes: int | None = None
    unusable_bytes: int | None = None
    never_needed_bytes: int | None = None
    fragmentation_fraction: float | None = None
    step_median_ns: int | None = None
    out_of_memory: int | None = None
    dropped_samples: int = 0
    overhead: StoredOverhead | None = None
    leaks: int | None = None
    leaked_bytes: int | None = None
    worst_leak: str | None = None
    graphs_alive: int | None = None
    recordings: int | None = None
    profiles: int | None = None
    oom_records: int | None = None
    techniques: list[Technique] | None = None
    """Techniques of the lowest rank (``messages.Technique``), as plain values."""
    findings: list[Pitfall] | None = None
    sparkline: list[int | None] = field(default_factory=list)
    first_time_ns: int | None = None
    last_time_ns: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    version: int = 0
    """Number of changes. Server processes recognise by it whether what they have in memory is still true."""

    def update(self, values: Mapping[str, object]) -> None:
        """Set columns by name. Raises AttributeError for a name that is no column."""
        for name, value in values.items():
            setattr(self, name, value)

    def to_row(self) -> dict[str, Any]:
        """All columns by name."""
        return dict(zip(RUN_COLUMNS, _run_values(self), strict=True))


@dataclass(slots=True, kw_only=True)
class StoredSession:
    """A row of ``tables.sessions``: one process. Moments are nanoseconds since 1970."""

    id: str
    run_key: int
    rank: int
    attempt: int
    state: str
    last_sequence: int = 0
    """Every batch up to this number is stored."""
    early: list[list[int]] = field(default_factory=list)
    """Ranges of batches that are stored beyond a gap."""
    attached: dict[str, Any] | None = None
    """The ``messages.Attached``, as plain values."""
    started_ns: int
    last_seen_ns: int
    ended_ns: int | None = None
    skew_ns: int | None = None
    """Clock of the sender minus the server's clock."""
    dropped_samples: int = 0
    overhead: StoredOverhead | None = None
    techniques: StoredTechniques | None = None
    error_type: str | None = None
    error_line: str | None = None
    token: str | None = None
    """Id of the token that began it."""
    version: int = 0
    """Version of the run at the last change of this row."""
    requests: list[str] = field(default_factory=list)
    """Requests for the next ``messages.Ack``. Replaced, never changed in place."""

    def to_row(self) -> dict[str, Any]:
        """All columns by name."""
        return dict(zip(SESSION_COLUMNS, _session_values(self), strict=True))


RUN_COLUMNS: Final = tuple(column.name for column in runs.columns)
SESSION_COLUMNS: Final = tuple(column.name for column in sessions.columns)
_run_values = attrgetter(*RUN_COLUMNS)
_session_values = attrgetter(*SESSION_COLUMNS)
