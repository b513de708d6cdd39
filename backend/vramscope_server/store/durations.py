"""Median of any number of durations, in constant memory."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from vramscope_server.analysis.array_types import IntArray

_RESOLUTION: Final = math.log1p(0.001)
"""Width of a bucket: 0.1 %. With interpolation the median is off by less than that."""


class Durations(msgspec.Struct):
    """Histogram of step durations from which the median follows."""

    counts: dict[int, int] = {}

    def add(self, duration_ns: IntArray, steps: IntArray) -> None:
        """Count durations, each as often as its row has steps. Unknown ones and zeros are left out."""
        is_known = duration_ns > 0
        buckets = np.floor(np.log(duration_ns[is_known]) / _RESOLUTION).astype(np.int64)
        found, places = np.unique(buckets, return_inverse=True)
        counts = np.bincount(places, weights=steps[is_known], minlength=found.size)
        for bucket, count in zip(found.tolist(), counts.tolist(), strict=True):
            self.counts[bucket] = self.counts.get(bucket, 0) + int(count)

    def median_ns(self) -> int | None:
        """Median, within 0.1 %; None before the first step has ended."""
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
