"""One run in full."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from vramscope_server.answers.jobs import ClusterJob
from vramscope_server.answers.leaks import Leak
from vramscope_server.answers.other_processes import OtherProcessOfRun
from vramscope_server.answers.runs import RunFacts
from vramscope_server.answers.server import AlertRules


class Technique(TypedDict):
    """A memory-saving technique of a training."""

    kind: str
    """Kind of the technique, as in the wire contract."""
    chip: str
    """Shortest name of the technique."""
    declared: str | None
    """Value from the configuration; null if it is not configured."""
    observed: str | None
    """Value that was observed in the running training; empty if it was not found, null if the agent does not detect it."""
    detail: dict[str, Any]
    """Further facts, by name."""


class Pitfall(TypedDict):
    """A mistake in the training script that costs memory."""

    kind: str
    """Kind of the finding."""
    text: str
    """Description of the finding."""
    advice: str
    """Proposed change."""
    file: str | None
    """Source file."""
    line: int | None
    """Source line."""
    first_step: int
    """Step in which it was found first."""


class CategoryMemory(TypedDict):
    """Memory by category."""

    parameters: int | None
    """Bytes of parameters."""
    gradients: int | None
    """Bytes of gradients."""
    optimizer: int | None
    """Bytes of optimizer state."""
    buffers: int | None
    """Bytes of buffers."""
    activations: int | None
    """Bytes of activations."""
    workspaces: int | None
    """Bytes of cuBLAS workspaces. Where it is null, they are part of `other`."""
    other: int | None
    """Bytes of everything else."""


class ReservedParts(TypedDict):
    """Parts of the reserved memory at its peak."""

    reserved_bytes: int
    """Reserved memory."""
    requested_bytes: int
    """Memory that the program requested, before rounding."""
    rounding_bytes: int
    """Allocated memory minus requested memory."""
    usable_bytes: int
    """Free memory that this run can use."""
    unusable_bytes: int
    """Free memory that this run cannot use."""


class Fragmentation(TypedDict):
    """Fragmentation of a run."""

    inactive_split_bytes: int | None
    """Free memory in split blocks at peak reserved."""
    reserved_minus_allocated_bytes: int | None
    """Reserved memory minus allocated memory at peak reserved."""
    unusable_bytes: int | None
    """Free memory at peak reserved that this run cannot use."""
    never_needed_bytes: int | None
    """Highest reserved memory of all steps minus highest allocated memory of all steps."""
    parts: ReservedParts | None
    """Reserved memory at its peak in parts; null until a window was recorded."""


class AgentOverhead(TypedDict):
    """Cost of the agent."""

    seconds_per_step: float | None
    """Time that the agent adds to a step, as the mean over watched and unwatched steps, by comparison of the two."""
    fraction: float | None
    """The same as a share of the step."""
    resolvable: bool
    """Whether the difference exceeds the noise of the step times."""
    noise_fraction: float | None
    """Noise of the step times, as a share of the step."""
    hook_seconds: float
    """Time spent inside the agent's hooks, in total."""
    sampler_cpu_seconds: float
    """CPU time of the sampling thread, in total."""


class NotFinite(TypedDict):
    """Loss values that are not finite."""

    value: str
    """First of them: `nan`, `inf` or `-inf`."""
    step: int
    """Step of the first of them."""
    count: int
    """Number of them."""
    ended: bool
    """Whether the newest value is one of them."""


class Loss(TypedDict):
    """Loss of a rank."""

    name: str
    """Name of the series."""
    source: str
    """Origin of the values, as in the wire contract."""
    count: int
    """Number of values."""
    first: float | None
    """First value; null if it is not finite."""
    last: float | None
    """Newest value; null if it is not finite."""
    last_step: int | None
    """Step of the newest value."""
    final: float | None
    """Mean of the newest tenth of all values; null if one of them is not finite."""
    final_of: int
    """Number of values in that mean, at most 100."""
    not_finite: NotFinite | None
    """Values that are not finite; null if all are."""


class AttachedDevice(TypedDict):
    """A device of a rank."""

    index: int
    """Index of the device; -1 is the CPU."""
    name: str | None
    """Name of the device."""
    uuid: str | None
    """UUID of the device."""
    total_bytes: int | None
    """Memory of the device."""
    emulated: bool
    """Whether the device is an emulated GPU, whose times are not meaningful."""


class HostMemory(TypedDict):
    """Host memory in parts, in the sample in which the first three were largest together. No byte is in two parts."""

    process_anonymous_bytes: int
    """Resident memory of the process without pages of files and shared memory."""
    child_processes_bytes: int
    """Memory that only one of the child processes has, in total. What a fork still shares belongs to the process."""
    shared_memory_bytes: int
    """Files in shared memory that the process or a child has open."""
    other_bytes: int | None
    """Memory in use on the host, or in its container, minus these three: other programs, the kernel, and pinned memory that Linux
    does not count as resident. Null if the memory in use is unknown."""
    host_used_bytes: int | None
    """Memory in use on the host, or in its container."""
    child_processes: int | None
    """Number of child processes: DataLoader workers, for example."""
    largest_child_bytes: int | None
    """Part of the largest child process."""


