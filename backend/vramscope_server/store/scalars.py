"""Numbers that the training tells of itself (messages.Scalars): how they are kept, and what a run's row tells of each.

They are stored like the other streams, in chunks of whole numbers: a double as the whole number of the same bits. That of
series.UNKNOWN is one of the bit patterns that are not a number; a NaN that was told has the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from vramscope.protocol import series

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

SCALARS: Final = "scalars"
"""the name of the stream; its device is series.CPU"""
MOST_SCALARS: Final = 64
"""names of a rank of which the newest values are known"""
RECENT: Final = 100
FINAL_SHARE: Final = 10
"""a final value is the mean of the newest tenth of all, at most RECENT"""


def numbers(bits: IntArray) -> tuple[FloatArray, BoolArray]:
    """The doubles behind stored whole numbers, and which of them were told."""
    return np.ascontiguousarray(bits).view(np.float64), bits != series.UNKNOWN


def words(value: float) -> str:
    """What a number is that no JSON can tell: ``nan``, ``inf``, ``-inf``."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


class Recent(msgspec.Struct, array_like=True):
    """One value."""

    time_ns: int
    step: int
    value: float


class ScalarSummary(msgspec.Struct):
    """One name so far."""

    count: int = 0
    first: Recent | None = None
    recent: list[Recent] = []
    """the newest, oldest first"""
    not_finite: int = 0
    """how many were NaN or infinite"""
    first_not_finite: Recent | None = None

    def add(self, time_ns: IntArray, step: IntArray, bits: IntArray) -> None:
        """Count the rows of one block that tell it."""
        values, told = numbers(bits)
        rows = [
            Recent(*row) for row in zip(time_ns[told].tolist(), step[told].tolist(), values[told].tolist(), strict=True)
        ]
        if not rows:
            return
        self.count += len(rows)
        odd = [row for row in rows if not math.isfinite(row.value)]
        self.not_finite += len(odd)
        self.first = min((row for row in (self.first, *rows) if row is not None), key=_when)
        if odd:
            self.first_not_finite = min((row for row in (self.first_not_finite, *odd) if row is not None), key=_when)
        self.recent = sorted([*self.recent, *rows], key=_when)[-RECENT:]

    def final(self) -> tuple[float | None, int]:
        """The mean of the newest tenth, and of how many; None where one of them is no finite number."""
        newest = self.recent[-max(1, min(RECENT, self.count // FINAL_SHARE)) :]
        values = [row.value for row in newest]
        if not values or not all(map(math.isfinite, values)):
            return None, len(values)
        return math.fsum(value / len(values) for value in values), len(values)


def _when(row: Recent) -> int:
    return row.time_ns


def loss_name(scalars: Container[str]) -> str | None:
    """Which of the names is shown as the loss (series.LOSSES); None where there is none."""
    return next((name for name in series.LOSSES if name in scalars), None)


def told_loss(scalars: Mapping[str, ScalarSummary]) -> dict[str, Any] | None:
    """A rank's loss as the API tells it (docs/http.md)."""
    name = loss_name(scalars)
    if name is None:
        return None
    found = scalars[name]
    assert found.first is not None
    final, of = found.final()
    last, odd = found.recent[-1], found.first_not_finite
    return {
        "name": name,
        "source": series.LOSSES[name],
        "count": found.count,
        "first": _finite(found.first.value),
        "last": _finite(last.value),
        "last_step": last.step,
        "final": final,
        "final_of": of,
        "not_finite": None
        if odd is None
        else {
            "value": words(odd.value),
            "step": odd.step,
            "count": found.not_finite,
            "ended": not math.isfinite(last.value),
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
