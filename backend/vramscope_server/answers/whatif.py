"""What-if jobs: a recording replayed under other allocator settings."""

from __future__ import annotations

from typing_extensions import TypedDict


class ResidualFacts(TypedDict):
    """Difference between the recording and its replay under the recorded settings."""

    peak_reserved_bytes: int
    """Replayed minus recorded peak of reserved memory."""
    end_reserved_bytes: int
    """Replayed minus recorded reserved memory at the end."""
    first_different_event: int | None
    """First event at which both differ; null if they never do."""
    events: int
    """Number of replayed events."""
    words: str
    """The difference in words."""
    exact: bool
    """Whether the replay reproduces the recording."""


class RiskFacts(TypedDict):
    """Risk of a setting."""

    level: int
    """Severity; 0 is none."""
    words: str
    """The risk in words."""
    source: str
    """Origin of that statement."""


class SweepRow(TypedDict):
    """Result of one setting."""

    conf: str
    """Value of `PYTORCH_CUDA_ALLOC_CONF`."""
    recorded: bool
    """Whether these are the recorded settings."""
    peak_reserved_bytes: int
    """Highest reserved memory on the device."""
    uncapped_peak_reserved_bytes: int
    """Highest reserved memory on a device without a limit."""
    peak_allocated_bytes: int
    """Highest allocated memory."""
    retries: int
    """Number of allocations that succeed only after the cache is emptied."""
    device_allocs: int
    """Number of allocations on the device."""
    out_of_memory: bool
    """Whether the run runs out of memory."""
    out_of_memory_at_event: int | None
    """Event at which it does."""
    certainty: str
    """Confidence: `exact`, `band` or `estimate`."""
    reasons: list[str]
    """Caveats: why the result is not exact."""
    band: tuple[int, int] | None
    """Lowest and highest peak of reserved memory, in bytes, over what is unknown."""
    notes: list[str]
    """Remarks, the caveats included."""
    smallest_card_bytes: int | None
    """Memory of the smallest device on which the run survives; null if there is none."""
    uncertainty_bytes: int
    """Uncertainty of that size."""
    is_bounded: bool
    """Whether the need is bounded at all; a setting without a bound is not recommended."""
    saved_bytes: int | None
    """Bytes by which the smallest device is smaller than with the recorded settings."""
    risk: RiskFacts
    """Risk of the setting."""


class RecommendationFacts(TypedDict):
    """Recommended setting."""

    conf: str | None
    """Value of `variable`; null if none is better."""
    words: str
    """Reason for the recommendation."""
    variable: str
    """Environment variable: `PYTORCH_CUDA_ALLOC_CONF`, or that of PyTorch for ROCm."""


class SweepAnswer(TypedDict):
    """Settings side by side."""

    device_bytes: int | None
    """Memory of the replayed device; null if it is unknown and therefore unlimited."""
    outside_bytes: int | None
    """Part of it outside PyTorch; null is unknown and counts as 0."""
    residual: ResidualFacts
    """Difference between the recording and its replay."""
    rows: list[SweepRow]
    """Results, the recorded settings first."""
    recommendation: RecommendationFacts
    """Recommended setting."""
    notes: list[str]
    """Remarks."""


class WhatifJob(TypedDict):
    """A what-if job. One runs at a time; a job that nobody asks for within 15 seconds is given up."""

    job: str
    """Identifier of the job."""
    recording: str
    """Identifier of the recording."""
    state: str
    """`waiting`, `running`, `done` or `failed`."""
    place: int
    """Number of jobs that run before it."""
    done: int
    """Number of finished replays."""
    total: int
    """Number of replays."""
    compiling: bool
    """Whether it waits for machine code, which is compiled once after an installation."""
    seconds: float | None
    """Duration of the job."""
    result: SweepAnswer | None
    """Result of a job that is done."""
    problem: str | None
    """Reason why the job failed."""
