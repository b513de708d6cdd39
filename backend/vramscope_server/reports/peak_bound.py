"""What is known of a run's peak: its value, or a lower bound."""

from __future__ import annotations

from typing import Literal, NamedTuple

from vramscope_server.analysis.number_format import UNKNOWN, amount
from vramscope_server.answers.run_detail import RunInFull


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


def peak_bound(run: RunInFull, name: Literal["peak_allocated", "peak_reserved"]) -> PeakBound:
    """Peak of all ranks. It is a lower bound where a rank has samples alone, or where other code reset PyTorch's counters."""
    if name == "peak_allocated":
        measured, sampled = run["peak_allocated_bytes"], run.get("sampled_allocated_bytes")
    else:
        measured, sampled = run["peak_reserved_bytes"], run.get("sampled_reserved_bytes")
    if sampled is not None:
        return PeakBound(max(sampled, measured or 0), True, "sampled")
    return PeakBound(measured, measured is not None and bool(run["lower_bound_steps"]), "lower bound")
