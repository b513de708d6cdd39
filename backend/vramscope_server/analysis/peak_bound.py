"""What is known of a run's peak: its value, or a lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from vramscope_server.analysis.number_format import UNKNOWN, amount

Peak = Literal["peak_allocated", "peak_reserved"]


class PeakBound(NamedTuple):
    """A peak. ``is_lower``: it may be higher. None is unknown."""

    bytes: int | None
    is_lower: bool = False
    why: str = ""

    @property
    def words(self) -> str:
        """The peak, as text."""
        if self.bytes is None:
            return UNKNOWN
        return f"at least {amount(self.bytes)} ({self.why})" if self.is_lower else amount(self.bytes)

    def cell(self, unknown: str = UNKNOWN) -> str:
        """The peak in a table: ``≥ 3.00 GiB`` for a lower bound."""
        return at_least(amount(self.bytes, unknown), self.is_lower)


def at_least(text: str, is_lower: bool) -> str:
    """Text of a number; ``≥`` marks a lower bound."""
    return f"≥ {text}" if is_lower else text


def peak_bound(run: Mapping[str, Any], name: Peak) -> PeakBound:
    """Peak of all ranks of a run in the list or in full.

    It is a lower bound where a rank has samples alone, or where other code reset PyTorch's counters.
    """
    measured, sampled = run[f"{name}_bytes"], run[f"{name.replace('peak', 'sampled')}_bytes"]
    if sampled is not None:
        return PeakBound(max(sampled, measured or 0), True, "sampled")
    return PeakBound(measured, measured is not None and bool(run["lower_bound_steps"]), "lower bound")
