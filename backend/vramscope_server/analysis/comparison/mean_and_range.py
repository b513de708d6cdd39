"""Mean and range of a value over repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Final, Literal, TypedDict

import numpy as np

MIN_VALUES: Final = 3
"""Number of values from which on an interval is computed. With fewer, the range is the lowest and highest value."""

_T_DF: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 60, math.inf)
_T_975: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.1788, 2.1314, 2.0860, 2.0423, 2.0003, 1.9600,
)  # fmt: skip
"""Student's t for 97.5 %. Values between two rows are interpolated in 1/df, which gives slightly wide intervals."""


class MeanAndRangeFields(TypedDict):
    """Fields of a MeanAndRange as JSON."""

    n: int
    mean: float
    low: float
    high: float
    kind: str


@dataclass(frozen=True, slots=True)
class MeanAndRange:
    """Mean of ``n`` known values, and ``low`` and ``high``.

    These are the lowest and highest value (kind ``range``), or the 95 % interval of the mean by Student's t (``t95``).
    """

    n: int
    mean: float
    low: float
    high: float
    kind: Literal["range", "t95"]

    def as_json(self) -> MeanAndRangeFields:
        """Fields as JSON."""
        return {"n": self.n, "mean": self.mean, "low": self.low, "high": self.high, "kind": self.kind}


def t_975(df: float) -> float:
    """Half the width of a 95 % interval in standard errors, for at least 1 degree of freedom."""
    return float(np.interp(1 / df, [1 / one for one in reversed(_T_DF)], _T_975[::-1]))


def mean_and_range(values: Sequence[float], *, interval: bool = True) -> MeanAndRange:
    """Mean and range of at least one value.

    ``interval``: whether the values repeat one measurement. Only then an interval of the mean has a meaning.
    """
    mean, n = fmean(values), len(values)
    if n < MIN_VALUES or not interval:
        return MeanAndRange(n, mean, min(values), max(values), "range")
    half = t_975(n - 1) * math.sqrt(variance(values) / n)
    return MeanAndRange(n, mean, mean - half, mean + half, "t95")


def mean_and_range_of_ratio(values: Sequence[float], base: Sequence[float], *, interval: bool = True) -> MeanAndRange:
    """Ratio of the mean of ``values`` to the mean of ``base``, and its range. No value of ``base`` may be zero.

    With three or more values on both sides the interval comes from the delta method, with Welch's degrees of freedom.
    Otherwise the range goes from the lowest to the highest ratio of two runs.
    """
    ratio = fmean(values) / fmean(base)
    n = len(values)
    if min(n, len(base)) < MIN_VALUES or not interval:
        return MeanAndRange(n, ratio, min(values) / max(base), max(values) / min(base), "range")
    parts = [(variance(of) / len(of) / fmean(of) ** 2, len(of) - 1) for of in (values, base)]
    whole = sum(part for part, _ in parts)
    if whole == 0:
        return MeanAndRange(n, ratio, ratio, ratio, "t95")
    df = whole**2 / sum(part**2 / freedom for part, freedom in parts)
    half = t_975(df) * abs(ratio) * math.sqrt(whole)
    return MeanAndRange(n, ratio, ratio - half, ratio + half, "t95")
