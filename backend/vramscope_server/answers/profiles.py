"""Profiles of torch.profiler."""

from __future__ import annotations

from typing import Any  # noqa: F401 - see ProfileInFull

from typing_extensions import NotRequired, TypedDict

from vramscope_server.answers.recordings import ProfileRow, ProfileTrace  # noqa: F401 - see ProfileInFull


class ProfileList(TypedDict):
    """Profiles of a run."""

    run_id: str
    """Identifier of the run."""
    state: str
    """State of the run."""
    profiles: list[ProfileRow]
    """Profiles, newest first."""


class ProfileCost(TypedDict):
    """Cost of the profile for the training."""

    opening: float
    """Time to start the profiler, in seconds."""
    closing: float
    """Time to stop the profiler, in seconds."""
    packing: float
    """CPU time of the agent's own thread, in seconds."""
    step_before: float | None
    """Median duration of a step before the profile, in seconds."""
    step_within: float | None
    """Median duration of a profiled step, in seconds."""


class TableSums(TypedDict):
    """Sums over all rows of a table."""

    self_cpu_ns: int | None
    """CPU time."""
    self_device_ns: int | None
    """Device time."""
    self_allocated_bytes: int | None
    """Memory that was allocated."""
    self_freed_bytes: int | None
    """Memory that was freed."""
    self_peak_bytes: int | None
    """Memory that was alive at the peak."""


class TableFacts(TypedDict):
    """Extent of a table."""

    rows: int
    """Number of rows."""
    sums: TableSums
    """Sums over all rows."""


# Python 3.14 reads the inherited types with the names of this module, so that it imports those of ProfileRow, too.
class ProfileInFull(ProfileRow):
    """An opened profile."""

    device: int
    """Index of the device; -1 is the CPU."""
    device_name: str
    """Name of the device."""
    torch: str
    """Version of PyTorch."""
    cuda: str | None
    """Version of CUDA."""
    reason: str
    """Cause of the profile."""
    first_step: int
    """First profiled step, from 1."""
    last_step: int
    """Last profiled step."""
    steps: int
    """Number of steps that the profile contains completely."""
    device_time: bool
    """Whether device times are known."""
    stacks: bool
    """Whether Python stacks were recorded, so that there are lines."""
    modules_known: bool
    """Whether modules were recorded."""
    span_ns: int
    """Length of the profile."""
    phases: dict[str, int]
    """Time in each phase, in nanoseconds."""
    device_busy_ns: int | None
    """Time in which at least one kernel ran."""
    allocated_bytes: int | None
    """Memory that was allocated in the profile."""
    freed_bytes: int | None
    """Memory that was freed in the profile."""
    start_bytes: int | None
    """Allocated memory at the start."""
    peak_bytes: int | None
    """Highest allocated memory."""
    before_bytes: int | None
    """Part of the peak that was allocated before the profile."""
    unattributed_peak_bytes: int | None
    """Part of the peak that is in no row and was not allocated before the profile."""
    peak_step: int
    """Step of the peak."""
    peak_ns: int
    """Time of the peak after the start of the profile."""
    retries: int | None
    """Number of allocations that succeeded only after the cache was emptied."""
    device_allocations: int | None
    """Number of cudaMalloc calls and mappings."""
    device_frees: int | None
    """Number of cudaFree calls and unmappings."""
    notes: list[str]
    """Limits of the profile, in sentences."""
    cost: ProfileCost
    """Cost of the profile for the training."""
    peak_phase: str | None
    """Phase of the peak."""
    time: str
    """What took most of the time, in a sentence."""
    memory: str
    """What took most of the memory, in a sentence."""
    tables: dict[str, TableFacts]
    """Tables by name: `operations`, `modules`, `lines`."""


class ProfileTableRow(TypedDict):
    """An operation, module or source line. Values with `self_` are without what it calls."""

    name: str
    """Name of the operation, module or function."""
    special: bool
    """Whether the row stands for everything that belongs to no other row."""
    phase: NotRequired[str | None]
    """Phase; of operations only."""
    shapes: NotRequired[str]
    """Shapes of the inputs; of operations only."""
    kind: NotRequired[str]
    """Class of the module; of modules only."""
    file: NotRequired[str]
    """Source file; of lines only."""
    line: NotRequired[int | None]
    """First source line; of lines only."""
    last_line: NotRequired[int | None]
    """Last source line; of lines only."""
    calls: int | None
    """Number of calls."""
    cpu_ns: int | None
    """CPU time."""
    self_cpu_ns: int | None
    """CPU time without what it calls."""
    device_ns: int | None
    """Device time."""
    self_device_ns: int | None
    """Device time without what it calls."""
    allocated_bytes: int | None
    """Memory that was allocated."""
    self_allocated_bytes: int | None
    """Memory that it allocated itself."""
    freed_bytes: int | None
    """Memory that was freed."""
    self_freed_bytes: int | None
    """Memory that it freed itself."""
    peak_bytes: int | None
    """Memory that was alive at the peak."""
    self_peak_bytes: int | None
    """Memory that it allocated itself and that was alive at the peak."""


class ProfileTable(TypedDict):
    """Rows of a profile's table."""

    table: str
    """`operations`, `modules` or `lines`."""
    rows: list[ProfileTableRow]
    """Rows of this page."""
    matched: int
    """Number of rows that match the search."""
    total: int
    """Number of rows of the table."""
    steps: int
    """Number of profiled steps."""
