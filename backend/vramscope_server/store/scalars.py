"""Numbers that the training reports (messages.Scalars): how they are stored, and their summary.

They are stored like the other streams, in chunks of whole numbers: a double as the whole number with the same bits. That
of series.UNKNOWN is one of the bit patterns of NaN; a reported NaN has the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from vramscope.protocol import series
from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.answers.run_detail import Loss, NotFinite

BoolArray = npt.NDArray[np.bool_]

SCALARS: Final = "scalars"
"""Name of the stream; its device is series.CPU."""
MOST_SCALARS: Final = 64
"""Maximum number of names of a rank whose newest values are kept."""
RECENT: Final = 100
FINAL_SHARE: Final = 10
"""Number of newest values that are kept. A final value is the mean of the newest tenth, at most RECENT."""


def numbers(bits: IntArray) -> tuple[FloatArray, BoolArray]:
    """Doubles behind stored whole numbers, and which of them were reported."""
    return np.ascontiguousarray(bits).view(np.float64), bits != series.UNKNOWN


def words(value: float) -> str:
    """Text for a number that JSON does not have: ``nan``, ``inf``, ``-inf``."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


class Recent(msgspec.Struct, array_like=True):
    """A value."""

    time_ns: int
    step: int
    value: float


class ScalarSummary(msgspec.Struct):
    """Summary of a name."""

    count: int = 0
    first: Recent | None = None
    recent: list[Recent] = []
    """Newest values, oldest first."""
    not_finite: int = 0
    """Number of values that are NaN or infinite."""
    first_not_finite: Recent | None = None

    def add(self, time_ns: IntArray, step: IntArray, bits: IntArray) -> None:
        """Count the rows of a block that have a value."""
        values, known = numbers(bits)
        rows = [
            Recent(*row)
            for row in zip(time_ns[known].tolist(), step[known].tolist(), values[known].tolist(), strict=True)
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
        """Mean of the newest tenth, and its number of values; None if one of them is not finite."""
        newest = self.recent[-max(1, min(RECENT, self.count // FINAL_SHARE)) :]
        values = [row.value for row in newest]
        if not values or not all(map(math.isfinite, values)):
            return None, len(values)
        return math.fsum(value / len(values) for value in values), len(values)


def _when(row: Recent) -> int:
    return row.time_ns


def loss_name(scalars: Container[str]) -> str | None:
    """Name that is shown as the loss (series.LOSSES); None if there is none."""
    return next((name for name in series.LOSSES if name in scalars), None)


def rank_loss(scalars: Mapping[str, ScalarSummary]) -> Loss | None:
    """Loss of a rank."""
    name = loss_name(scalars)
    if name is None:
        return None
    found = scalars[name]
    assert found.first is not None
    final, of = found.final()
    last, odd = found.recent[-1], found.first_not_finite
    return Loss(
        name=name,
        source=series.LOSSES[name],
        count=found.count,
        first=_finite(found.first.value),
        last=_finite(last.value),
        last_step=last.step,
        final=final,
        final_of=of,
        not_finite=None
        if odd is None
        else NotFinite(
            value=words(odd.value), step=odd.step, count=found.not_finite, ended=not math.isfinite(last.value)
        ),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