class RankRow(TypedDict):
    """A rank of a run: its newest process, and its numbers over all of them."""

    rank: int
    """Number of the rank."""
    host: str | None
    """Name of the host."""
    pid: int | None
    """Process id."""
    state: str
    """State of the newest process, as of a run."""
    devices: list[AttachedDevice]
    """Devices that the process uses."""
    python: str | None
    """Version of Python."""
    torch: str | None
    """Version of PyTorch."""
    cuda: str | None
    """Version of CUDA."""
    hip: str | None
    """Version of HIP, of a PyTorch for ROCm."""
    driver: str | None
    """Version of the GPU driver."""
    agent_version: str | None
    """Version of the agent."""
    host_total_bytes: int | None
    """Memory of the host, or of its container."""
    host_memory: HostMemory | None
    """Host memory in parts; null if a part is unknown."""
    jobs: list[ClusterJob]
    """Jobs that the process belongs to, the outermost first."""
    clock_skew_seconds: float | None
    """Clock of the sender minus the server's clock."""
    steps: int | None
    """Number of optimizer steps."""
    peak_allocated_bytes: int | None
    """Highest allocated memory."""
    peak_reserved_bytes: int | None
    """Highest reserved memory."""
    peak_process_device_bytes: int | None
    """Highest device memory of this process, by NVML."""
    peak_device_used_bytes: int | None
    """Highest memory in use on the whole device, by NVML."""
    peak_other_processes_bytes: int | None
    """Highest device memory of other processes, by NVML."""
    foreign_reset_steps: int | None
    """Number of steps in which other code reset PyTorch's peak counters."""
    lower_bound_steps: int | None
    """Number of those steps whose peaks are lower bounds."""
    loss: Loss | None
    """Loss of the rank."""
    scalars: list[str]
    """Names of all numbers that the rank reports."""
    last_seen_seconds: float | None
    """Arrival of its newest data at the server, since 1970."""
    error_type: str | None
    """Type of the exception that ended the process."""
    error_line: str | None
    """Last line of that exception's text."""


class RunEvent(TypedDict):
    """An event of a run."""

    time_seconds: float | None
    """Time of the event, since 1970."""
    rank: int
    """Rank that reported it."""
    kind: str
    """Kind of the event."""
    step: int | None
    """Number of steps that had finished."""
    data: dict[str, Any]
    """Further facts, by name."""


class RunSpan(TypedDict):
    """Extent of the stored data."""

    first_seconds: float | None
    """Time of the first row, since 1970."""
    last_seconds: float | None
    """Time of the last row, since 1970."""
    first_step: int | None
    """First step."""
    last_step: int | None
    """Last step."""


class RunInFull(RunFacts):
    """A run with everything that its page shows."""

    leaks: list[Leak] | None
    """Leaks, worst first; null until a scan ran."""
    leak_count: int | None
    """Number of leaks: findings that grow, and reference cycles; null until a scan ran."""
    techniques: list[Technique] | None
    """Memory-saving techniques; null until the agent reports them."""
    findings: list[Pitfall] | None
    """Mistakes in the training script; null until the agent reports them."""
    out_of_memory: list[RunEvent] | None
    """Events of out-of-memory errors; null if none was ever reported."""
    out_of_memory_count: int | None
    """Number of out-of-memory errors."""
    peak_phase: str | None
    """Phase with the highest allocated memory; of a peak outside steps only this is known."""
    peak_categories: CategoryMemory | None
    """Allocated memory at the peak, by category."""
    fragmentation: Fragmentation | None
    """Fragmentation of the run."""
    allocator_settings: str | None
    """Value of `PYTORCH_CUDA_ALLOC_CONF`."""
    agent_overhead: AgentOverhead | None
    """Cost of the agent."""
    dropped_samples: int | None
    """Number of rows that the agents dropped; null if a process did not report it."""
    foreign_reset_steps: int | None
    """Number of steps in which other code reset PyTorch's peak counters, on the rank with most."""
    framework: str | None
    """Framework that runs the training loop."""
    config: dict[str, Any]
    """Configuration of the run."""
    command: list[str]
    """Command line of the training."""
    git_commit: str | None
    """Git commit of the training's code; `+` follows it if files had changed."""
    loss: Loss | None
    """Loss of the lowest rank that has one."""
    trained_seconds: float | None
    """Training time over all attempts, without the gaps between them."""
    ranks: list[RankRow]
    """Ranks of the run."""
    other_processes: list[OtherProcessOfRun] | None
    """Other processes on the devices of the run, at most 64: those on a device first, the largest first. Null if nothing is
    known of them."""
    events: list[RunEvent]
    """Newest events, at most 1000, in order of time."""
    window: RunSpan
    """Extent of the stored data."""
    wire: int
    """Version of the wire contract that the server speaks."""


class RunAnswer(RunInFull):
    """A run in full with the alert rules of this server."""

    alert_rules: AlertRules
    """Rules by which the run's page counts alerts."""
