"""The axis of losses: logarithmic where a linear one would press all but the highest flat."""

from __future__ import annotations

import numpy as np

from vramscope_server.analysis.series.window import FloatArray
from vramscope_server.figures.drawing import COUNT, Drawing

SPAN = 30.0
"""Highest to low: beyond this, what is low has less than three hundredths of a linear axis' height."""
LOW = 0.05
"""Low is what so large a share is below: a single batch that came near zero makes no axis logarithmic."""
FEW = 0.02
"""A share of values at or below zero that a logarithmic axis may leave at its foot. With more the axis stays linear."""


def loss_axis(drawing: Drawing, *losses: FloatArray) -> None:
    """Give a drawing of ``losses`` its y axis. The page lets its reader choose the other one."""
    drawing.y_axis(COUNT, rangemode="normal", type="log" if spans_decades(*losses) else "linear")
    drawing.figure.update_yaxes(title={"text": "loss"})


def spans_decades(*losses: FloatArray) -> bool:
    """Whether these values are for a logarithmic axis. NaN is left out; without a value they are not."""
    values = np.concatenate([np.empty(0), *losses])
    values = values[np.isfinite(values)]
    above = values[values > 0]
    if not above.size or above.size < (1 - FEW) * values.size:
        return False
    return bool(above.max() >= SPAN * np.quantile(above, LOW))
