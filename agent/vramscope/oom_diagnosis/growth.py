"""Growth of the memory after each step, up to an out-of-memory error: from the steps of the record and from the leaks found.

``analysis/series/trend`` on the server tests whether a run of any length leaks. Here memory has run out, and the
question is whether growth is the reason. So the whole rise counts, not its slope, and four steps may be enough.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from vramscope.protocol.messages import Leak
from vramscope.protocol.oom_record import OomRecord

COLUMNS: Final = ("step", "end_allocated_bytes", "peak_allocated_bytes")
"""Columns of OomRecord.steps; names as series.STEPS."""
FEWEST_STEPS: Final = 4
YOUNG_STEPS: Final = 24
"""Over fewer steps, a cache that fills up cannot be told from a leak."""
MOST_INTERVALS: Final = 8
LEAST_SHARE: Final = 0.25
"""Share of the mean rise that each interval must have. A single jump is no growth."""
GRAPHS: Final = ("growing", "growing-eval")
LEAKS_THAT_GROW: Final = ("growing", "growing-eval", "tensor-growth", "cycle", "overlap", "overlap-unfreed")


WORK_GROWS: Final = 3.1
"""Ratio of the rise of the peaks to the rise of the memory after the steps, from which on the steps themselves need more.

Outputs that live into the next step, longer each time, and their loss: 3.2 with PyTorch 2.15, 5 with 2.13. A leak
alone: 1; a tensor that is concatenated again in each step: up to 3.
"""


class Growth(NamedTuple):
    """A rise of the memory after each step, in every interval from the first known step to the last."""

    bytes: int
    first_peak_bytes: int
    """Peak allocated of the first known step, before anything had grown."""
    steps: int
    """Steps over which it rose."""
    of_work: bool
    """True if the peaks rose far more: a longer batch needs more in its step, and is itself still there after it."""


def growth_of(steps: Mapping[str, bytes]) -> Growth | None:
    """Growth over the steps of OomRecord.steps; None where the memory does not rise for certain."""
    try:
        number, floor, peak = (array("q", steps[name]) for name in COLUMNS)
    except KeyError:
        return None
    count = min(len(number), len(floor), len(peak))
    if count < FEWEST_STEPS:
        return None
    intervals = min(MOST_INTERVALS, count)
    edges = [count * at // intervals for at in range(intervals + 1)]
    lows = [min(floor[begin:end]) for begin, end in pairwise(edges)]
    least = LEAST_SHARE * (lows[-1] - lows[0]) / (intervals - 1)
    if least <= 0 or any(b - a < least for a, b in pairwise(lows)):
        return None
    risen = floor[count - 1] - floor[0]
    of_work = peak[count - 1] - peak[0] >= WORK_GROWS * risen
    return Growth(risen, peak[0], number[count - 1] - number[0], of_work)


def growing(record: OomRecord) -> list[Any]:
    """Leaks of the record that grow, the largest first; where there are none, the late suspects."""
    leaks = [leak for leak in record.leaks if leak.kind in LEAKS_THAT_GROW and not _is_of_an_evaluation(leak)]
    return sorted(leaks, key=lambda leak: -retained_by(leak, record.step)) or list(record.last_look)


def retained_by(leak: Leak, step: int) -> int:
    """Bytes that a leak retains at a step: at its last scan, and its growth since.

    A container that is emptied periodically retains what has come since, if the first fill began with the training. One that
    each evaluation empties retains nothing that steps could show.
    """
    if _is_of_an_evaluation(leak):
        return 0
    if leak.emptied_after is not None:
        return int(leak.exclusive_bytes * (step % leak.emptied_after) / leak.emptied_after)
    grown = (leak.growth_bytes_per_step or 0) * max(0, step - leak.last_step)
    return int(leak.exclusive_bytes + grown)


def retained_by_all(leaks: Iterable[Leak], step: int) -> int:
    """Bytes that these leaks retain at a step.

    Of a graph that a variable of the current step shares, as its newest output does, nothing is exclusive. Still the peak falls by
    what the leak's fix frees.
    """
    leaks = list(leaks)
    graphs = [leak for leak in leaks if leak.kind in GRAPHS and leak.emptied_after is None]
    effects = [leak.peak_effect_bytes or 0 for leak in graphs]
    return max([sum(retained_by(leak, step) for leak in leaks), *effects])


def _is_of_an_evaluation(leak: Leak) -> bool:
    """Whether it is emptied when an evaluation ends. An error within one is explained by the late suspects."""
    return leak.emptied_after is not None and leak.per != "step"
