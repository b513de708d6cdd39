"""Formats of names and unknown values. Unknown values are never shown as 0."""

from __future__ import annotations

from typing import Final

from vramscope_server.analysis.number_format import duration, percent
from vramscope_server.answers.run_detail import AgentOverhead, RunInFull

ABSENT: Final = "–"  # noqa: RUF001 - a dash is meant
"""Unknown value in a dense table."""


def plain(text: str) -> str:
    """Escape control and formatting characters, so that foreign text cannot affect the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def has_no_device(run: RunInFull) -> bool:
    """Return True if a run reported its devices and none is a CUDA device. The CPU is device -1."""
    devices = [device["index"] for rank in run["ranks"] for device in rank["devices"]]
    return bool(devices) and max(devices) < 0


WIDEST_BOUND: Final = 0.25
"""Highest bound on the overhead that is shown, as a fraction of a step. A looser bound says nothing."""

LARGE_COST: Final = 0.1
"""Share of a step from which the total is shown too: much of it may be the start of a short run."""


def cost(overhead: AgentOverhead | None) -> str:
    """Format the agent's overhead, or an upper bound if the run cannot resolve it."""
    if not overhead:
        return "not measured yet"
    fraction, noise = overhead.get("fraction"), overhead.get("noise_fraction")
    if overhead.get("resolvable") and fraction is not None:
        total = f"; {duration(overhead.get('hook_seconds'))} in total" if fraction > LARGE_COST else ""
        return (
            f"{percent(max(0.0, fraction))} of a step ({duration(overhead.get('seconds_per_step'))}{total}), measured"
        )
    if noise is not None and noise < WIDEST_BOUND:
        return f"below {percent(max(0.005, noise))} of a step"
    taken = overhead.get("hook_seconds")
    return (
        "not measured yet"
        if not taken
        else f"{duration(taken)} in total; the run is too short to estimate the cost per step"
    )
