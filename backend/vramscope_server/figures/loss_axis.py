"""Axis of losses: logarithmic if a linear one would flatten all but the highest values."""

from __future__ import annotations

import numpy as np

from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.figures.drawing import COUNT, Drawing

SPAN = 30.0
"""Ratio of highest to low. Beyond it, low values have less than 3 % of a linear axis."""
LOW = 0.05
"""Quantile that counts as low, so that a single batch near zero has no effect."""
FEW = 0.02
"""Maximum share of values at or below zero on a logarithmic axis. With more, the axis is linear."""


def loss_axis(drawing: Drawing, *losses: FloatArray) -> None:
    """Set the y axis of a drawing of ``losses``. The page has a switch for the other one."""
    drawing.y_axis(COUNT, rangemode="normal", type="log" if spans_decades(*losses) else "linear")
    drawing.figure.update_yaxes(title={"text": "loss"})


def spans_decades(*losses: FloatArray) -> bool:
    """Return True if the values need a logarithmic axis. NaN is ignored; without values, False."""
    values = np.concatenate([np.empty(0), *losses])
    values = values[np.isfinite(values)]
    above = values[values > 0]
    if not above.size or above.size < (1 - FEW) * values.size:
        return False
    return bool(above.max() >= SPAN * np.quantile(above, LOW))
