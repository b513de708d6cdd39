"""The small chart of a run's row: the highest values, in order, in a few buckets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from vramscope.protocol import series
from vramscope_server.analysis.array_types import IntArray

SPARKLINE_BUCKETS: Final = 60


class Sparkline(msgspec.Struct):
    """Highest value in each of at most 60 buckets, whose width doubles when they do not suffice."""

    origin: int = 0
    width: int = 0
    values: list[int] = []

    def add(self, at: IntArray, value: IntArray) -> None:
        """Count values at positions (steps, or nanoseconds); positions before the first one count in the first bucket."""
        if not self.values:
            self.origin = int(at[0])
        index = np.maximum(at - self.origin, 0) // max(1, self.width)
        while index.max() >= SPARKLINE_BUCKETS:
            self.width = max(1, self.width) * 2
            index //= 2
            pairs = self.values + [series.UNKNOWN] * (len(self.values) % 2)
            self.values = [max(pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2)]
        new = np.full(max(int(index.max()) + 1, len(self.values)), series.UNKNOWN, np.int64)
        new[: len(self.values)] = self.values
        np.maximum.at(new, index, value)
        self.values = new.tolist()


def highest_of_all(of_ranks: Sequence[list[int]]) -> list[int | None]:
    """Highest of several ranks, bucket by bucket; None is unknown."""
    highest = (
        of_ranks[0] if len(of_ranks) == 1 else map(max, itertools.zip_longest(*of_ranks, fillvalue=series.UNKNOWN))
    )
    return [None if value == series.UNKNOWN else value for value in highest]
