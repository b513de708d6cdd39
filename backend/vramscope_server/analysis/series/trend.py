"""Trend of the memory after each step: a robust fit, with the smallest slope that it can detect.

Pure functions on arrays. In a healthy training this memory is flat but noisy: batches differ in length, caches fill in the
first steps, an evaluation leaves memory allocated until the epoch ends. So the line goes through the *lowest* values of groups
of steps, growth must be spread over the whole window, and no growth below the scatter is reported.

Source: the slope is the median of the slopes between all pairs (Theil 1950). Its interval is that of Sen, "Estimates of the
regression coefficient based on Kendall's tau", J. Am. Stat. Assoc. 63 (1968) 1379. The lowest value of each group, the
allowance for scatter that is not independent noise, and the rule that each quarter must rise are our own.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from vramscope.oom_diagnosis.growth import WORK_GROWS
from vramscope_server.analysis.array_types import FloatArray

MIN_STEPS: Final = 24
"""Minimum number of steps for a trend."""
_GROUPS: Final = 60
_GROUP_STEPS: Final = 4
_WARM_UP: Final = 0.1
_MAX_WARM_UP_STEPS: Final = 50
_GRAIN_BYTES: Final = 512.0
"""Smallest block of the CUDA allocator. A change by one block is no growth."""
_HOST_GRAIN_BYTES: Final = 512.0 * 1024
"""Smallest growth on the CPU, where the memory is the heap of the process. In trainings without leaks, Python, the framework and
the agent grew by up to 180 KiB in 40 to 3,000 steps."""
_Z: Final = 1.96
_QUARTER_SHARE: Final = 0.25
"""Minimum rise of each quarter of the window, as a share of the line's. A single jump is no growth."""
_SLOWED_SHARE: Final = 0.6
"""Rise of the last quarter, as a share of the first one's, below which the rise slows down. A cache that fills up rises so."""
MOST_JUMPS: Final = 8
"""With more jumps, memory counts as growing."""
GROUPS_A_JUMP: Final = 2
"""Minimum number of groups of steps for each one that rises."""
LEAST_JUMP_SHARE: Final = 0.02
"""Smallest jump, as a share of the rise."""
JUMPS_SHARE: Final = 0.95
"""Share of the rise that the jumps make up."""
LEVEL_SHARE: Final = 0.25
"""Scatter between two jumps, as a share of the median jump, up to which memory is level there."""
REGULAR_JUMPS: Final = 3
IRREGULAR: Final = 0.3
"""Relative standard deviation of sizes, or of distances, from which on three or more jumps are irregular."""
LEVEL_GROUPS: Final = 5
"""Minimum number of groups of steps at the end without a rise that show that growth has stopped."""
LONGER_PAUSE: Final = 2
"""Factor on the longest pause before that end. A shorter end is a pause, too."""
THE_MODELS_SHARE: Final = 0.8
"""Share of the rise of memory after each step from which on the models themselves grow."""
RESULTS_SHARE: Final = (0.5, 2.0)
"""Least and most bytes of results of the last step that may be the rise, as shares of it."""
WORK_GROWS_WITH_RESULTS: Final = 2.0
"""Ratio of the rises as WORK_GROWS, where such results explain the rise. A leak alone: 1."""
KNOWN_SHARE: Final = 1 / 3
"""Share of the steps that must lie between the first and the last one in which the tensors of models were counted."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Line through the memory after each step. Slopes are per step, or per unit of x.

    points       number of known values in the window, warm-up included
    begin        x of the first value
    first, last  x range of the fit, without the warm-up
    level_bytes  height of the line at ``last``
    slope        bytes per step
    margin       half the width of the interval, and the smallest detectable slope
    spread_bytes scatter of the lowest values around the line
    growing      the slope exceeds the margin, every quarter of the window rises by as much, not only in a few jumps, and to the end
    slows        all this, but the end rises by much less than the beginning
    level_since  x of the last rise, if there was growth and the end is much longer than any pause before it; else None
    jumps        number of jumps, if these make up the rise and memory is level between them; else 0
    """

    points: int
    begin: float
    first: float
    last: float
    level_bytes: float
    slope: float
    margin: float
    spread_bytes: float
    growing: bool
    jumps: int = 0
    slows: bool = False
    level_since: float | None = None

    @property
    def rises_in_jumps(self) -> bool:
        """Whether the line rises, but only in a few jumps."""
        return self.jumps > 0 and self.slope > self.margin

    @property
    def low(self) -> float:
        """Lower end of the slope's interval (95 %)."""
        return self.slope - self.margin

    @property
    def high(self) -> float:
        """Upper end of the slope's interval (95 %)."""
        return self.slope + self.margin

    @property
    def steps(self) -> int:
        """Steps from the first known value to the last. Values in between may be unknown."""
        return round(self.last - self.begin) + 1

    def at(self, x: FloatArray) -> FloatArray:
        """Height of the line at x."""
        height: FloatArray = self.level_bytes + self.slope * (x - self.last)
        return height


