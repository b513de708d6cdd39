"""The loss in a record: what the training told of itself in the minute before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vramscope.protocol.oom_record import BlackBox
from vramscope.protocol.series import LOSSES
from vramscope_server.analysis.series.window import LossWindow, SeriesColumn


def loss_of(box: BlackBox) -> tuple[LossWindow | None, list[int]]:
    """With the number of each value's step. None: nothing was told, or the agent was older."""
    name = next((name for name in LOSSES if name in box.losses), None)
    if name is None:
        return None, []
    values = np.frombuffer(box.losses[name], "<f8")
    x = (np.frombuffer(box.losses["time_ns"], "<i8") - box.time_ns) / 1e9
    steps = np.frombuffer(box.losses["step"], "<i8").tolist()
    odd = np.flatnonzero(~np.isfinite(values))
    first = (float(x[odd[0]]), steps[odd[0]], float(values[odd[0]])) if odd.size else None
    finite = np.where(np.isfinite(values), values, np.nan)
    column = SeriesColumn(finite, finite, finite)
    loss = LossWindow(
        name=name, x_values=x, envelope=False, rows=len(values), values=column, not_finite=first, odd=odd.size
    )
    return loss, steps


def told(box: BlackBox) -> dict[str, Any] | None:
    """As the API tells it: what it was, and the newest."""
    loss, steps = loss_of(box)
    if loss is None or not loss.rows:
        return None
    last = float(loss.values.mean[-1])
    return {
        "name": loss.name,
        "source": LOSSES[loss.name],
        "count": loss.rows,
        "last": last if math.isfinite(last) else None,
        "last_step": steps[-1],
        "first_not_finite_step": None if loss.not_finite is None else loss.not_finite[1],
    }
