"""Has what outlives a step grown up to an error? From the few steps before it, which are all that a young run has.

The server's ``analysis/floor`` says with care whether a run of any length leaks; here memory has run out, and the question is
whether that is why: the whole rise counts, not its slope, and four steps may have to do.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, NamedTuple

COLUMNS: Final = ("step", "end_allocated_bytes", "peak_allocated_bytes")
"""of BlackBox.steps, names as wire.STEPS"""
FEWEST_STEPS: Final = 4
YOUNG_STEPS: Final = 24
"""over fewer, what grows may as well be something that fills up and is wanted"""
MOST_STRETCHES: Final = 8
LEAST_SHARE: Final = 0.25
"""of the mean rise, that each stretch must rise by: a single jump is no growth"""


class Growth(NamedTuple):
    """What is still in use when a step ends has risen, from the first known step to the last, and all the way."""

    bytes: int
    first_peak_bytes: int
    """highest allocated of the first step that is known: what a step wanted before anything had grown"""
    steps: int
    """it has gone on for"""


def growth_of(steps: Mapping[str, bytes]) -> Growth | None:
    """None where it does not rise for sure. ``steps``: as BlackBox.steps has them."""
    try:
        number, floor, peak = (array("q", steps[name]) for name in COLUMNS)
    except KeyError:
        return None
    count = min(len(number), len(floor), len(peak))
    if count < FEWEST_STEPS:
        return None
    stretches = min(MOST_STRETCHES, count)
    edges = [count * at // stretches for at in range(stretches + 1)]
    lows = [min(floor[begin:end]) for begin, end in pairwise(edges)]
    least = LEAST_SHARE * (lows[-1] - lows[0]) / (stretches - 1)
    if least <= 0 or any(b - a < least for a, b in pairwise(lows)):
        return None
    return Growth(floor[count - 1] - floor[0], peak[0], number[count - 1] - number[0])