def trend(x: FloatArray, after_step_bytes: FloatArray, *, on_host: bool = False) -> Trend | None:
    """Fit the memory after each step. None with fewer than 24 known values, or if all have the same x.

    x                 shape (n,), not falling: steps
    after_step_bytes  shape (n,), NaN if unknown
    on_host           the values are the heap of a process that trains on the CPU
    Cost: about 3 ms for 100,000 steps.
    """
    known = np.isfinite(after_step_bytes) & np.isfinite(x)
    x, after_step_bytes = x[known], after_step_bytes[known]
    points = int(x.size)
    begin = float(x[0]) if points else 0.0
    if points < MIN_STEPS:
        return None
    warm_up = min(max(2, int(points * _WARM_UP)), _MAX_WARM_UP_STEPS)
    x, after_step_bytes = x[warm_up:], after_step_bytes[warm_up:]
    span = float(x[-1] - x[0])
    if span <= 0:
        return None
    at, low = lowest(x, after_step_bytes)
    slope, half = theil_sen(at, low)
    offset = float(np.median(low - slope * at))
    rest = low - slope * at - offset
    spread = float(np.quantile(rest, 0.9) - np.quantile(rest, 0.1))
    last = x >= at[-1]
    level = after_step_bytes[last]
    jumps = jumps_of(at, low, float(x[last][level <= np.median(level)][-1]))
    margin = max(half, spread / span, (_HOST_GRAIN_BYTES if on_host else _GRAIN_BYTES) / span)
    rises = not jumps and slope > margin and _every_quarter_rises(at, low, slope, span)
    since = level_since(at, low) if not jumps and slope > margin else None
    rises = rises and since is None
    slows = rises and _slows(at, low)
    return Trend(
        points=points,
        begin=begin,
        first=float(x[0]),
        last=float(x[-1]),
        level_bytes=offset + slope * float(x[-1]),
        slope=slope,
        margin=margin,
        spread_bytes=spread,
        growing=rises and not slows,
        jumps=jumps,
        slows=slows,
        level_since=since,
    )


def jumps_of(at: FloatArray, low: FloatArray, end: float) -> int:
    """Number of jumps that make up the rise, if these are few and memory is level between them; else 0.

    New stages and tasks do that. Jumps of about one size at about equal distances are no stages, but growth: of each fold or epoch
    something is retained. If the next one did not come when it was due, they were stages all the same.

    at, low   positions and values as :func:`lowest` gives them
    end       last position at the level of the last group
    """
    never_below = np.minimum.accumulate(low[::-1])[::-1]
    rises = np.diff(never_below)
    whole = float(never_below[-1] - never_below[0])
    rising = np.flatnonzero(rises >= LEAST_JUMP_SHARE * whole)
    if whole <= 0 or not 0 < len(rising) <= len(rises) // GROUPS_A_JUMP:
        return 0
    # What a new stage needs may come over several steps: rising groups side by side are one jump.
    together = np.split(rising, np.flatnonzero(np.diff(rising) > 1) + 1)
    sizes = np.array([rises[one].sum() for one in together])
    if len(together) > MOST_JUMPS or float(sizes.sum()) < JUMPS_SHARE * whole:
        return 0
    level = np.split(low, [edge for one in together for edge in (int(one[0]) + 1, int(one[-1]) + 1)])[::2]
    if any(float(np.ptp(part)) > LEVEL_SHARE * float(np.median(sizes)) for part in level):
        return 0
    if len(together) >= REGULAR_JUMPS:
        gaps = np.diff([at[one[0]] for one in together])
        regular = max(float(np.std(one) / np.mean(one)) for one in (sizes, gaps)) < IRREGULAR
        overdue = end - float(at[together[-1][-1] + 1]) >= (1 + IRREGULAR) * float(gaps.mean())
        if regular and not overdue:
            return 0
    return len(together)


def level_since(at: FloatArray, low: FloatArray) -> float | None:
    """Position of the last rise, if memory has been level for much longer than ever before: a buffer is full. Else None.

    at, low   positions and values as :func:`lowest` gives them
    """
    never_below = np.minimum.accumulate(low[::-1])[::-1]
    rises = np.diff(never_below)
    whole = float(never_below[-1] - never_below[0])
    rising = np.flatnonzero(rises >= _QUARTER_SHARE * whole / max(1, len(rises)))
    if whole <= 0 or not len(rising):
        return None
    longest, end = int(np.diff(rising).max(initial=1)), len(rises) - 1 - int(rising[-1])
    if end < max(LEVEL_GROUPS, LONGER_PAUSE * longest):
        return None
    return float(at[rising[-1] + 1])


