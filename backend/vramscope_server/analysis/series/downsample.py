"""Reduces many rows to as many points as a chart has pixels, without losing peaks. Pure functions on arrays.

An overview is an envelope: the lowest, mean and highest value of each bucket of the x axis. Selecting single points instead
(LTTB, for example) turns an hour of a sawtooth into a solid block, and shared points show false spikes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]

UNKNOWN: Final = -1
GAP_BUCKETS: Final = 4
"""Number of consecutive empty buckets that is shown as a hole. Fewer are jitter and are omitted."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Division of sorted rows into buckets.

    starts   shape (b,), the first row of each bucket that has rows, rising
    middle   shape (b + holes,), x of the middle of each bucket, holes included, rising
    filled   shape (b + holes,), False for the buckets that stand for a hole
    """

    starts: IntArray
    middle: FloatArray
    filled: BoolArray


@dataclass(frozen=True, slots=True)
class Envelope:
    """Lowest, mean and highest known value of each bucket. Without known values, ``known`` is False and they are -1."""

    min: IntArray
    mean: IntArray
    max: IntArray
    known: BoolArray


def divide(x: IntArray, buckets: int) -> Buckets:
    """Divide rows into at most ``buckets`` parts of the x axis, all of the same width.

    x   shape (n,), not falling, n >= 1
    Raises ValueError if there is nothing to divide, or into nothing.
    """
    if x.size == 0 or buckets < 1:
        raise ValueError(f"cannot divide {x.size} rows into {buckets} buckets")
    first, span = int(x[0]), int(x[-1]) - int(x[0]) + 1
    # Integer edges: nanoseconds since 1970 exceed the precision of a float.
    number = np.arange(buckets, dtype=np.int64)
    edges = first + (number * (span // buckets) + number * (span % buckets) // buckets)
    position = np.searchsorted(x, edges, side="left")
    ends = np.append(position[1:], x.size)
    full = ends > position
    starts = position[full]
    width = span / buckets
    middle = first + (number + 0.5) * width - 0.5
    empty_before = np.diff(np.flatnonzero(full), prepend=-1) - 1
    occupied = np.flatnonzero(full)
    holes = occupied[empty_before >= GAP_BUCKETS] - 1
    holes = holes[holes > 0]
    shown = np.sort(np.concatenate([occupied, holes]))
    return Buckets(starts, middle[shown], full[shown])


def envelope(values: IntArray, starts: IntArray) -> Envelope:
    """Envelope of each bucket. Unknown values (-1) are ignored.

    values  shape (n,), -1 or not negative
    starts  shape (b,), as :func:`divide` gives them
    Cost: about 0.4 ms for 100,000 rows.
    """
    low = np.minimum.reduceat(values, starts)
    high = np.maximum.reduceat(values, starts)
    counts = np.diff(np.append(starts, values.size))
    if int(low.min()) > UNKNOWN:
        sums = np.add.reduceat(values.astype(np.float64), starts)
        known = np.ones(starts.size, np.bool_)
    else:
        there = values != UNKNOWN
        sums = np.add.reduceat(np.where(there, values, 0).astype(np.float64), starts)
        counts = np.add.reduceat(there.astype(np.int64), starts)
        known = counts > 0
        low = np.minimum.reduceat(np.where(there, values, np.iinfo(np.int64).max), starts)
        low = np.where(known, low, UNKNOWN)
    mean = np.rint(sums / np.maximum(counts, 1))
    # A float cannot represent every large integer: keep the mean between the other two. The float nearest to the
    # maximum of int64 is larger than it.
    mean = np.minimum(mean, 2.0**62).astype(np.int64)
    mean = np.where(known, np.clip(mean, low, high), UNKNOWN)
    return Envelope(low, mean, high, known)


def float_envelope(values: FloatArray, starts: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lowest, mean and highest finite value of each bucket; NaN if it has none.

    values  shape (n,), of any sign; values that are not finite are ignored
    starts  shape (b,), as :func:`divide` gives them
    """
    there = np.isfinite(values)
    counts = np.add.reduceat(there.astype(np.int64), starts)
    with np.errstate(invalid="ignore"):
        low = np.minimum.reduceat(np.where(there, values, np.inf), starts)
        high = np.maximum.reduceat(np.where(there, values, -np.inf), starts)
        # Divide before summing: the sum of large numbers may overflow.
        shares = np.where(there, values, 0.0) / np.repeat(
            np.maximum(counts, 1), np.diff(np.append(starts, values.size))
        )
        mean = np.clip(np.add.reduceat(shares, starts), low, high)
    low, mean, high = (np.where(counts > 0, part, np.nan) for part in (low, mean, high))
    return low, mean, high


def at_peak(total: IntArray, parts: dict[str, IntArray], starts: IntArray) -> dict[str, IntArray]:
    """Parts in the row with the highest total of each bucket (the first of several), so that stacks add up.

    total   shape (n,)
    parts   name -> shape (n,)
    starts  shape (b,)
    """
    high = np.maximum.reduceat(total, starts)
    bucket = np.zeros(total.size, np.int64)
    bucket[starts[1:]] = 1
    np.cumsum(bucket, out=bucket)
    hits = np.flatnonzero(total == high[bucket])
    _, first = np.unique(bucket[hits], return_index=True)
    rows = hits[first]
    return {name: values[rows] for name, values in parts.items()}


def with_holes(values: npt.NDArray[np.generic], buckets: Buckets, fill: object) -> npt.NDArray[np.generic]:
    """Values of the filled buckets, with ``fill`` for holes."""
    if buckets.filled.all():
        return values
    out = np.full(buckets.filled.size, fill, values.dtype)
    out[buckets.filled] = values
    return out
