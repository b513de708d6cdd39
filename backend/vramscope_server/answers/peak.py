"""Memory of a device at the peak of a run."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class PeakPart(TypedDict):
    """One part of a level."""

    role: str
    """Name of the part, as in the figure `stack`."""
    label: str
    """Name of the part in words."""
    bytes: int | None
    """Size of the part; null if it is unknown."""


class PeakLevel(TypedDict):
    """One level of the memory. Each level is a part of the one before."""

    level: Literal["card", "reserved", "allocated"]
    """Memory in use on the card, reserved by PyTorch, or allocated by tensors."""
    total_bytes: int | None
    """Highest value in the step of the peak; null if it is unknown."""
    parts: list[PeakPart]
    """Parts of this level that the next level does not contain."""


class DetailedStep(TypedDict):
    """A step whose categories are known."""

    step: int
    """Number of the step."""
    allocated_bytes: int
    """Highest allocated memory of the step."""
    parts: list[PeakPart]
    """Categories at that peak."""


class PeakMemory(TypedDict):
    """Memory of one device in the step with the highest allocated memory."""

    run_id: str
    """Identifier of the run."""
    rank: int
    """Number of the rank."""
    device: int
    """Index of the device; -1 is the CPU."""
    step: int | None
    """Step of the peak, the last of a group of steps; null if it is unknown."""
    first_step: int | None
    """First step of the group."""
    phase: str | None
    """Phase of the peak; null if it is unknown."""
    finished: bool
    """Whether that step finished. If not, the values are those of one sample."""
    lower_bound: bool
    """Whether other code reset the peak counters, so that the peak may have been higher."""
    capacity_bytes: int | None
    """Memory of the card; null if it is unknown."""
    levels: list[PeakLevel]
    """The card, reserved and allocated, in this order. Empty if no peak is known."""
    nearest_detailed: DetailedStep | None
    """Nearest step whose categories are known, from a minute before the peak to 5 s after it. Null if there is none, or if
    those at the peak are known."""
