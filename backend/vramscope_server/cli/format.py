"""Numbers and names as people read them in a terminal. What is not known is called so, never 0."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from vramscope_server.analysis.units import GIB, KIB, MIB, UNKNOWN, amount, count, duration, graphs, percent

__all__ = [
    "ABSENT", "GIB", "KIB", "MIB", "STATE_STYLE", "UNKNOWN", "ago", "amount", "cost", "count", "duration", "graphs", "percent",
    "plain",
]  # fmt: skip

ABSENT = "–"  # noqa: RUF001 - a dash is meant
"""Unknown, in a dense table."""

STATE_STYLE = {"running": "bold green", "finished": "default", "failed": "bold red", "lost": "yellow"}


def ago(seconds: float | None, now: float | None = None) -> str:
    """How long since a moment; whole units, rounded down."""
    if seconds is None:
        return UNKNOWN
    past = max(0.0, (time.time() if now is None else now) - seconds)
    for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if past >= size:
            return f"{past // size:.0f} {word} ago"
    return f"{past:.0f} s ago"


def plain(text: str) -> str:
    """Text from elsewhere, harmless for a terminal: control and formatting characters are shown, not obeyed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def has_no_card(run: Mapping[str, Any]) -> bool:
    """It told of its devices, and none is a CUDA device: the CPU is device -1."""
    devices = [device["index"] for rank in run["ranks"] for device in rank["devices"]]
    return bool(devices) and max(devices) < 0


WIDEST_BOUND: Final = 0.25
"""of a step: a run so short or uneven that its cost is only known to lie below more has told nothing of it"""


def cost(overhead: Mapping[str, Any] | None) -> str:
    """The agent's own cost, or that it lies below what this run can resolve."""
    if not overhead:
        return "not measured yet"
    fraction, noise = overhead.get("fraction"), overhead.get("noise_fraction")
    if overhead.get("resolvable") and fraction is not None:
        return f"{percent(max(0.0, fraction))} of a step ({duration(overhead.get('seconds_per_step'))}), measured"
    if noise is not None and noise < WIDEST_BOUND:
        return f"below {percent(max(0.005, noise))} of a step"
    taken = overhead.get("hook_seconds")
    return (
        "not measured yet" if not taken else f"{duration(taken)} of the run in all; a step's share is not measured yet"
    )
