"""Formats numbers for sentences and terminals. Unknown values are "unknown", never 0."""

from __future__ import annotations

from vramscope.protocol.number_format import UNKNOWN, amount, duration, percent
from vramscope.protocol.series import MOST_GRAPHS

__all__ = ["GIB", "KIB", "MIB", "UNKNOWN", "amount", "count", "duration", "graphs", "percent", "times"]

KIB, MIB, GIB = 2**10, 2**20, 2**30


def count(value: int | None, unknown: str = UNKNOWN) -> str:
    """An integer with thousands separators."""
    return unknown if value is None else f"{value:,}"


def steps(value: int) -> str:
    """Number of steps: ``1 step``, ``12 steps``."""
    return f"{value:,} step{'' if value == 1 else 's'}"


def times(value: int) -> str:
    """Number of times: ``once``, ``12 times``."""
    return "once" if value == 1 else f"{value:,} times"


def graphs(value: int | None, unknown: str = UNKNOWN) -> str:
    """Number of live graphs. The agent stops counting at a limit, then "or more" follows."""
    return count(value, unknown) + (" or more" if value is not None and value >= MOST_GRAPHS else "")