def lowest(x: FloatArray, after_step_bytes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Positions and values of the lowest point of each group of at least four points, in at most 60 groups."""
    groups = min(_GROUPS, x.size // _GROUP_STEPS)
    edges = np.linspace(0, x.size, groups + 1).astype(np.int64)
    rows = np.array([a + int(after_step_bytes[a:b].argmin()) for a, b in itertools.pairwise(edges.tolist())])
    return x[rows], after_step_bytes[rows]


def theil_sen(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Median slope between all pairs, and the larger distance to the ends of its 95 % interval.

    Raises ValueError if all x are the same.
    """
    first, second = np.triu_indices(x.size, 1)
    run = x[second] - x[first]
    slopes = np.sort((y[second] - y[first])[run > 0] / run[run > 0])
    if not slopes.size:
        raise ValueError("a slope needs two points at different x")
    slope = float(np.median(slopes))
    n = x.size
    reach = _Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = int(max(0, math.floor((slopes.size - reach) / 2)))
    high = int(min(slopes.size - 1, math.ceil((slopes.size + reach) / 2)))
    return slope, max(slope - float(slopes[low]), float(slopes[high]) - slope)


def until_full(found: Trend | None, available_bytes: float | None) -> tuple[float | None, float | None]:
    """Steps until the growth has used ``available_bytes``, at the slope and at the upper end of its interval.

    None, None without growth, or if the available bytes are unknown; never negative.
    """
    if found is None or available_bytes is None or not found.growing:
        return None, None
    available = max(0.0, available_bytes)
    return available / found.slope, available / found.high


def work_grows(floor: Trend, peaks: Trend, lives_on_bytes: int = 0) -> bool:
    """True if memory after each step rises because the steps grow: a batch that is still referred to, and longer each time.

    What is retained from step to step raises the peak by as much as the memory after a step. A longer batch raises the peak by its
    activations too, which are many times the batch.

    lives_on_bytes   results of the last step that are found to live into the next one: if they may be the rise, a smaller ratio
                     is enough. Much larger ones were as large before it
    """
    rise = floor.slope * (floor.last - floor.first)
    of_results = RESULTS_SHARE[0] * rise <= lives_on_bytes <= RESULTS_SHARE[1] * rise
    ratio = WORK_GROWS_WITH_RESULTS if of_results else WORK_GROWS
    return floor.growing and peaks.growing and peaks.slope >= ratio * floor.slope


def models_slope(x: FloatArray, models: FloatArray, after_step_bytes: FloatArray, steps: float) -> float | None:
    """Growth of the models in bytes per step; None if unknown, or if memory after each step rises for another reason.

    Tensors are counted in a few steps only. From the first to the last of them, memory must rise by little more than the models.

    x                 steps, after the warm-up
    models            bytes of parameters, gradients, buffers and optimizer state at the end of each; NaN if unknown
    after_step_bytes  memory after each
    steps             number of steps whose memory rises
    """
    known = np.flatnonzero(np.isfinite(models) & np.isfinite(after_step_bytes))
    if len(known) < 2:
        return None
    first, last = known[0], known[-1]
    risen, of_models = (float(values[last] - values[first]) for values in (after_step_bytes, models))
    if x[last] - x[first] < KNOWN_SHARE * steps or risen <= 0 or of_models < THE_MODELS_SHARE * risen:
        return None
    return of_models / float(x[last] - x[first])


def _every_quarter_rises(x: FloatArray, y: FloatArray, slope: float, span: float) -> bool:
    rises = _rises_of_quarters(x, y)
    return rises is not None and bool((rises >= _QUARTER_SHARE * slope * span / 4).all())


def _slows(x: FloatArray, y: FloatArray) -> bool:
    """The scatter from value to value is allowed for: a second difference has none of a smooth curve."""
    rises = _rises_of_quarters(x, y)
    scatter = float(np.median(np.abs(np.diff(y, 2)))) if y.size > 2 else 0.0
    return rises is not None and float(rises[-1]) + scatter < _SLOWED_SHARE * float(rises[0])


def _rises_of_quarters(x: FloatArray, y: FloatArray) -> FloatArray | None:
    """Rise of the lowest value from quarter to quarter; None if one has no value."""
    quarters = np.minimum(((x - x[0]) / max(float(x[-1] - x[0]), 1e-300) * 4).astype(np.int64), 3)
    lows = [y[quarters == quarter] for quarter in range(4)]
    if any(part.size == 0 for part in lows):
        return None
    rises: FloatArray = np.diff(np.array([float(part.min()) for part in lows]))
    return rises
