"""Has what outlives a step grown up to an error? By the few steps before it, all that a young run has, and by the leaks found.

The server's ``analysis/floor`` says with care whether a run of any length leaks; here memory has run out, and the question is
whether that is why: the whole rise counts, not its slope, and four steps may have to do.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from vramscope.protocol.oom_record import BlackBox

COLUMNS: Final = ("step", "end_allocated_bytes", "peak_allocated_bytes")
"""of BlackBox.steps, names as series.STEPS"""
FEWEST_STEPS: Final = 4
YOUNG_STEPS: Final = 24
"""over fewer, what grows may as well be something that fills up and is wanted"""
MOST_STRETCHES: Final = 8
LEAST_SHARE: Final = 0.25
"""of the mean rise, that each stretch must rise by: a single jump is no growth"""
LEAKS_THAT_GROW: Final = ("growing", "growing-eval", "tensor-growth", "cycle", "overlap", "overlap-unfreed")


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


def growing(box: BlackBox) -> list[Any]:
    """Leaks of the record that get larger, what holds most by now first; where there are none, what the last look found."""
    leaks = [leak for leak in box.leaks if leak.kind in LEAKS_THAT_GROW and not _is_of_an_evaluation(leak)]
    return sorted(leaks, key=lambda leak: -held_by(leak, box.step)) or list(box.last_look)


def held_by(leak: Any, step: int) -> int:
    """What a leak holds by now: at its last look, and its growth since; of what is emptied every so many steps, as far as it has
    filled in this fill, if the first began with the training; of what each evaluation empties, nothing that steps could tell."""
    if _is_of_an_evaluation(leak):
        return 0
    if leak.emptied_after is not None:
        return int(leak.exclusive_bytes * (step % leak.emptied_after) / leak.emptied_after)
    grown = (leak.growth_bytes_per_step or 0) * max(0, step - leak.last_step)
    return int(leak.exclusive_bytes + grown)


def _is_of_an_evaluation(leak: Any) -> bool:
    """Whether it is emptied by the time that an evaluation is over: where memory runs out within one, the last look has it."""
    return leak.emptied_after is not None and leak.per != "step"
