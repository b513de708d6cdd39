"""Comparisons of runs."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from vramscope_server.answers.anatomy import TechniquePlan
from vramscope_server.answers.recordings import RecordingRow
from vramscope_server.answers.shared_parts import Moment, PlotlyFigure


class Reason(TypedDict):
    """Reason why a run is not fully comparable."""

    kind: str
    """Kind: `card`, `ranks`, `torch`, `batch`, `length`, `steps`, `running`, `failed`, `lost`, `foreign_reset`, `sampled`,
    `tenants` or `loss`."""
    text: str
    """The reason in words."""


class LeaveOneOut(TypedDict):
    """Effect of one technique inside the combination of all."""

    technique: str
    """The technique."""
    run: str
    """Run with all techniques."""
    allocated_bytes: float | None
    """Bytes by which the technique lowers the allocated peak."""
    reserved_bytes: float | None
    """Bytes by which the technique lowers the reserved peak."""
    device_bytes: float | None
    """Bytes by which the technique lowers the device peak."""


class CompareRow(TypedDict):
    """A run beside the baseline."""

    run: str
    """Identifier of the run."""
    name: str
    """Name of the run."""
    techniques: list[str] | None
    """Short names of its techniques."""
    label: str | None
    """Techniques in which the run differs from the baseline, in words."""
    differing: list[str] | None
    """Techniques in which the run differs from the baseline."""
    state: str
    """State of the run; `mixed` for a group of different states."""
    steps: int | None
    """Number of optimizer steps."""
    recordings: int | None
    """Number of complete recordings."""
    peak_allocated_bytes: int | None
    """Highest allocated memory: what the training itself needs. Exact unless `lower_bounds` names it."""
    saved_fraction: float | None
    """Share of it that is saved against the baseline."""
    peak_reserved_bytes: int | None
    """Highest reserved memory."""
    lower_bounds: list[str]
    """Peaks that may be higher. `peak_allocated_bytes` and `peak_reserved_bytes`: a rank has samples alone, or other code reset
    PyTorch's counters. `peak_device_bytes`: always where it is known."""
    saved_bounds: dict[str, str]
    """Savings that are not exact for this reason, by field: `at most`, `at least`, or `unknown`."""
    reserved_saved_fraction: float | None
    """Share of it that is saved against the baseline."""
    peak_device_bytes: int | None
    """Highest sample of the device memory by the driver, with context and libraries."""
    peak_device_of: str | None
    """Extent of that value: `process` or the whole `device`."""
    device_saved_fraction: float | None
    """Share of it that is saved against the baseline."""
    capacity_bytes: int | None
    """Memory of the device."""
    step_seconds_median: float | None
    """Median duration of a step."""
    step_time_ratio: float | None
    """The same divided by that of the baseline."""
    wall_seconds: float | None
    """Training time."""
    wall_time_ratio: float | None
    """The same divided by that of the baseline, between finished runs with equally many steps."""
    batch: int | None
    """Batch size of a micro-batch."""
    accumulation: int | None
    """Number of micro-batches of a step."""
    effective_batch: int | None
    """Batch size times micro-batches times ranks."""
    samples_per_second: float | None
    """Throughput, in samples per second."""
    throughput_ratio: float | None
    """The same divided by that of the baseline."""
    emulated: bool
    """Whether its GPU is emulated, so that times are not meaningful."""
    fragmentation_fraction: float | None
    """Share of the highest reserved memory of all steps that no step allocated."""
    unusable_bytes: int | None
    """Free memory at peak reserved that the run cannot use."""
    leaks: int | None
    """Number of leaks."""
    leaked_bytes: int | None
    """Memory that all leaks retain together."""
    worst_leak: str | None
    """Kind of the worst leak."""
    graphs_alive: int | None
    """Number of autograd graphs from earlier steps that were alive after the newest step."""
    final_loss: float | None
    """Mean of the newest losses."""
    first_loss: float | None
    """First loss."""
    loss_of: int | None
    """Number of losses in that mean. Of a group: that of each of its runs, null if they differ."""
    loss_source: str | None
    """Origin of the loss. Of a group: null if its runs differ."""
    loss_words: str | None
    """Words for a loss that ended without a number, as `NaN from step 120`."""
    leave_one_out: LeaveOneOut | None
    """Effect of the technique that this run omits."""
    reasons: list[Reason]
    """Reasons why the run is not fully comparable."""
    n: int
    """Number of runs in its group: by default the repeats of its configuration."""
    repeats_of: str
    """First run of its group."""


class RunName(TypedDict):
    """A run."""

    run: str
    """Identifier of the run."""
    name: str
    """Name of the run."""


