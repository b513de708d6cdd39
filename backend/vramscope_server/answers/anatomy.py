"""Anatomy of a recording, advice, and predictions of techniques."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class CategoryBytes(TypedDict):
    """Memory of a category."""

    category: str | None
    """Category; null is unknown."""
    bytes: int
    """Memory."""
    count: int
    """Number of allocations."""


class PhaseBytes(TypedDict):
    """Memory that was allocated in a phase."""

    phase: str | None
    """Phase; null is unknown."""
    bytes: int
    """Memory."""
    count: int
    """Number of allocations."""


class ModuleBytes(TypedDict):
    """Memory that was allocated while a module ran."""

    module: str | None
    """Module; null is unknown."""
    bytes: int
    """Memory."""
    count: int
    """Number of allocations."""


class Coverage(TypedDict):
    """Extent of what is known."""

    unknown_bytes: int
    """Memory without a category."""
    unknown_fraction: float | None
    """The same as a share of the allocated memory."""
    basis: str
    """Origin of the categories: `owners`, `phases`, `stacks` or `nothing`."""


class AdviceRow(TypedDict):
    """A proposed change that lowers the peak."""

    rule: str
    """Name of the rule."""
    sentence: str
    """The proposal."""
    saves_bytes: int | None
    """Bytes by which the peak falls, or the smallest device on which the run fits."""
    seconds: float | None
    """Time that it saves."""
    evidence: dict[str, Any]
    """Numbers behind the proposal, by name."""
    source: str
    """Origin of the numbers."""
    file: str | None
    """Source file."""
    line: int | None
    """Source line."""
    module: str | None
    """Module."""


class AnatomyAnswer(TypedDict):
    """Purpose of the memory that was allocated after an event."""

    recording: str
    """Identifier of the recording."""
    event: int
    """Number of the event; by default that of the highest allocated memory."""
    step: int | None
    """Optimizer step, from 1."""
    phase: str | None
    """Phase of the step."""
    allocated_bytes: int
    """Allocated memory; the categories add up to it."""
    moment: str
    """Description of the point in words."""
    categories: list[CategoryBytes]
    """Memory by category, largest first."""
    phases: list[PhaseBytes]
    """Memory by the phase of its allocation."""
    modules: list[ModuleBytes]
    """Memory by the module that ran at its allocation, largest first."""
    coverage: Coverage
    """Extent of what is known."""
    advice: list[AdviceRow]
    """Proposed changes for the peak, largest saving first."""
    pending: bool
    """True while the recording is replayed under other allocator settings, about which advice may follow."""


class TechniquePlan(TypedDict):
    """Techniques of a way to train; 1 and false are none."""

    gradient_accumulation: int
    """Number of micro-batches of a step."""
    gradient_checkpointing: bool
    """Whether activations are recomputed in the backward pass."""
    optimizer_8bit: bool
    """Whether the optimizer state has 8 bits."""
    no_foreach: bool
    """Whether the optimizer updates parameters one at a time."""


class PredictionRow(TypedDict):
    """A way to train the recorded step."""

    techniques: TechniquePlan
    """Its techniques."""
    peak_allocated_bytes: int | None
    """Highest allocated memory; null if it cannot be predicted."""
    saved_bytes: int | None
    """Bytes by which it is below the recorded peak."""
    rows: int | None
    """Batch size of a micro-batch."""
    rows_that_fit: int | None
    """Largest batch size that fits the recorded device, up to `furthest_rows`."""


class PredictionAnswer(TypedDict):
    """Peak of the recorded step with other techniques."""

    recording: str
    """Identifier of the recording."""
    step: int | None
    """Recorded step, from 1."""
    rows: list[PredictionRow]
    """Ways to train the step, the recorded one first."""
    furthest_rows: int | None
    """Largest batch size for which a prediction is made."""
    notes: list[str]
    """Caveats, in sentences."""
