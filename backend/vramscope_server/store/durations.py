"""The median of any number of durations, in little room."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

_RESOLUTION: Final = math.log1p(0.001)
"""Durations are counted in buckets 0.1 % wide; with interpolation the median is off by less than that."""


class Durations(msgspec.Struct):
    """A histogram of step durations from which the median follows, whatever their number."""

    counts: dict[int, int] = {}

    def add(self, duration_ns: IntArray) -> None:
        """Count durations; unknown ones and zeros are left out."""
        known = duration_ns[duration_ns > 0]
        buckets, counts = np.unique(np.floor(np.log(known) / _RESOLUTION).astype(np.int64), return_counts=True)
        for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def median_ns(self) -> int | None:
        """Within 0.1 % of the true one; None while no step has ended."""
        total = sum(self.counts.values())
        if not total:
            return None
        wanted, seen = total / 2, 0
        for bucket in sorted(self.counts):
            inside = self.counts[bucket]
            if seen + inside >= wanted:
                return round(math.exp(_RESOLUTION * (bucket + (wanted - seen) / inside)))
            seen += inside
        raise AssertionError("unreachable: the counts add up to the total")
