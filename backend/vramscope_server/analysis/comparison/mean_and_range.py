"""A figure of repeats: its mean, and between what it lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance
from typing import Any, Final, Literal

import numpy as np

FEWEST: Final = 3
"""of which an interval is reckoned; of fewer, lowest and highest are told"""

_T_DF: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 60, math.inf)
_T_975: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.1788, 2.1314, 2.0860, 2.0423, 2.0003, 1.9600,
)  # fmt: skip
"""Student's t of 97.5 %, as any table has it; between two rows linear in 1/df, which errs to the wide side"""


@dataclass(frozen=True, slots=True)
class MeanAndRange:
    """``n``: of how many it is known. ``kind``: what ``low`` and ``high`` are: the lowest and the highest, or the ends of the 95 %
    interval of the mean by Student's t."""

    n: int
    mean: float
    low: float
    high: float
    kind: Literal["range", "t95"]

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def t_975(df: float) -> float:
    """Half the width of a 95 % interval, in standard errors. ``df``: from 1."""
    return float(np.interp(1 / df, [1 / one for one in reversed(_T_DF)], _T_975[::-1]))


def mean_and_range(values: Sequence[float]) -> MeanAndRange:
    """Of one figure; ``values``: of each repeat, at least one."""
    mean, n = fmean(values), len(values)
    if n < FEWEST:
        return MeanAndRange(n, mean, min(values), max(values), "range")
    half = t_975(n - 1) * math.sqrt(variance(values) / n)
    return MeanAndRange(n, mean, mean - half, mean + half, "t95")


def mean_and_range_of_ratio(values: Sequence[float], base: Sequence[float]) -> MeanAndRange:
    """Of the mean of ``values`` over that of ``base``, in both of which the runs differ; nothing of ``base`` may be zero.

    Where both are of three or more: by the delta method, with Welch's degrees of freedom. Else from the lowest to the highest
    ratio that a run of the one has to a run of the other.
    """
    ratio = fmean(values) / fmean(base)
    n = len(values)
    if min(n, len(base)) < FEWEST:
        return MeanAndRange(n, ratio, min(values) / max(base), max(values) / min(base), "range")
    parts = [(variance(of) / len(of) / fmean(of) ** 2, len(of) - 1) for of in (values, base)]
    whole = sum(part for part, _ in parts)
    if whole == 0:
        return MeanAndRange(n, ratio, ratio, ratio, "t95")
    df = whole**2 / sum(part**2 / freedom for part, freedom in parts)
    half = t_975(df) * abs(ratio) * math.sqrt(whole)
    return MeanAndRange(n, ratio, ratio - half, ratio + half, "t95")
