"""A run as a row of the list."""

from __future__ import annotations

from typing_extensions import TypedDict

from vramscope_server.answers.jobs import ClusterJob


class RunFacts(TypedDict):
    """Facts that the list and the full answer share."""

    run_id: str
    """Identifier of the run."""
    project: str
    """Project that the run belongs to."""
    name: str
    """Name of the run; it can be changed."""
    tags: list[str]
    """Tags of the run; they can be changed."""
    note: str
    """Note on the run, plain text of at most 2000 characters; it can be changed. Empty: none."""
    state: str
    """`running`, `finished`, `failed` or `lost`; a newer agent may report another word."""
    device: str | None
    """Name of the lowest rank's first device; ` (emulated)` follows that of an emulated GPU."""
    capacity_bytes: int | None
    """Memory of that device."""
    world_size: int | None
    """Number of ranks of the training."""
    ranks_reporting: int
    """Number of ranks that are not lost."""
    steps: int | None
    """Number of optimizer steps."""
    started_seconds: float | None
    """Start of the run, since 1970."""
    last_seen_seconds: float | None
    """Arrival of its newest data at the server, since 1970."""
    ended_seconds: float | None
    """End of the run, since 1970; null while it runs."""
    peak_allocated_bytes: int | None
    """Highest allocated memory on any rank."""
    peak_reserved_bytes: int | None
    """Highest reserved memory on any rank."""
    sampled_allocated_bytes: int | None
    """Highest allocated memory of a sample on ranks with unmeasured peaks. The peak is at least this. Null if all were measured."""
    sampled_reserved_bytes: int | None
    """Highest reserved memory of a sample on ranks with unmeasured peaks. The peak is at least this. Null if all were measured."""
    lower_bound_steps: int | None
    """Number of steps whose peaks are lower bounds, because other code reset PyTorch's counters; on the rank with most."""
    peak_step: int | None
    """Step with the highest allocated memory."""
    step_seconds_median: float | None
    """Median duration of a step."""
    fragmentation_fraction: float | None
    """Share of the highest reserved memory of all steps that no step allocated."""
    unusable_bytes: int | None
    """Free memory at peak reserved that this run cannot use; null until a window was recorded."""
    pinned: bool
    """Whether the run stays at the top of the list and is never deleted automatically."""
    baseline: bool
    """Whether the run is the baseline of its project."""
    error_type: str | None
    """Type of the exception that ended the run."""
    error_line: str | None
    """Last line of that exception's text."""
    leaked_bytes: int | None
    """Memory that all leaks retain together, on the rank with most of it."""
    worst_leak: str | None
    """Kind of the worst leak."""
    graphs_alive: int | None
    """Number of autograd graphs from earlier steps that were alive after the newest step."""
    recordings: int | None
    """Number of complete recordings; null if none was ever started."""
    profiles: int | None
    """Number of complete profiles; null if none was ever started."""
    oom_records: int | None
    """Number of complete out-of-memory records; null if none was ever started."""
    sparkline: list[int | None]
    """Highest allocated memory, in bytes, in each of at most 60 parts of the run."""


class RunRow(RunFacts):
    """A run in the list."""

    leaks: int | None
    """Number of leaks; null until a scan ran."""
    techniques: list[str] | None
    """Short name of each memory-saving technique; ` not seen` follows one that is declared and was not observed."""
    out_of_memory: int | None
    """Number of out-of-memory errors."""


class ListedRun(RunRow):
    """A run in the list, with its jobs."""

    jobs: list[ClusterJob]
    """Jobs of the lowest rank, the outermost first."""


class RunList(TypedDict):
    """A page of the list of runs: pinned runs and baselines first, then the newest."""

    runs: list[ListedRun]
    """Runs of this page."""
    total: int
    """Number of runs on all pages."""
    next_cursor: str | None
    """Value of `cursor` for the next page; null on the last page."""
    projects: list[str]
    """Names of all projects."""
    devices: list[str]
    """Names of all devices."""
    tags: list[str]
    """All tags, at most 500."""