class SpreadFacts(TypedDict):
    """Spread of a value over repeats."""

    n: int
    """Number of values."""
    mean: float
    """Mean."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    kind: str
    """`t95`, the 95 % confidence interval of the mean, or `range`, lowest to highest of fewer than three or of different
    configurations."""


class CompareRowTogether(CompareRow):
    """Runs of one group as one row; values are means."""

    group: str | None
    """Value of the setting that the runs share; null for repeats of one configuration."""
    title: str
    """Words that the names of the runs share, and their number: `baseline (4 runs)`; of one run: its name."""
    runs: list[RunName]
    """The runs."""
    spreads: dict[str, SpreadFacts]
    """Spread of the values, by field."""


class Setting(TypedDict):
    """A setting of the compared runs."""

    name: str
    """Name of the setting."""
    values: list[Any]
    """One value a run; null if it has none."""


class CompareAnswer(TypedDict):
    """Runs beside a baseline, which comes first."""

    rows: list[CompareRow]
    """A row for each run."""
    together: list[CompareRowTogether]
    """A row for each group: by default for each configuration."""
    warnings: list[str]
    """Reasons why runs are not fully comparable, in sentences."""
    differences: list[Setting]
    """Settings in which the runs differ."""
    settings: list[Setting]
    """All settings: project, tags and techniques, configuration, allocator and environment."""


class ComparedSide(Moment):
    """A recording that is compared, at its peak."""

    allocated_bytes: int
    """Allocated memory at that point."""
    peak_bytes: int
    """Highest allocated memory of the recording."""
    recording: str
    """Identifier of the recording."""
    run: str | None
    """Identifier of the run."""
    name: str | None
    """Name of the run."""
    run_peak_allocated_bytes: int | None
    """Highest allocated memory of the run."""
    stacks: bool
    """Whether the recording has stacks."""


class CategoryDifference(TypedDict):
    """Difference of a category."""

    category: str
    """Category."""
    a_bytes: int
    """Memory in A."""
    b_bytes: int
    """Memory in B."""
    difference_bytes: int
    """B minus A."""


class SiteDifference(TypedDict):
    """Difference of a source line and module."""

    file: str | None
    """Source file."""
    function: str | None
    """Function."""
    without_stack: str | None
    """What is known of memory without a Python stack, as `before the recording`."""
    a_line: int | None
    """Source line in A; null if A has no such line."""
    b_line: int | None
    """Source line in B; null if B has no such line."""
    module: str | None
    """Module; layers of one kind are one."""
    category: str | None
    """Category of most of the memory."""
    category_words: str | None
    """The same in words; `several` if no category has more than half."""
    a_bytes: int
    """Memory in A."""
    b_bytes: int
    """Memory in B."""
    difference_bytes: int
    """B minus A."""
    a_allocations: int
    """Number of allocations in A."""
    b_allocations: int
    """Number of allocations in B."""


class SitesRest(TypedDict):
    """Lines that are left out."""

    sites: int
    """Number of them."""
    difference_bytes: int
    """Sum of their differences."""


class SitesAnswer(TypedDict):
    """Difference of two recordings by source line. A and all differences together are B, to the byte."""

    a: ComparedSide
    """First recording."""
    b: ComparedSide
    """Second recording."""
    difference_bytes: int
    """B minus A."""
    categories: list[CategoryDifference]
    """Differences by category."""
    rows: list[SiteDifference]
    """Differences by line, largest first, at most 200."""
    left_out: SitesRest
    """Further lines."""


class ComparedStep(TypedDict):
    """A step of a recording."""

    recording: str
    """Identifier of the recording."""
    step: int | None
    """Step that contains the peak."""


class TwoSteps(TypedDict):
    """A step of each recording."""

    a: ComparedStep
    """Step of A."""
    b: ComparedStep
    """Step of B."""


class TimelinesAnswer(TypedDict):
    """One step of A and of B on one axis."""

    figure: PlotlyFigure
    """Plotly figure without template and theme colours."""
    window: TwoSteps
    """What the figure shows."""


class StepRange(TypedDict):
    """Steps of a recording."""

    first: int | None
    """First step."""
    last: int | None
    """Last step."""


class MeasuredSettings(TypedDict):
    """A run with its allocator settings."""

    run: str
    """Identifier of the run."""
    name: str
    """Name of the run."""
    conf: str | None
    """Value of `PYTORCH_CUDA_ALLOC_CONF`."""
    measured_peak_reserved_bytes: int | None
    """Highest reserved memory of the run in the recorded steps."""


class SettingsPredictions(TypedDict):
    """A recording of the baseline to replay, and what the runs measured."""

    recording: RecordingRow | None
    """Recording of the baseline that starts first."""
    steps: StepRange | None
    """Steps of the recording."""
    rows: list[MeasuredSettings]
    """Runs, baseline first."""


class MeasuredTechniques(TypedDict):
    """A run with other techniques: predicted and measured."""

    run: str
    """Identifier of the run."""
    name: str
    """Name of the run."""
    techniques: TechniquePlan
    """Techniques in which it differs from the baseline."""
    rows: int | None
    """Batch size of a micro-batch."""
    predicted_peak_allocated_bytes: int | None
    """Predicted highest allocated memory."""
    measured_peak_allocated_bytes: int | None
    """Highest allocated memory of the run in the recorded steps."""


class TechniquePredictions(TypedDict):
    """Predictions for other techniques from a recording of the baseline, and what the runs measured."""

    recording: RecordingRow | None
    """Recording of the baseline that starts first."""
    step: int | None
    """Step that was predicted."""
    rows: list[MeasuredTechniques]
    """Runs that differ from the baseline in techniques that can be predicted."""
