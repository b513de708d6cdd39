"""Whether a recording contains the peak of its run. Without NumPy, because commands import it."""

from __future__ import annotations

from typing import Final

AS_HIGH: Final = 0.98
"""Fraction of the run's peak from which a recording counts as a recording of the peak."""


def contains_peak(recorded_bytes: int, run_peak_bytes: int) -> bool:
    """Whether the highest allocated memory of a recording is about that of its run."""
    return recorded_bytes >= AS_HIGH * run_peak_bytes
